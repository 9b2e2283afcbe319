//! Tokens that are too unlikely to be sampled.

use smallvec::smallvec;

use crate::cpu::isa::vectorized;
use crate::cpu::reduce;
use crate::cpu::threads::for_chunks;
use crate::dtype::{DType, Element, Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{Grid, LINES, MATH, MAX_SUM_EXP, Program, WORKGROUP, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::spec::Spec;

/// `−∞` for logits `[…, n]` that `top_p` or `min_p` excludes, the others unchanged. With the weights
/// `w = exp((x − max x)/temperature)`, these are the `w` below `min_p`, and those below the largest
/// `t` such that `Σ w over w ≥ t` is `top_p·Σ w` or more. Rows whose maximum is NaN or infinite are
/// unchanged.
pub(super) struct Truncate {
    /// `1/temperature`
    pub(super) sharpness: f64,
    pub(super) top_p: f64,
    pub(super) min_p: f64,
}

impl Kernel for Truncate {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let n = last(inputs[0].spec);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<T>(), n, |start, y| {
                self.row(&x[start..][..n], y);
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let n = last(io.inputs[0].spec);
        let rows = io.inputs[0].spec.len() / n;
        let params = TruncateParams {
            lines: rows as u32,
            n: n as u32,
            sharpness: self.sharpness as f32,
            top_p: self.top_p as f32,
            min_p: self.min_p as f32,
        };
        // The passes of the bisection, of some exponentials each.
        let work = 32 * 8 * rows * n;
        io.launch(program(io.inputs[0].spec.dtype(), width(n)), params, Grid::lines(rows, work))
    }
}

impl Truncate {
    fn row<T: Float>(&self, x: &[T], y: &mut [T]) {
        y.copy_from_slice(x);
        let mut weights = vec![T::Acc::ZERO; x.len()];
        T::widen(x, &mut weights);
        let most = reduce::max(&weights).expect("a row is not empty");
        if !most.to_f64().is_finite() {
            return;
        }
        weigh(&mut weights, most, T::Acc::of(self.sharpness));
        let mut least = T::Acc::of(self.min_p);
        if self.top_p < 1.0 {
            let nucleus = smallest_of_nucleus(&mut weights.clone(), self.top_p);
            least = reduce::larger(least, nucleus);
        }
        for (y, weight) in y.iter_mut().zip(weights) {
            if weight < least {
                *y = T::of_f64(f64::NEG_INFINITY);
            }
        }
    }
}

vectorized! {
    /// `x = exp((x − most)·sharpness)`
    fn weigh<I: Isa, A: Real>(x: &mut [A], most: A, sharpness: A) {
        for x in x {
            *x = ((*x - most) * sharpness).exp::<I>();
        }
    }
}

/// The smallest of the largest weights whose sum is `top_p` of the whole, by halving what it may
/// be: `O(n)`.
fn smallest_of_nucleus<A: Real>(weights: &mut [A], top_p: f64) -> A {
    let needed = top_p * reduce::sum(weights).to_f64();
    let (mut candidates, mut above) = (weights, 0.0);
    while candidates.len() > 1 {
        let half = candidates.len() / 2;
        let descending = |a: &A, b: &A| b.to_f64().total_cmp(&a.to_f64());
        candidates.select_nth_unstable_by(half, descending);
        let (large, small) = candidates.split_at_mut(half);
        let sum = above + reduce::sum(large).to_f64();
        if sum >= needed {
            candidates = large;
        } else {
            (candidates, above) = (small, sum);
        }
    }
    candidates[0]
}

/// The size of the last dimension.
fn last(spec: &Spec) -> usize {
    spec.shape()[spec.shape().len() - 1]
}

params! { struct TruncateParams { lines: u32, n: u32, sharpness: f32, top_p: f32, min_p: f32 } }

fn program(elem: DType, width: u32) -> Program {
    let source = [MATH, MAX_SUM_EXP, WORKGROUP, wgsl!("truncate.wgsl"), LINES];
    Program::new::<TruncateParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    crate::gpu::WIDTHS.map(|width| program(elem, width)).into()
}
