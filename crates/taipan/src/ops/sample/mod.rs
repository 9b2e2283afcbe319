//! Sampling tokens from logits.

mod repetition;
mod truncate;

use smallvec::smallvec;

use self::truncate::Truncate;
use super::topk::TopK;
use crate::cpu::isa::{Isa, vectorized};
use crate::cpu::map::BLOCK;
use crate::cpu::math::Math;
use crate::cpu::reduce;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::cpu::threefry::threefry;
use crate::dtype::{DType, Element, Float, Real, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{
    FLOAT_ORDER, GREATEST, Grid, LINES, MATH, Program, THREEFRY, WORKGROUP, params, width,
};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run, run_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

/// The arguments of [`Tensor::sample`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it: below 1, likely tokens become likelier. At 0 the largest is taken.
    pub temperature: f64,
    /// Sample from this many of the largest logits only; all if absent.
    pub top_k: Option<usize>,
    /// Of these, sample from the most probable tokens only, as few as have this probability
    /// together (nucleus sampling; equally probable ones all or none); all at 1.
    pub top_p: f64,
    /// Sample only from tokens that are at least this times as probable as the most probable one;
    /// all at 0.
    pub min_p: f64,
    /// Samples with different seeds are independent.
    pub seed: u64,
    /// Samples with different steps are independent. Increment it for each token.
    pub step: u64,
}

/// Temperature 1, from all logits, with seed 0, at step 0.
impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0, seed: 0, step: 0 }
    }
}

impl Tensor {
    /// A token for each row of logits, sampled with the probabilities
    /// `softmax(logits/temperature)`: `[…, n]` to `[…]`, of type `u32`. Only the tokens need to be
    /// read from a GPU.
    ///
    /// The same logits, seed and step give the same tokens on every device, unless rounding decides
    /// between two. Rows are independent. A logit of −∞ is never sampled, unless all are −∞. In a
    /// row whose largest element is NaN or infinite, the first of these is taken, as by
    /// [`argmax`](Tensor::argmax).
    ///
    /// ```
    /// use taipan::{Device, Sampling, Tensor};
    ///
    /// let logits = Tensor::new(&[0f32, 4.0, 2.0, -1.0], &[1, 4], &Device::Cpu)?;
    /// let mut sampling = Sampling { top_k: Some(2), seed: 7, ..Sampling::default() };
    /// for step in 0..100 {
    ///     sampling.step = step;
    ///     let token = logits.sample(&sampling)?.item()?;
    ///     assert!(token == 1.0 || token == 2.0);
    /// }
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn sample(&self, sampling: &Sampling) -> Result<Tensor> {
        const OP: &str = "sample";
        let Sampling { temperature, top_k, top_p, min_p, .. } = *sampling;
        self.dtype().ensure_float(OP, "the input")?;
        ensure!(OP, self.rank() > 0, "the input is [], expected 1 dimension or more");
        let last = self.rank() - 1;
        let n = self.shape()[last];
        ensure!(OP, n > 0, "dimension {last} of {:?} is empty", self.shape());
        ensure!(
            OP,
            temperature.is_finite() && temperature >= 0.0,
            "the temperature is {temperature}, expected a finite number of 0 or more"
        );
        ensure!(OP, top_k != Some(0), "top_k is 0, expected 1 or more");
        let is_share = top_p > 0.0 && top_p <= 1.0;
        ensure!(OP, is_share, "top_p is {top_p}, expected above 0 and at most 1");
        ensure!(OP, (0.0..=1.0).contains(&min_p), "min_p is {min_p}, expected 0 to 1");
        if temperature == 0.0 {
            return self.argmax(last);
        }
        let draw = Draw::new(sampling);
        // The logits to sample from and, unless it is all of them, their tokens.
        let mut logits = match top_k {
            Some(k) if k < n => run(&TopK(k), &[self])?,
            _ => smallvec![self.detached()],
        };
        if top_p < 1.0 || min_p > 0.0 {
            let truncate = Truncate { sharpness: draw.sharpness, top_p, min_p };
            logits[0] = run_one(&truncate, &[&logits[0]])?;
        }
        run_one(&draw, &logits.iter().collect::<Vec<_>>())
    }
}

/// The Gumbel-max trick: the largest of `logit/temperature + noise` is at `i` with the probability
/// `softmax(logits/temperature)[i]`. The inputs are logits `[…, n]` and, unless these are the
/// logits of the tokens `0..n`, the tokens `[…, n]`.
struct Draw {
    /// The key of the noise; row and token are the counter.
    key: [u32; 2],
    /// `1/temperature`, clamped to positive finite f32.
    sharpness: f64,
}

impl Draw {
    fn new(sampling: &Sampling) -> Draw {
        let words = |x: u64| [x as u32, (x >> 32) as u32];
        Draw {
            // For one seed, different steps have different keys.
            key: threefry(words(sampling.seed), words(sampling.step)),
            sharpness: (1.0 / sampling.temperature)
                .clamp(f32::MIN_POSITIVE as f64, f32::MAX as f64),
        }
    }
}

