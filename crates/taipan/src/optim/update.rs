//! AdamW's pass over the parameters.

use std::ops::Range;

use crate::DType;
use crate::cpu::CpuViewMut;
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::gpu::{Binding, ELEMENTS, GpuView, Grid, Launch, Program, params};
use crate::kernel::{CpuIo, GpuIo, update};
use crate::tensor::Tensor;

use super::decide::plan;

/// With `g` the gradient times the plan's factor, for each element:
///
/// ```text
/// m = β₁m + (1−β₁)g      v = β₂v + (1−β₂)g²
/// θ = θ − (decay·θ + lr·m̂/(√v̂ + eps))
/// ```
///
/// Written as a difference, because `1 − decay` in f32 would have few digits of a small decay.
pub(super) struct AdamWUpdate {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) eps: f64,
    /// For each parameter.
    pub(super) rates: Vec<GroupRates>,
}

#[derive(Clone, Copy)]
pub(super) struct GroupRates {
    pub(super) lr: f64,
    /// The learning rate times the weight decay.
    pub(super) decay: f64,
}

/// The number of targets of a parameter: `m`, `v`, itself and, for f16 and bf16, its master copy.
fn targets_of(parameter: DType) -> usize {
    if has_master(parameter) { 4 } else { 3 }
}

/// Whether a parameter of this type is the rounded copy of a master copy.
pub(super) fn has_master(parameter: DType) -> bool {
    parameter != parameter.wider()
}

impl AdamWUpdate {
    /// Change the targets of each parameter, given the plan and the gradients.
    pub(super) fn run(&self, inputs: &[&Tensor], targets: &mut [&mut Tensor]) -> Result<()> {
        update(("adamw", ""), inputs, targets, |io| self.cpu(io), |io| self.gpu(io))
    }

    fn cpu(&self, CpuIo { inputs, outputs: targets }: CpuIo) -> Result<()> {
        let (plan, grads) = (inputs[0].as_slice::<f64>(), &inputs[1..]);
        if plan[plan::APPLY] == 0.0 {
            return Ok(());
        }
        let mut tasks = Vec::new();
        let mut left = targets;
        for (rates, grad) in self.rates.iter().zip(grads) {
            let dtype = left[2].spec.dtype();
            let (own, rest) = left.split_at_mut(targets_of(dtype));
            left = rest;
            with_dtype!(dtype, T: Float => {
                type Wide = <T as Float>::Acc;
                let coefficients = self.coefficients::<Wide>(plan, rates);
                match grad.spec.dtype() == dtype {
                    true => add_tasks::<T, T>(&mut tasks, coefficients, grad.as_slice(), own),
                    false => add_tasks::<T, Wide>(&mut tasks, coefficients, grad.as_slice(), own),
                }
            });
        }
        let work = grads.iter().map(|grad| grad.spec.len()).sum();
        for_tasks(tasks, work, |task| task());
        Ok(())
    }

    fn gpu(&self, GpuIo { op, gpu, inputs, outputs: targets }: GpuIo) -> Result<()> {
        let (plan, grads) = (&inputs[0], &inputs[1..]);
        let mut left = targets;
        for (rates, grad) in self.rates.iter().zip(grads) {
            let dtype = left[2].spec.dtype();
            let (own, rest) = left.split_at(targets_of(dtype));
            left = rest;
            for window in gpu.windows(grad.spec.len(), DType::F32.size()) {
                let outputs: Vec<_> =
                    own.iter().map(|target| bind_window(target, &window)).collect();
                gpu.launch(Launch {
                    name: op,
                    program: program(grad.spec.dtype(), dtype),
                    params: AdamWParams {
                        len: window.len() as u32,
                        lr: rates.lr as f32,
                        decay: rates.decay as f32,
                        beta1: self.beta1 as f32,
                        gain1: (1.0 - self.beta1) as f32,
                        beta2: self.beta2 as f32,
                        gain2: (1.0 - self.beta2) as f32,
                        eps: self.eps as f32,
                    },
                    inputs: &[plan.all(), bind_window(grad, &window)],
                    outputs: &outputs,
                    grid: Grid::elements(window.len()),
                })?;
            }
        }
        Ok(())
    }
}

fn bind_window<'a>(view: &GpuView<'a>, window: &Range<usize>) -> Binding<'a> {
    view.all().window(window.clone(), view.spec.dtype().size())
}

impl AdamWUpdate {
    fn coefficients<A: Real>(&self, plan: &[f64], rates: &GroupRates) -> Coefficients<A> {
        Coefficients {
            factor: A::of(plan[plan::FACTOR]),
            beta1: A::of(self.beta1),
            gain1: A::of(1.0 - self.beta1),
            beta2: A::of(self.beta2),
            gain2: A::of(1.0 - self.beta2),
            unbias_root_v: A::of(plan[plan::UNBIAS_ROOT_V]),
            eps: A::of(self.eps),
            rate: A::of(rates.lr * plan[plan::UNBIAS_M]),
            decay: A::of(rates.decay),
        }
    }
}

