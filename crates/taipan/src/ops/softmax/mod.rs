//! Softmax and its logarithm along a dimension.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::reduce;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{Grid, LINES, MATH, MAX_SUM_EXP, Program, SUM, WORKGROUP, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one};
use crate::spec::{Spec, ensure_dim};
use crate::tensor::Tensor;

impl Tensor {
    /// `exp(x) / Σ exp(x)` along `dim`, computed from `x − max(x)` so that nothing overflows.
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        Softmax::Value.along(dim, self)
    }

    /// `ln softmax(x)` along `dim`, computed as `(x − max) − ln Σ exp(x − max)`, which keeps the
    /// digits of small and of large probabilities. See also [`cross_entropy`](crate::cross_entropy).
    pub fn log_softmax(&self, dim: usize) -> Result<Tensor> {
        Softmax::Log.along(dim, self)
    }
}

/// Along the last dimension.
#[derive(Clone, Copy, PartialEq)]
enum Softmax {
    Value,
    Log,
}

impl Softmax {
    /// Another dimension is exchanged with the last.
    fn along(self, dim: usize, x: &Tensor) -> Result<Tensor> {
        ensure_dim(self.name(), dim, x.shape())?;
        let last = x.rank() - 1;
        if dim == last {
            return apply_one(self, &[x]);
        }
        self.along(last, &x.transpose(dim, last)?)?.transpose(dim, last)
    }
}

impl Op for Softmax {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Output(0)
    }

    /// `dx = y ⊙ (dy − Σ dy·y)`; of the logarithm, `dx = dy − exp(y)·Σ dy`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (dy, y) = (&dys[0], saved.output(0));
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let n = row_len(inputs[0].spec);
            with_dtype!(inputs[0].spec.dtype(), T: Float => {
                let (dy, y) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
                for_rows(dy, y, outputs[0].as_mut_slice::<T>(), n, |dy, y| match self {
                    Softmax::Value => {
                        let dot = reduce::dot(dy, y);
                        dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = *y * (*dy - dot));
                    }
                    Softmax::Log => subtract_exp(dy, reduce::sum(dy), y),
                })
            });
            Ok(())
        };
        let gpu = |io: GpuIo| launch(io, *self, grad_program);
        let name = (self.name(), "backward");
        Ok(vec![Some(compute_one(name, &[dy, y], y.spec.clone(), cpu, gpu)?)])
    }
}

impl Kernel for Softmax {
    fn name(&self) -> &'static str {
        match self {
            Softmax::Value => "softmax",
            Softmax::Log => "log_softmax",
        }
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let n = row_len(inputs[0].spec);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            for_rows(inputs[0].as_slice::<T>(), &[], outputs[0].as_mut_slice::<T>(), n, |row, _| {
                let max = reduce::max(row).unwrap_or(<T as Float>::Acc::ZERO);
                if *self == Softmax::Log {
                    let logarithm = ln(sum_of_exps(row, max));
                    return row.iter_mut().for_each(|x| *x = (*x - max) - logarithm);
                }
                exp_of_difference(row, max);
                let scale = <T as Float>::Acc::ONE / reduce::sum(row);
                row.iter_mut().for_each(|x| *x *= scale);
            })
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        launch(io, *self, value_program)
    }
}

params! { struct SoftmaxParams { lines: u32, n: u32, nan: f32 } }

fn value_program(op: Softmax, elem: DType, width: u32) -> Program {
    let source = [MATH, MAX_SUM_EXP, WORKGROUP, wgsl!("softmax.wgsl"), LINES];
    let consts = [("WIDTH", width), ("LOG", op as u32)];
    Program::new::<SoftmaxParams>(&source, &[("Elem", elem)], &consts)
}

fn grad_program(op: Softmax, elem: DType, width: u32) -> Program {
    let source = [MATH, SUM, WORKGROUP, wgsl!("grad.wgsl"), LINES];
    let consts = [("WIDTH", width), ("LOG", op as u32)];
    Program::new::<SoftmaxParams>(&source, &[("Elem", elem)], &consts)
}

fn launch(io: GpuIo, op: Softmax, program: fn(Softmax, DType, u32) -> Program) -> Result<()> {
    let spec = io.outputs[0].spec;
    let n = row_len(spec);
    let rows = spec.len() / n;
    let params = SoftmaxParams { lines: rows as u32, n: n as u32, nan: f32::NAN };
    io.launch(program(op, spec.dtype(), width(n)), params, Grid::lines(rows, 4 * spec.len()))
}

fn row_len(spec: &Spec) -> usize {
    spec.shape().last().copied().unwrap_or(1)
}

/// `out = f(x, other)` for each `n`-long row, in the wider type; `other` may be empty.
fn for_rows<T: Float>(
    x: &[T],
    other: &[T],
    out: &mut [T],
    n: usize,
    f: impl Fn(&mut [T::Acc], &[T::Acc]) + Sync,
) {
    let rows = (GRAIN / n.max(1)).max(1);
    for_chunks(out, rows * n, |start, chunk| {
        let mut wide = vec![T::Acc::ZERO; n];
        let mut wide_other = vec![T::Acc::ZERO; if other.is_empty() { 0 } else { n }];
        for (i, out) in chunk.chunks_mut(n).enumerate() {
            let at = start + i * n;
            T::widen(&x[at..at + n], &mut wide);
            T::widen(other.get(at..at + n).unwrap_or_default(), &mut wide_other);
            f(&mut wide, &wide_other);
            T::narrow(&wide, out);
        }
    });
}

/// `Σ exp(x − max)`
fn sum_of_exps<A: Real>(x: &[A], max: A) -> A {
    let mut exps = x.to_vec();
    exp_of_difference(&mut exps, max);
    reduce::sum(&exps)
}

vectorized! {
    /// `x = exp(x − max)`
    pub(super) fn exp_of_difference<I: Isa, A: Real>(x: &mut [A], max: A) {
        for x in x {
            *x = (*x - max).exp::<I>();
        }
    }

    /// `dy = dy − exp(y)·sum`
    fn subtract_exp<I: Isa, A: Real>(dy: &mut [A], sum: A, y: &[A]) {
        for (dy, y) in dy.iter_mut().zip(y) {
            *dy = (-y.exp::<I>()).fma::<I>(sum, *dy);
        }
    }

    fn ln<I: Isa, A: Real>(x: A) -> A {
        x.ln::<I>()
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    crate::gpu::WIDTHS
        .into_iter()
        .flat_map(|w| [Softmax::Value, Softmax::Log].map(|op| (op, w)))
        .flat_map(|(op, w)| [value_program(op, elem, w), grad_program(op, elem, w)])
        .collect()
}
