//! Element-wise arithmetic of two tensors, with broadcasting.

use smallvec::smallvec;

use super::broadcast::{self, Operand, RowLayout, Runs, launch};
use super::reduce::sum_to;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::map::{BLOCK, map};
use crate::cpu::reduce::larger;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::Result;
use crate::gpu::Program;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::{Spec, broadcast as broadcast_shapes};
use crate::tensor::Tensor;

/// Element-wise arithmetic. Shapes are aligned at their last dimensions and sizes of 1 are
/// repeated: `[4, 1, 3]` with `[2, 1]` gives `[4, 2, 3]`. Types must be equal.
impl Tensor {
    /// `self + other`
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Add, &[self, other])
    }

    /// `self − other`
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Sub, &[self, other])
    }

    /// `self · other`, element by element; for the matrix product see
    /// [`matmul`](Tensor::matmul).
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Mul, &[self, other])
    }

    /// `self / other`
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Div, &[self, other])
    }

    /// The larger of both, element by element; NaN where one is. Where they are equal, each gets
    /// half of the gradient.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[-1f32, 0.5, 2.0], &[3], &Device::Cpu)?;
    /// assert_eq!(x.maximum(0.0)?.read_blocking::<f32>()?, [0.0, 0.5, 2.0]);
    /// assert_eq!(x.minimum(&x.neg()?)?.read_blocking::<f32>()?, [-1.0, -0.5, -2.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn maximum<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
        apply_one(Binary::Maximum, &[self, &other.into().beside(self)?])
    }

    /// The smaller of both; see [`maximum`](Tensor::maximum).
    pub fn minimum<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
        apply_one(Binary::Minimum, &[self, &other.into().beside(self)?])
    }
}

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
    Minimum,
    /// 1 where the left side is larger, ½ where both are equal, else 0; NaN where one is.
    Share,
}

impl Binary {
    /// What WGSL calls the variants, in their order.
    const NAMES: [&str; 7] = ["ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SHARE"];
}

impl Op for Binary {
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool {
        match (self, slot) {
            (Binary::Mul, Slot::Input(i)) => needs[1 - i],
            (Binary::Div, Slot::Input(1)) => true,
            (Binary::Div, Slot::Output(0)) => needs[1],
            (Binary::Maximum | Binary::Minimum, Slot::Input(_)) => true,
            _ => false,
        }
    }

    /// Before the sum over repeated dimensions:
    /// `+`: `da = dy, db = dy`; `−`: `db = −dy`; `·`: `da = dy·b, db = dy·a`;
    /// `/`: `da = dy/b, db = −da·y`; the larger or smaller: all of `dy`, half of it or nothing.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let dy = &dys[0];
        let grad = |i: usize| match (self, i) {
            (Binary::Add, _) | (Binary::Sub, 0) => Ok(dy.clone()),
            (Binary::Sub, _) => dy.neg(),
            (Binary::Mul, i) => dy.mul(saved.input(1 - i)),
            (Binary::Div, 0) => dy.div(saved.input(1)),
            (Binary::Div, _) => dy.div(saved.input(1))?.mul(saved.output(0))?.neg(),
            (Binary::Maximum, i) => {
                dy.mul(&run_one(&Binary::Share, &[saved.input(i), saved.input(1 - i)])?)
            }
            (Binary::Minimum, i) => {
                dy.mul(&run_one(&Binary::Share, &[saved.input(1 - i), saved.input(i)])?)
            }
            (Binary::Share, _) => unreachable!("not on the graph"),
        };
        (0..2)
            .map(|i| match saved.needs[i] {
                true => Ok(Some(sum_to(&grad(i)?, saved.specs[i].shape())?)),
                false => Ok(None),
            })
            .collect()
    }
}

impl Kernel for Binary {
    fn name(&self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Maximum => "maximum",
            Binary::Minimum => "minimum",
            Binary::Share => "share",
        }
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let op = self.name();
        inputs[0].dtype().ensure_float(op, "the left side")?;
        inputs[1].dtype().ensure(inputs[0].dtype(), op, "the right side")?;
        let shape = broadcast_shapes(op, inputs[0].shape(), inputs[1].shape())?;
        Ok(smallvec![Spec::new(op, &shape, inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let shape = outputs[0].spec.shape();
        let layout = RowLayout::new(shape, [inputs[0].spec.shape(), inputs[1].spec.shape()]);
        with_dtype!(inputs[0].spec.dtype(), T: Float + f64 => {
            let (a, b) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
            let out = outputs[0].as_mut_slice::<T>();
            match layout.is_flat() {
                true => map(a, b, out, |a, b, out| arithmetic(*self, a, b, out)),
                false => repeat::<T>(*self, &layout, [a, b], out),
            }
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        launch(io, |flat| program(*self, io.outputs[0].spec.dtype(), flat))
    }
}

fn program(op: Binary, elem: DType, flat: bool) -> Program {
    let consts: Vec<_> = Binary::NAMES.into_iter().zip(0..).chain([("OP", op as u32)]).collect();
    broadcast::program(wgsl!("arithmetic.wgsl"), &[("Elem", elem)], &consts, flat)
}

/// With an operand that is repeated.
fn repeat<T: Float>(op: Binary, layout: &RowLayout<2>, operands: [&[T]; 2], out: &mut [T]) {
    for_chunks(out, GRAIN, |start, chunk| {
        let [mut a, mut b] = [0, 1].map(|i| Runs::new(operands[i], layout.advances[i]));
        let mut wide = [[T::Acc::ZERO; BLOCK]; 3];
        layout.for_runs(start, chunk, BLOCK, |out, from| {
            let len = out.len();
            let [wide_a, wide_b, wide_out] = &mut wide;
            let a = widened(a.at(from[0], len), &mut wide_a[..len]);
            let b = widened(b.at(from[1], len), &mut wide_b[..len]);
            fill_wide(out, wide_out, |out| arithmetic(op, a, b, out));
        });
    });
}

#[inline(always)]
fn zip<A: Real>(x: &[A], y: &[A], out: &mut [A], f: impl Fn(A, A) -> A) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = f(*x, *y);
    }
}

vectorized! {
    /// `out = x op y`
    fn arithmetic<I: Isa, A: Real>(op: Binary, x: &[A], y: &[A], out: &mut [A]) {
        match op {
            Binary::Add => zip(x, y, out, |x, y| x + y),
            Binary::Sub => zip(x, y, out, |x, y| x - y),
            Binary::Mul => zip(x, y, out, |x, y| x * y),
            Binary::Div => zip(x, y, out, |x, y| x / y),
            Binary::Maximum => zip(x, y, out, larger),
            Binary::Minimum => zip(x, y, out, |x, y| -larger(-x, -y)),
            Binary::Share => zip(x, y, out, |x, y| {
                let half = if x == y { A::of(0.5) } else { A::ZERO };
                let share = if x > y { A::ONE } else { half };
                #[allow(clippy::eq_op)]
                if x != x || y != y { x + y } else { share }
            }),
        }
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    use Binary::*;
    let all = [Add, Sub, Mul, Div, Maximum, Minimum, Share];
    all.into_iter().flat_map(|op| [true, false].map(|flat| program(op, elem, flat))).collect()
}
