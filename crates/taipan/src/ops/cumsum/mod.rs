//! Sums of all elements up to each, along a dimension.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::add;
use crate::cpu::threads::for_chunks;
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{Grid, LINES, Program, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::{Spec, ensure_dim};
use crate::tensor::Tensor;

impl Tensor {
    /// `y[i] = x[0] + … + x[i]` along `dim`. On the CPU terms are added in order; on a GPU a line
    /// is summed in 32 blocks, or 256 if it is longer than 512.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &[2, 2], &Device::Cpu)?;
    /// assert_eq!(x.cumsum(1)?.read_blocking::<f32>()?, [1.0, 3.0, 3.0, 7.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn cumsum(&self, dim: usize) -> Result<Tensor> {
        apply_one(Cumsum { dim, from: End::First }, &[self])
    }
}

/// The end of a line from which it is summed.
#[derive(Clone, Copy, PartialEq)]
enum End {
    First,
    Last,
}

struct Cumsum {
    dim: usize,
    from: End,
}

impl Op for Cumsum {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// `dx[i] = dy[i] + … + dy[n − 1]`: the same from the other end.
    fn backward(&self, _: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(run_one(&Cumsum { from: End::Last, ..*self }, &[&dys[0]])?)])
    }
}

impl Kernel for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        ensure_dim(self.name(), self.dim, inputs[0].shape())?;
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [len, inner] = self.sizes(inputs[0].spec);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<T>(), len * inner, |start, y| {
                let [mut sum, mut row] = [(); 2].map(|()| vec![<T as Float>::Acc::ZERO; inner]);
                for i in 0..len {
                    let i = if self.from == End::Last { len - 1 - i } else { i } * inner;
                    T::widen(&x[start + i..][..inner], &mut row);
                    add(&mut sum, &row);
                    T::narrow(&sum, &mut y[i..][..inner]);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let spec = io.outputs[0].spec;
        let [len, inner] = self.sizes(spec);
        let lines = spec.len() / len;
        let params = CumsumParams { lines: lines as u32, len: len as u32, inner: inner as u32 };
        let program = program(spec.dtype(), width(len), self.from);
        io.launch(program, params, Grid::lines(lines, 2 * spec.len()))
    }
}

impl Cumsum {
    /// The length of a line, and the distance of its elements.
    fn sizes(&self, spec: &Spec) -> [usize; 2] {
        [spec.shape()[self.dim], spec.shape()[self.dim + 1..].iter().product()]
    }
}

params! { struct CumsumParams { lines: u32, len: u32, inner: u32 } }

fn program(elem: DType, width: u32, from: End) -> Program {
    let source = [wgsl!("cumsum.wgsl"), LINES];
    let consts = [("WIDTH", width), ("FROM_LAST", from as u32)];
    Program::new::<CumsumParams>(&source, &[("Elem", elem)], &consts)
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let of = |width| [End::First, End::Last].map(|from| program(elem, width, from));
    crate::gpu::WIDTHS.into_iter().flat_map(of).collect()
}
