//! AdamW's pass over the parameters.

use std::ops::Range;

use crate::DType;
use crate::cpu::CpuViewMut;
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::gpu::{Binding, Dims, Gpu, GpuView, Grid, Launch, Program, TENSORS, params};
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
pub(super) struct AdamWUpdate<'a> {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) eps: f64,
    /// For each parameter, its type and rates.
    pub(super) dtypes: Vec<DType>,
    pub(super) rates: Vec<GroupRates>,
    /// The members of each slab.
    pub(super) slabs: Vec<&'a [Member]>,
}

/// A parameter of a slab: parameters of one type whose moments, and master copies, are stored one
/// after the other, so that a kernel can bind those of many. On the CPU a slab has one member.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// The index of the parameter.
    pub(super) index: usize,
    /// Where its elements begin in the slab.
    pub(super) start: usize,
}

#[derive(Clone, Copy)]
pub(super) struct GroupRates {
    pub(super) lr: f64,
    /// The learning rate times the weight decay.
    pub(super) decay: f64,
}

/// The number of targets of a slab besides its parameters: `m`, `v` and, for f16 and bf16, the
/// master copies.
fn state_tensors(parameter: DType) -> usize {
    if has_master(parameter) { 3 } else { 2 }
}

/// Whether a parameter of this type is the rounded copy of a master copy.
pub(super) fn has_master(parameter: DType) -> bool {
    parameter != parameter.wider()
}

impl AdamWUpdate<'_> {
    /// Change the targets, which are `m`, `v`, master copies and parameters of each slab, given the
    /// plan and the gradients.
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
        for slab in &self.slabs {
            let [Member { index, .. }] = **slab else { unreachable!("one member on the CPU") };
            let (rates, grad) = (&self.rates[index], &grads[index]);
            let dtype = self.dtypes[index];
            let (own, rest) = left.split_at_mut(state_tensors(dtype) + 1);
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
        for slab in &self.slabs {
            let dtype = self.dtypes[slab[0].index];
            let (state, rest) = left.split_at(state_tensors(dtype));
            let (parameters, rest) = rest.split_at(slab.len());
            left = rest;
            let update = SlabUpdate { op, gpu, plan, state };
            if let ([member], [parameter]) = (*slab, parameters) {
                // Alone, it may be larger than a binding.
                let grad = &grads[member.index];
                for window in gpu.windows(grad.spec.len(), DType::F32.size()) {
                    self.launch(&update, &[(member, grad, parameter)], Some(window))?;
                }
                continue;
            }
            for grad_dtype in [DType::F32, DType::F16] {
                let tensors = slab.iter().map(|member| (member, &grads[member.index]));
                let tensors: Vec<_> = tensors
                    .zip(parameters)
                    .filter(|((_, grad), _)| grad.spec.dtype() == grad_dtype)
                    .map(|((member, grad), parameter)| (member, grad, parameter))
                    .collect();
                for tensors in tensors.chunks(gpu.max_tensors(2, 1 + state.len())) {
                    self.launch(&update, tensors, None)?;
                }
            }
        }
        Ok(())
    }

    /// Launch the update of some members of a slab, whose gradients have one type; or of a window of
    /// its only member.
    fn launch(
        &self,
        &SlabUpdate { op, gpu, plan, state }: &SlabUpdate,
        tensors: &[(&Member, &GpuView, &GpuView)],
        window: Option<Range<usize>>,
    ) -> Result<()> {
        let bind = |view| bind(view, window.as_ref());
        let mut params = AdamWParams {
            dims: Dims::default(),
            blocks: 0,
            beta1: self.beta1 as f32,
            gain1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            gain2: (1.0 - self.beta2) as f32,
            eps: self.eps as f32,
        };
        let mut elements = 0;
        for (rows, (member, grad, _)) in params.dims.chunks_mut(2).zip(tensors) {
            let GroupRates { lr, decay } = self.rates[member.index];
            let len = window.as_ref().map_or(grad.spec.len(), |window| window.len());
            rows[0] = [params.blocks, len as u32, member.start as u32, 0];
            rows[1] = [(lr as f32).to_bits(), (decay as f32).to_bits(), 0, 0];
            params.blocks += len.div_ceil(BLOCK) as u32;
            elements += len;
        }
        let (_, grad, parameter) = tensors[0];
        let grads = tensors.iter().map(|&(_, grad, _)| bind(grad));
        let parameters = tensors.iter().map(|&(_, _, parameter)| bind(parameter));
        gpu.launch(Launch {
            name: op,
            program: program(grad.spec.dtype(), parameter.spec.dtype(), tensors.len()),
            params,
            inputs: &[plan.all()].into_iter().chain(grads).collect::<Vec<_>>(),
            outputs: &state.iter().map(bind).chain(parameters).collect::<Vec<_>>(),
            grid: Grid::lines(params.blocks as usize, elements),
        })
    }
}

/// A tensor, or a window of it.
fn bind<'a>(view: &GpuView<'a>, window: Option<&Range<usize>>) -> Binding<'a> {
    match window {
        Some(window) => view.all().window(window.clone(), view.spec.dtype().size()),
        None => view.all(),
    }
}

/// What every launch of a slab has in common; `state` are `m`, `v` and master copies.
struct SlabUpdate<'a> {
    op: &'static str,
    gpu: &'a Gpu,
    plan: &'a GpuView<'a>,
    state: &'a [GpuView<'a>],
}

/// Elements of a parameter that a workgroup updates.
const BLOCK: usize = 4096;

impl AdamWUpdate<'_> {
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
    let [m, v, master @ .., parameter] = targets else { unreachable!("three targets or four") };
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
        dims: Dims,
        blocks: u32,
        beta1: f32,
        gain1: f32,
        beta2: f32,
        gain2: f32,
        eps: f32,
    }
}

fn program(grad: DType, parameter: DType, tensors: usize) -> Program {
    let (plan, kernel) = (include_str!("plan.wgsl"), include_str!("update.wgsl"));
    let block = ("BLOCK", BLOCK as u32);
    match has_master(parameter) {
        false => Program::new::<AdamWParams>(&[plan, kernel, TENSORS], &[("Grad", grad)], &[block])
            .for_each(include_str!("update_wide.wgsl"), tensors),
        true => Program::new::<AdamWParams>(
            &[plan, kernel, include_str!("master.wgsl"), TENSORS],
            &[("Grad", grad), ("Elem", parameter)],
            &[block],
        )
        .for_each(include_str!("update_master.wgsl"), tensors),
    }
}

/// Every program of this file, but for the number of tensors.
#[cfg(test)]
pub(super) fn programs() -> Vec<Program> {
    use DType::{F16, F32};
    let of = |(grad, parameter)| {
        [1, 2, crate::gpu::MAX_TENSORS].map(|tensors| program(grad, parameter, tensors))
    };
    [(F32, F32), (F16, F16), (F32, F16)].into_iter().flat_map(of).collect()
}
