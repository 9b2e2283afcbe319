//! The pass of an optimiser over the parameters.

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

/// The formula of a step, with `g` the gradient times the plan's factor, for each element.
#[derive(Clone, Copy)]
pub enum Rule {
    /// ```text
    /// m = β₁m + (1−β₁)g      v = β₂v + (1−β₂)g²
    /// θ = θ − (decay·θ + lr·m̂/(√v̂ + eps))
    /// ```
    ///
    /// Written as a difference, because `1 − decay` in f32 would have few digits of a small decay.
    AdamW { beta1: f64, beta2: f64, eps: f64 },
    /// ```text
    /// g = g + decay·θ      m = momentum·m + g
    /// θ = θ − lr·(of_moment·m + of_grad·g)
    /// ```
    Sgd { momentum: f64, of_moment: f64, of_grad: f64 },
}

impl Rule {
    /// The decay rates of the moments that are divided by `1 − βᵗ`.
    pub(super) fn bias_corrected(self) -> [f64; 2] {
        match self {
            Rule::AdamW { beta1, beta2, .. } => [beta1, beta2],
            Rule::Sgd { .. } => [0.0; 2],
        }
    }

    /// The formula's `decay`.
    pub(super) fn decay(self, lr: f64, weight_decay: f64) -> f64 {
        match self {
            Rule::AdamW { .. } => lr * weight_decay,
            Rule::Sgd { .. } => weight_decay,
        }
    }

    fn moments(self) -> usize {
        match self {
            Rule::AdamW { .. } => 2,
            Rule::Sgd { .. } => 1,
        }
    }
}

pub(super) struct Update<'a> {
    pub(super) op: &'static str,
    pub(super) rule: Rule,
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
    /// See [`Rule`].
    pub(super) decay: f64,
}

/// Whether a parameter of this type is the rounded copy of a master copy.
pub(super) fn has_master(parameter: DType) -> bool {
    parameter != parameter.wider()
}

impl Update<'_> {
    /// The number of targets of a slab besides its parameters: the moments and, for f16 and bf16,
    /// the master copies.
    fn state_tensors(&self, parameter: DType) -> usize {
        self.rule.moments() + usize::from(has_master(parameter))
    }

    /// Change the targets, which are moments, master copies and parameters of each slab, given the
    /// plan and the gradients.
    pub(super) fn run(&self, inputs: &[&Tensor], targets: &mut [&mut Tensor]) -> Result<()> {
        update((self.op, ""), inputs, targets, |io| self.cpu(io), |io| self.gpu(io))
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
            let (own, rest) = left.split_at_mut(self.state_tensors(dtype) + 1);
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
            let (state, rest) = left.split_at(self.state_tensors(dtype));
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

    /// Launch the update of some members of a slab, whose gradients have one type; or of a window
    /// of its only member.
    fn launch(
        &self,
        &SlabUpdate { op, gpu, plan, state }: &SlabUpdate,
        tensors: &[(&Member, &GpuView, &GpuView)],
        window: Option<Range<usize>>,
    ) -> Result<()> {
        let bind = |view| bind(view, window.as_ref());
        let [beta1, gain1, beta2, gain2, eps] = match self.rule {
            Rule::AdamW { beta1, beta2, eps } => [beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps],
            Rule::Sgd { momentum, of_moment, of_grad } => [momentum, of_moment, 0.0, of_grad, 0.0],
        }
        .map(|x| x as f32);
        let dims = Dims::default();
        let mut params = UpdateParams { dims, blocks: 0, beta1, gain1, beta2, gain2, eps };
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
            program: program(self.rule, grad.spec.dtype(), parameter.spec.dtype(), tensors.len()),
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

/// What every launch of a slab has in common; `state` are moments and master copies.
struct SlabUpdate<'a> {
    op: &'static str,
    gpu: &'a Gpu,
    plan: &'a GpuView<'a>,
    state: &'a [GpuView<'a>],
}

/// Elements of a parameter that a workgroup updates.
const BLOCK: usize = 4096;

impl Update<'_> {
    fn coefficients<A: Real>(&self, plan: &[f64], rates: &GroupRates) -> Coefficients<A> {
        let factor = A::of(plan[plan::FACTOR]);
        let decay = A::of(rates.decay);
        match self.rule {
            Rule::AdamW { beta1, beta2, eps } => Coefficients::AdamW(AdamWCoefficients {
                factor,
                beta1: A::of(beta1),
                gain1: A::of(1.0 - beta1),
                beta2: A::of(beta2),
                gain2: A::of(1.0 - beta2),
                unbias_root_v: A::of(plan[plan::UNBIAS_ROOT_V]),
                eps: A::of(eps),
                rate: A::of(rates.lr * plan[plan::UNBIAS_M]),
                decay,
            }),
            Rule::Sgd { momentum, of_moment, of_grad } => Coefficients::Sgd(SgdCoefficients {
                factor,
                momentum: A::of(momentum),
                of_moment: A::of(of_moment),
                of_grad: A::of(of_grad),
                rate: A::of(rates.lr),
                decay,
            }),
        }
    }
}

