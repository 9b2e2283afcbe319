//! Decides on the device, from the norm of the gradients, whether a step is applied, and how.

use crate::cpu::reduce::sum;
use crate::dtype::{Element, with_dtype};
use crate::error::Result;
use crate::gpu::{GROUP, Grid, LINES, MATH, Program, SUM, WORKGROUP, params};
use crate::kernel::{CpuIo, GpuIo, update};
use crate::tensor::Tensor;
use crate::{DType, Device};

/// Declare the indices of named values in a tensor, and the same for the header of a kernel.
macro_rules! indices {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($name),* }
        $($(#[$doc])* pub(crate) const $name: usize = Index::$name as usize;)*
        pub(crate) const LEN: usize = HEADER.len();
        pub(crate) const HEADER: &[(&str, u32)] = &[$((stringify!($name), $name as u32)),*];
    };
}

/// The words of the counters, a `u32` tensor: the history of the optimiser.
pub(super) mod counters {
    indices! {
        /// Steps applied.
        STEPS,
        /// Steps skipped.
        SKIPPED,
        /// Steps applied since the loss scale changed.
        SINCE,
        /// The bits of the loss scale as an f32.
        SCALE,
        /// The bits of the last norm as an f32.
        NORM,
    }
}

/// The values of the plan, f64 on the CPU and f32 on a GPU: how `update` applies a gradient.
pub(super) mod plan {
    indices! {
        /// 1 if the step is applied, 0 if it is skipped.
        APPLY,
        /// The factor of gradients: clipping, and the inverse of the loss scale.
        FACTOR,
        /// `1/(1 − β₁ᵗ)`.
        UNBIAS_M,
        /// `1/√(1 − β₂ᵗ)`.
        UNBIAS_ROOT_V,
    }
}

/// The bounds of the loss scale.
pub(super) const MIN_LOSS_SCALE: f64 = 1.0 / MAX_LOSS_SCALE;
pub(super) const MAX_LOSS_SCALE: f64 = (1 << 24) as f64;

/// From the sums of squares, the new counters, loss scale and plan:
///
/// ```text
/// norm = √(Σ sums)/scale
/// finite:  t += 1;  factor = min(1, max_norm/(norm + 1e-6))/scale;
///          every growth_interval steps scale *= 2
/// else:    skipped += 1;  scale /= 2
/// ```
///
/// A norm whose square overflows the type of the moments counts as infinite: `v` would become
/// infinite.
pub(super) struct Decide {
    pub(super) op: &'static str,
    pub(super) max_norm: Option<f64>,
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    /// None if the loss scale is constant.
    pub(super) growth_interval: Option<u32>,
}

/// Avoids a division by a norm of 0.
const NORM_EPS: f64 = 1e-6;

/// The greatest norm whose square is finite, given the type of the loss scale: f64 if all
/// parameters are f64.
fn max_finite_norm(scale: DType) -> f64 {
    if scale == DType::F64 { f64::MAX.sqrt() } else { (f32::MAX as f64).sqrt() }
}

impl Decide {
    /// Change the optimiser's `counters`, `scale` and `plan`, given the sums of squares.
    pub(super) fn run(&self, sums: &Tensor, mut targets: [&mut Tensor; 3]) -> Result<()> {
        let cpu = |CpuIo { inputs, outputs: targets }: CpuIo| {
            let [counters, scale, plan] = targets else { unreachable!("three targets") };
            let (counters, plan) = (counters.as_mut_slice::<u32>(), plan.as_mut_slice::<f64>());
            with_dtype!(scale.spec.dtype(), T: Float + f64 => {
                let scale = &mut scale.as_mut_slice::<T>()[0];
                let norm = sum(inputs[0].as_slice::<f64>()).sqrt() / scale.to_f64();
                let norm = if norm > max_finite_norm(T::DTYPE) { f64::INFINITY } else { norm };
                *scale = T::of_f64(self.decide(norm, scale.to_f64(), counters, plan));
            });
            Ok(())
        };
        // β = 0 has no logarithm; 1 − e⁻¹⁰⁰ is 1, too.
        let ln = |beta: f64| beta.ln().max(-100.0) as f32;
        let params = DecideParams {
            lines: 1,
            len: sums.len() as u32,
            growth_interval: self.growth_interval.unwrap_or(0),
            max_norm: self.max_norm.map_or(f32::MAX, |norm| norm as f32),
            norm_eps: NORM_EPS as f32,
            max_finite_norm: max_finite_norm(DType::F32) as f32,
            min_loss_scale: MIN_LOSS_SCALE as f32,
            max_loss_scale: MAX_LOSS_SCALE as f32,
            ln_beta1: ln(self.beta1),
            ln_beta2: ln(self.beta2),
        };
        let gpu = |io: GpuIo| io.launch(program(), params, Grid::lines(1, sums.len()));
        update((self.op, ""), &[sums], &mut targets, cpu, gpu)
    }

    /// The next loss scale.
    fn decide(&self, norm: f64, scale: f64, counters: &mut [u32], plan: &mut [f64]) -> f64 {
        let mut next = scale;
        if norm.is_finite() {
            counters[counters::STEPS] = counters[counters::STEPS].saturating_add(1);
            counters[counters::SINCE] = counters[counters::SINCE].saturating_add(1);
            if self.growth_interval.is_some_and(|interval| counters[counters::SINCE] >= interval) {
                (next, counters[counters::SINCE]) = ((2.0 * scale).min(MAX_LOSS_SCALE), 0);
            }
            let clip = self.max_norm.map_or(1.0, |most| (most / (norm + NORM_EPS)).min(1.0));
            let t = counters[counters::STEPS] as f64;
            plan[plan::FACTOR] = clip / scale;
            plan[plan::UNBIAS_M] = 1.0 / -(t * self.beta1.ln()).exp_m1();
            plan[plan::UNBIAS_ROOT_V] = 1.0 / (-(t * self.beta2.ln()).exp_m1()).sqrt();
        } else {
            counters[counters::SKIPPED] = counters[counters::SKIPPED].saturating_add(1);
            if self.growth_interval.is_some() {
                (next, counters[counters::SINCE]) = ((0.5 * scale).max(MIN_LOSS_SCALE), 0);
            }
        }
        plan[plan::APPLY] = norm.is_finite() as u32 as f64;
        counters[counters::SCALE] = (next as f32).to_bits();
        counters[counters::NORM] = (norm as f32).to_bits();
        next
    }
}

params! {
    struct DecideParams {
        lines: u32,
        len: u32,
        growth_interval: u32,
        max_norm: f32,
        norm_eps: f32,
        max_finite_norm: f32,
        min_loss_scale: f32,
        max_loss_scale: f32,
        ln_beta1: f32,
        ln_beta2: f32,
    }
}

pub(super) fn program() -> Program {
    let source = [MATH, SUM, WORKGROUP, wgsl!("decide.wgsl"), LINES];
    let consts = [&[("WIDTH", GROUP as u32)], counters::HEADER, plan::HEADER].concat();
    Program::new::<DecideParams>(&source, &[], &consts)
}

/// The counters before the first step, at this loss scale.
pub(super) fn initial_counters(scale: f64) -> [u32; counters::LEN] {
    let mut words = [0; counters::LEN];
    words[counters::SCALE] = (scale as f32).to_bits();
    words
}

/// The type of the plan.
pub(super) fn plan_dtype(device: &Device) -> DType {
    match device {
        Device::Cpu => DType::F64,
        Device::Gpu(_) => DType::F32,
    }
}