/// The coefficients of the update, in the type of its arithmetic.
#[derive(Clone, Copy)]
struct Coefficients<A> {
    factor: A,
    beta1: A,
    gain1: A,
    beta2: A,
    gain2: A,
    unbias_root_v: A,
    eps: A,
    /// The learning rate times `unbias_m`.
    rate: A,
    decay: A,
}

/// The update of a chunk of a parameter. The chunks of all parameters are distributed over the
/// threads together, because most parameters are too small for a second thread.
type UpdateTask<'a> = Box<dyn FnOnce() + Send + 'a>;

fn add_tasks<'a, T: Float, G: Float<Acc = T::Acc>>(
    tasks: &mut Vec<UpdateTask<'a>>,
    coefficients: Coefficients<T::Acc>,
    grad: &'a [G],
    targets: &'a mut [CpuViewMut],
) {
    let [m, v, parameter, master @ ..] = targets else { unreachable!("three targets or four") };
    let mut masters = master.first_mut().map(|master| master.as_mut_slice().chunks_mut(GRAIN));
    let moments = m.as_mut_slice().chunks_mut(GRAIN).zip(v.as_mut_slice().chunks_mut(GRAIN));
    let chunks =
        parameter.as_mut_slice::<T>().chunks_mut(GRAIN).zip(moments).zip(grad.chunks(GRAIN));
    tasks.extend(chunks.map(|((parameter, (m, v)), grad)| -> UpdateTask<'a> {
        let master = masters.as_mut().and_then(|masters| masters.next());
        Box::new(move || {
            update_chunk(coefficients, grad, ParameterChunk { parameter, m, v, master })
        })
    }));
}

struct ParameterChunk<'a, T: Float> {
    parameter: &'a mut [T],
    m: &'a mut [T::Acc],
    v: &'a mut [T::Acc],
    master: Option<&'a mut [T::Acc]>,
}

fn update_chunk<T: Float, G: Float<Acc = T::Acc>>(
    coefficients: Coefficients<T::Acc>,
    grad: &[G],
    mut chunk: ParameterChunk<T>,
) {
    const BLOCK: usize = 1024;
    let mut wide = [T::Acc::ZERO; BLOCK];
    for start in (0..grad.len()).step_by(BLOCK) {
        let at = start..(start + BLOCK).min(grad.len());
        let parameter = &mut chunk.parameter[at.clone()];
        let (m, v) = (&mut chunk.m[at.clone()], &mut chunk.v[at.clone()]);
        let grad = widened(&grad[at.clone()], &mut wide[..at.len()]);
        match &mut chunk.master {
            Some(master) => {
                let theta = &mut master[at];
                update_block(coefficients, grad, theta, m, v);
                T::narrow(theta, parameter);
            }
            None => {
                let theta = T::as_acc_mut(parameter).expect("a parameter without master is wide");
                update_block(coefficients, grad, theta, m, v);
            }
        }
    }
}

vectorized! {
    fn update_block<I: Isa, A: Real>(
        coefficients: Coefficients<A>,
        grad: &[A],
        theta: &mut [A],
        m: &mut [A],
        v: &mut [A],
    ) {
        for (((theta, m), v), grad) in theta.iter_mut().zip(m).zip(v).zip(grad) {
            let g = coefficients.factor * *grad;
            *m = coefficients.beta1.fma::<I>(*m, coefficients.gain1 * g);
            *v = coefficients.beta2.fma::<I>(*v, coefficients.gain2 * g * g);
            let root = coefficients.unbias_root_v.fma::<I>(v.sqrt(), coefficients.eps);
            *theta = *theta - coefficients.decay.fma::<I>(*theta, coefficients.rate * *m / root);
        }
    }
}

params! {
    struct AdamWParams {
        len: u32,
        lr: f32,
        decay: f32,
        beta1: f32,
        gain1: f32,
        beta2: f32,
        gain2: f32,
        eps: f32,
    }
}

fn program(grad: DType, parameter: DType) -> Program {
    let (kernel, rounding) = (include_str!("update.wgsl"), include_str!("update_master.wgsl"));
    let plan = include_str!("plan.wgsl");
    match has_master(parameter) {
        false => Program::new::<AdamWParams>(
            &[plan, kernel, include_str!("update_wide.wgsl"), ELEMENTS],
            &[("Grad", grad)],
            &[],
        ),
        true => Program::new::<AdamWParams>(
            &[plan, kernel, rounding, ELEMENTS],
            &[("Grad", grad), ("Elem", parameter)],
            &[],
        ),
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs() -> Vec<Program> {
    use DType::{F16, F32};
    [(F32, F32), (F16, F16), (F32, F16)].map(|(grad, parameter)| program(grad, parameter)).into()
}
