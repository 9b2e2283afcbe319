//! Concatenation along a dimension.

use smallvec::smallvec;

use super::slice::DimSplit;
use super::split::join_on_gpu;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::dtype::with_dtype;
use crate::error::{Result, ensure};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::spec::{Spec, ensure_dim};
use crate::tensor::Tensor;

/// The tensors concatenated along `dim`; all other sizes must be equal.
///
/// ```
/// use taipan::{Device, Tensor, concat};
///
/// let a = Tensor::new(&[1f32, 2.0], &[1, 2], &Device::Cpu)?;
/// let b = Tensor::new(&[3f32, 4.0, 5.0, 6.0], &[2, 2], &Device::Cpu)?;
/// assert_eq!(concat(&[&a, &b], 0)?.shape(), [3, 2]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn concat(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
    ensure!("concat", !tensors.is_empty(), "there are no tensors to join");
    apply_one(Concat(dim), tensors)
}

struct Concat(usize);

impl Op for Concat {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// Each tensor's slice of `dy`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let mut start = 0;
        let mut grads = Vec::new();
        for (spec, needed) in saved.specs.iter().zip(&saved.needs) {
            let range = start..start + spec.shape()[self.0];
            start = range.end;
            grads.push(needed.then(|| dys[0].slice(self.0, range)).transpose()?);
        }
        Ok(grads)
    }
}

impl Kernel for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (dim, first) = (self.0, inputs[0]);
        ensure_dim(self.name(), dim, first.shape())?;
        let mut shape = first.shape().to_vec();
        shape[dim] = 0;
        for input in inputs {
            let same = |i: usize| i == dim || input.shape()[i] == first.shape()[i];
            ensure!(
                self.name(),
                input.shape().len() == shape.len() && (0..shape.len()).all(same),
                "{:?} does not fit {:?}, expected equal sizes in all dimensions but {dim}",
                input.shape(),
                first.shape()
            );
            input.dtype().ensure(first.dtype(), self.name(), "a tensor")?;
            shape[dim] = shape[dim].saturating_add(input.shape()[dim]);
        }
        Ok(smallvec![Spec::new(self.name(), &shape, first.dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let split = DimSplit::new(outputs[0].spec.shape(), self.0);
        with_dtype!(outputs[0].spec.dtype(), T: Bits => {
            let mut start = 0;
            for input in inputs {
                let range = start..start + input.spec.shape()[self.0];
                start = range.end;
                split.put(input.as_slice::<T>(), range, outputs[0].as_mut_slice::<T>());
            }
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        join_on_gpu(io, self.0)
    }
}