impl Kernel for Draw {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (n, rows) = inputs[0].shape().split_last().expect("checked by `sample`");
        let out = Spec::new(self.name(), rows, DType::U32)?;
        ensure!(self.name(), u32::try_from(*n).is_ok(), "{n} elements exceed a u32 index");
        let rows = out.len();
        ensure!(self.name(), u32::try_from(rows).is_ok(), "{rows} rows exceed a u32 index");
        Ok(smallvec![out])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        // The approximate cost of an element, relative to other kernels.
        const COST: usize = 16;
        let n = inputs[0].spec.shape()[outputs[0].spec.shape().len()];
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            let tokens = inputs.get(1).map(|tokens| tokens.as_slice::<u32>());
            for_chunks(outputs[0].as_mut_slice::<u32>(), GRAIN.div_ceil(COST * n), |start, chunk| {
                for (i, out) in chunk.iter_mut().enumerate() {
                    let at = (start + i) * n..(start + i + 1) * n;
                    let tokens = tokens.map(|tokens| &tokens[at.clone()]);
                    let j = self.row(&x[at], tokens, (start + i) as u32);
                    *out = tokens.map_or(j as u32, |tokens| tokens[j]);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let rows = io.outputs[0].spec.len();
        let n = io.inputs[0].spec.len() / rows;
        let tokens = if io.inputs.len() == 1 { Tokens::All } else { Tokens::Some };
        let params = SampleParams {
            lines: rows as u32,
            n: n as u32,
            key_low: self.key[0],
            key_high: self.key[1],
            sharpness: self.sharpness as f32,
        };
        let program = program(io.inputs[0].spec.dtype(), tokens, width(n));
        io.launch(program, params, Grid::lines(rows, 64 * rows * n))
    }
}

impl Draw {
    /// The index of the sampled element of a row.
    fn row<T: Float>(&self, x: &[T], tokens: Option<&[u32]>, row: u32) -> usize {
        let widen = |first: usize, wide: &mut [T::Acc]| {
            T::widen(&x[first..][..wide.len()], wide);
        };
        let (most, first) = reduce::first_largest(x.len(), widen);
        if !most.to_f64().is_finite() {
            return first;
        }
        let mut numbers = [0; BLOCK];
        let scores = |first: usize, wide: &mut [T::Acc]| {
            widen(first, wide);
            let numbers = &mut numbers[..wide.len()];
            match tokens {
                Some(tokens) => numbers.copy_from_slice(&tokens[first..][..wide.len()]),
                None => numbers.iter_mut().zip(first as u32..).for_each(|(to, j)| *to = j),
            }
            let sharpness = T::Acc::of(self.sharpness);
            add_noise(wide, numbers, self.key, row, [most, sharpness]);
        };
        reduce::first_largest(x.len(), scores).1
    }
}

vectorized! {
    /// `x = (x − most)·sharpness + noise`, where the noise depends on `key`, the token and the row.
    fn add_noise<I: Isa, A: Real>(
        x: &mut [A],
        tokens: &[u32],
        key: [u32; 2],
        row: u32,
        scale: [A; 2],
    ) {
        let [most, sharpness] = scale;
        for (x, token) in x.iter_mut().zip(tokens) {
            let noise = gumbel::<I>(threefry(key, [*token, row])[0]);
            *x = (*x - most) * sharpness + A::of(noise as f64);
        }
    }
}

/// `−ln(−ln(1 − w))`, where `w` in (0, 1) has the leading 24 significant bits of the random bits,
/// which every device converts exactly. A small `w` gives a large result, and is exact.
#[inline(always)]
fn gumbel<I: Isa>(bits: u32) -> f32 {
    let positive = bits | 1;
    let digits = positive & (0xffff_ff00 >> positive.leading_zeros());
    let w = digits as f32 * (1.0 / 4294967296.0);
    -Math::ln::<I>(-Math::ln_1p::<I>(-w))
}

/// The tokens of a row of logits: all, or some that are given.
#[derive(Clone, Copy)]
enum Tokens {
    All,
    Some,
}

params! { struct SampleParams { lines: u32, n: u32, key_low: u32, key_high: u32, sharpness: f32 } }

fn program(elem: DType, tokens: Tokens, width: u32) -> Program {
    let tokens = match tokens {
        Tokens::All => wgsl!("all_tokens.wgsl"),
        Tokens::Some => wgsl!("some_tokens.wgsl"),
    };
    let kernel = wgsl!("sample.wgsl");
    let source = [MATH, FLOAT_ORDER, GREATEST, WORKGROUP, THREEFRY, tokens, kernel, LINES];
    Program::new::<SampleParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let of = |tokens| crate::gpu::WIDTHS.map(|width| program(elem, tokens, width));
    let draw = [Tokens::All, Tokens::Some].into_iter().flat_map(of);
    draw.chain(truncate::programs(elem)).chain(repetition::programs(elem)).collect()
}