/// The coefficients of the update, in the type of its arithmetic.
#[derive(Clone, Copy)]
enum Coefficients<A> {
    AdamW(AdamWCoefficients<A>),
    Sgd(SgdCoefficients<A>),
}

#[derive(Clone, Copy)]
struct AdamWCoefficients<A> {
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

#[derive(Clone, Copy)]
struct SgdCoefficients<A> {
    factor: A,
    momentum: A,
    of_moment: A,
    of_grad: A,
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
    let [m, rest @ .., parameter] = targets else { unreachable!("two targets or more") };
    let mut rest = rest.iter_mut().map(|tensor| tensor.as_mut_slice().chunks_mut(GRAIN));
    let mut vs = match coefficients {
        Coefficients::AdamW(_) => rest.next(),
        Coefficients::Sgd(_) => None,
    };
    let mut masters = rest.next();
    let chunks = parameter.as_mut_slice::<T>().chunks_mut(GRAIN);
    let chunks = chunks.zip(m.as_mut_slice().chunks_mut(GRAIN)).zip(grad.chunks(GRAIN));
    tasks.extend(chunks.map(|((parameter, m), grad)| -> UpdateTask<'a> {
        let v = vs.as_mut().and_then(Iterator::next).unwrap_or_default();
        let master = masters.as_mut().and_then(Iterator::next);
        Box::new(move || {
            update_chunk(coefficients, grad, ParameterChunk { parameter, m, v, master })
        })
    }));
}

struct ParameterChunk<'a, T: Float> {
    parameter: &'a mut [T],
    m: &'a mut [T::Acc],
    /// Empty if the rule has no second moment.
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
        let m = &mut chunk.m[at.clone()];
        let grad = widened(&grad[at.clone()], &mut wide[..at.len()]);
        let mut update = |theta: &mut [T::Acc]| match coefficients {
            Coefficients::AdamW(c) => adamw_block(c, grad, theta, m, &mut chunk.v[at.clone()]),
            Coefficients::Sgd(c) => sgd_block(c, grad, theta, m),
        };
        match &mut chunk.master {
            Some(master) => {
                let theta = &mut master[at.clone()];
                update(theta);
                T::narrow(theta, parameter);
            }
            None => {
                update(T::as_acc_mut(parameter).expect("a parameter without master is wide"));
            }
        }
    }
}

vectorized! {
    fn adamw_block<I: Isa, A: Real>(
        coefficients: AdamWCoefficients<A>,
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

vectorized! {
    fn sgd_block<I: Isa, A: Real>(
        coefficients: SgdCoefficients<A>,
        grad: &[A],
        theta: &mut [A],
        m: &mut [A],
    ) {
        for ((theta, m), grad) in theta.iter_mut().zip(m).zip(grad) {
            let g = coefficients.decay.fma::<I>(*theta, coefficients.factor * *grad);
            *m = coefficients.momentum.fma::<I>(*m, g);
            let step = coefficients.of_moment.fma::<I>(*m, coefficients.of_grad * g);
            *theta = *theta - coefficients.rate * step;
        }
    }
}

params! {
    // For SGD, `beta1` is the momentum, and `gain1` and `gain2` are of_moment and of_grad.
    struct UpdateParams {
        dims: Dims,
        blocks: u32,
        beta1: f32,
        gain1: f32,
        beta2: f32,
        gain2: f32,
        eps: f32,
    }
}

fn program(rule: Rule, grad: DType, parameter: DType, tensors: usize) -> Program {
    let state = wgsl!("update.wgsl");
    let kernel = match rule {
        Rule::AdamW { .. } => wgsl!("adamw.wgsl"),
        Rule::Sgd { .. } => wgsl!("sgd.wgsl"),
    };
    let own = [("BLOCK", BLOCK as u32), ("MOMENTS", rule.moments() as u32)];
    let constants = [&own[..], plan::HEADER].concat();
    match has_master(parameter) {
        false => {
            Program::new::<UpdateParams>(&[state, kernel, TENSORS], &[("Grad", grad)], &constants)
                .for_each(wgsl!("update_wide.wgsl"), tensors)
        }
        true => Program::new::<UpdateParams>(
            &[state, kernel, wgsl!("master.wgsl"), TENSORS],
            &[("Grad", grad), ("Elem", parameter)],
            &constants,
        )
        .for_each(wgsl!("update_master.wgsl"), tensors),
    }
}

/// Every program of this file, but for the number of tensors.
#[cfg(test)]
pub(super) fn programs() -> Vec<Program> {
    use DType::{F16, F32};
    let of = |(rule, grad, parameter)| {
        [1, 2, crate::gpu::MAX_TENSORS].map(|tensors| program(rule, grad, parameter, tensors))
    };
    let rules = [
        Rule::AdamW { beta1: 0.0, beta2: 0.0, eps: 0.0 },
        Rule::Sgd { momentum: 0.0, of_moment: 0.0, of_grad: 0.0 },
    ];
    let types = [(F32, F32), (F16, F16), (F32, F16)];
    let all = rules.into_iter().flat_map(|rule| types.map(|(grad, own)| (rule, grad, own)));
    all.flat_map(of).collect()
}
