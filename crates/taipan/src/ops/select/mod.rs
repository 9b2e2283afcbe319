//! One of two tensors, element by element, as a mask says.

use smallvec::smallvec;

use super::broadcast::{self, Operand, RowLayout, Runs, launch};
use super::reduce::sum_to;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::BLOCK;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::with_dtype;
use crate::error::{Result, ensure};
use crate::gpu::Program;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::{Spec, broadcast as broadcast_shapes};
use crate::tensor::Tensor;

/// Selection by a mask: a tensor of `u32`, as comparisons give it, that is true where it is not 0.
/// Shapes broadcast.
impl Tensor {
    /// `a` where this mask is true, `b` elsewhere; PyTorch's `where`. A gradient reaches only what
    /// was selected.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[-1f32, 0.5, 2.0], &[3], &Device::Cpu)?;
    /// let y = x.gt(0.0)?.where_cond(&x, &x.exp()?)?;
    /// assert_eq!(y.read_blocking::<f32>()?, [(-1f32).exp(), 0.5, 2.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    #[doc(alias = "where")]
    pub fn where_cond(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        apply_one(Where, &[self, a, b])
    }

    /// `value` where `mask` is true, this tensor elsewhere.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// // Attention that does not look ahead.
    /// let scores = Tensor::zeros(&[2, 2], DType::F32, &Device::Cpu)?;
    /// let ahead = Tensor::ones(&[2, 2], DType::U32, &Device::Cpu)?.tril(0)?.eq(0.0)?;
    /// let weights = scores.masked_fill(&ahead, f64::NEG_INFINITY)?.softmax(1)?;
    /// assert_eq!(weights.read_blocking::<f32>()?, [1.0, 0.0, 0.5, 0.5]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Tensor> {
        let shape = broadcast_shapes("masked_fill", self.shape(), mask.shape())?;
        let fits = shape == self.shape();
        ensure!(
            "masked_fill",
            fits,
            "the mask is {:?}, expected it to broadcast to {:?}",
            mask.shape(),
            self.shape()
        );
        mask.where_cond(&Operand::Number(value).beside(self)?, self)
    }

    /// The lower triangle of the last two dimensions, 0 above: elements `[…, i, j]` with
    /// `j ≤ i + diagonal`. For floats and `u32`.
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        const OP: &str = "tril";
        let &[.., rows, columns] = self.shape() else {
            let why = format!("the input is {:?}, expected 2 dimensions or more", self.shape());
            return Err(crate::Error::Shape { op: OP, why });
        };
        // Row i keeps so many columns.
        let kept = |i: usize| (i as i64).saturating_add(diagonal).saturating_add(1);
        let kept: Vec<u32> = (0..rows).map(|i| kept(i).clamp(0, columns as i64) as u32).collect();
        let kept = Tensor::new(&kept, &[rows, 1], self.device())?;
        let column = Tensor::arange(0, columns as i64, DType::U32, self.device())?;
        column.lt(&kept)?.where_cond(self, &Operand::Number(0.0).beside(self)?)
    }
}

/// Inputs `mask`, `a` and `b`.
struct Where;

impl Op for Where {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Input(0)
    }

    /// `da = dy` where the mask is true, else 0; `db` likewise where it is not. Then the sum over
    /// repeated dimensions.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (mask, dy) = (saved.input(0), &dys[0]);
        let zero = Operand::Number(0.0).beside(dy)?;
        let grad = |i: usize| {
            let sides = if i == 1 { [mask, dy, &zero] } else { [mask, &zero, dy] };
            saved.needs[i]
                .then(|| sum_to(&run_one(self, &sides)?, saved.specs[i].shape()))
                .transpose()
        };
        Ok(vec![None, grad(1)?, grad(2)?])
    }
}

impl Kernel for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let [mask, a, b] = [inputs[0], inputs[1], inputs[2]];
        mask.dtype().ensure(DType::U32, self.name(), "the mask")?;
        b.dtype().ensure(a.dtype(), self.name(), "the right side")?;
        let shape = broadcast_shapes(self.name(), a.shape(), b.shape())?;
        let shape = broadcast_shapes(self.name(), mask.shape(), &shape)?;
        Ok(smallvec![Spec::new(self.name(), &shape, a.dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let shapes = [0, 1, 2].map(|i| inputs[i].spec.shape());
        let layout = RowLayout::new(outputs[0].spec.shape(), shapes);
        with_dtype!(inputs[1].spec.dtype(), T: Bits => {
            let mask = inputs[0].as_slice::<u32>();
            let (a, b) = (inputs[1].as_slice::<T>(), inputs[2].as_slice::<T>());
            for_chunks(outputs[0].as_mut_slice::<T>(), GRAIN, |start, chunk| {
                let mut mask = Runs::new(mask, layout.advances[0]);
                let mut a = Runs::new(a, layout.advances[1]);
                let mut b = Runs::new(b, layout.advances[2]);
                layout.for_runs(start, chunk, BLOCK, |out, from| {
                    let mask = mask.at(from[0], out.len());
                    let (a, b) = (a.at(from[1], out.len()), b.at(from[2], out.len()));
                    for (((out, mask), a), b) in out.iter_mut().zip(mask).zip(a).zip(b) {
                        *out = if *mask != 0 { *a } else { *b };
                    }
                });
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        launch(io, |flat| program(io.outputs[0].spec.dtype(), flat))
    }
}

fn program(elem: DType, flat: bool) -> Program {
    broadcast::program(wgsl!("where.wgsl"), &[("Elem", elem)], &[], flat)
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    [true, false].map(|flat| program(elem, flat)).into()
}
