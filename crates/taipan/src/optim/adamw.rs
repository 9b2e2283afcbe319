//! AdamW and its state.

use std::collections::HashMap;

use crate::autograd::Grads;
use crate::error::{Error, Result, ensure};
use crate::kernel::run_one;
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::{DType, Device};

use super::decide::{
    Decide, MAX_LOSS_SCALE, MIN_LOSS_SCALE, counters, initial_counters, plan, plan_dtype,
};
use super::slab::Slab;
use super::square_sums::SquareSums;
use super::update::{AdamWUpdate, GroupRates};

const OP: &str = "adamw";

/// The options that all parameters share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The decay rate of the first moment; 0.9.
    pub beta1: f64,
    /// The decay rate of the second moment; 0.999.
    pub beta2: f64,
    /// Added to the root of the second moment; 1e-8.
    pub eps: f64,
    /// Gradients are clipped to this norm over all parameters; no clipping by default.
    pub max_norm: Option<f64>,
    /// The loss is multiplied by it before backward; no scaling by default.
    pub loss_scale: LossScale,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        AdamWOptions {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            max_norm: None,
            loss_scale: LossScale::None,
        }
    }
}

/// The options of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// A factor of the learning rate; 1.
    pub lr_scale: f64,
    /// The decoupled weight decay, multiplied by the learning rate; 0.01.
    pub weight_decay: f64,
}

impl Default for Group {
    fn default() -> Self {
        Group { lr_scale: 1.0, weight_decay: 0.01 }
    }
}

impl Group {
    /// No weight decay: for biases, weights of norms, `A_log` and `D`.
    pub fn without_decay() -> Group {
        Group { weight_decay: 0.0, ..Group::default() }
    }
}

/// The factor of the loss before backward, which keeps small gradients from underflowing in f16.
/// Steps divide by it. It is a power of two, from 2⁻²⁴ to 2²⁴: only the exponents of gradients
/// change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// 1, always: for f32, f64 and bf16.
    None,
    /// As large as the gradients allow: halved by each skipped step, doubled after
    /// `growth_interval` consecutive steps that are not skipped.
    Dynamic {
        /// The initial loss scale.
        initial: f64,
        /// The number of steps before it is doubled.
        growth_interval: u32,
    },
}

impl LossScale {
    /// An initial scale of 65536 and a growth interval of 2000 steps, as is usual for f16.
    pub fn dynamic() -> LossScale {
        LossScale::Dynamic { initial: 65536.0, growth_interval: 2000 }
    }

    fn initial(self) -> f64 {
        match self {
            LossScale::None => 1.0,
            LossScale::Dynamic { initial, .. } => initial,
        }
    }
}

/// The status of the optimiser after the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// The norm of the last gradients, over all parameters, without loss scale and before clipping,
    /// rounded to f32. If it is not finite, the step was skipped. 0 before the first step.
    pub norm: f64,
    /// Steps that were applied.
    pub steps: u64,
    /// Steps that were skipped.
    pub skipped: u64,
    /// The loss scale of the next step.
    pub loss_scale: f64,
}

/// AdamW (Loshchilov & Hutter 2019): Adam with decoupled weight decay, here with clipping by the
/// global norm and a loss scale, all on the device.
///
/// ```text
/// m = β₁m + (1−β₁)g      v = β₂v + (1−β₂)g²      m̂ = m/(1−β₁ᵗ)      v̂ = v/(1−β₂ᵗ)
/// θ = θ·(1 − lr·weight_decay) − lr·m̂/(√v̂ + eps)
/// ```
///
/// The moments `m` and `v` are f32 for parameters in f16, bf16 and f32, and f64 for f64. A
/// parameter in f16 or bf16 has a master copy in f32, which steps update; the parameter is its
/// rounded copy. If a program changes such a parameter itself, it needs a new `AdamW`.
///
/// A step whose gradient norm is not finite changes only the count of skipped steps and the loss
/// scale: see [`status`](AdamW::status). A norm above 1.8e19, whose square overflows f32, counts as
/// infinite unless all parameters are f64.
pub struct AdamW {
    options: AdamWOptions,
    slots: Vec<Slot>,
    /// The moments and master copies of the parameters, of each in one slab.
    slabs: Vec<Slab>,
    /// [`counters::LEN`] words; `counters` in the state.
    counters: Tensor,
    /// `[]`, f64 if all parameters are, or else f32.
    loss_scale: Tensor,
    /// [`plan::LEN`] values.
    plan: Tensor,
}

/// A parameter.
struct Slot {
    parameter: Spec,
    group: Group,
}

impl AdamW {
    /// A new optimiser for these parameters, which must be on one device.
    pub fn new(options: AdamWOptions, parameters: &[(&Tensor, Group)]) -> Result<AdamW> {
        options.check()?;
        let Some((first, _)) = parameters.first() else {
            return Err(Error::Shape { op: OP, why: "no parameters found, expected some".into() });
        };
        let device = first.device();
        let slots: Vec<Slot> = parameters
            .iter()
            .map(|(parameter, group)| {
                parameter.device().ensure(device, OP, "a parameter")?;
                Slot::new(parameter, *group)
            })
            .collect::<Result<_>>()?;
        let double = slots.iter().all(|slot| slot.parameter.dtype() == DType::F64);
        let dtype = if double { DType::F64 } else { DType::F32 };
        let scale = options.loss_scale.initial();
        Ok(AdamW {
            counters: Tensor::new(&initial_counters(scale), &[counters::LEN], device)?,
            loss_scale: Tensor::full(&[], scale, dtype, device)?,
            plan: Tensor::zeros(&[plan::LEN], plan_dtype(device), device)?,
            slabs: Slab::of_all(&parameters.iter().map(|(p, _)| *p).collect::<Vec<_>>())?,
            options,
            slots,
        })
    }

    /// One step at this learning rate: norm, clipping, decay and update. Parameters are given in
    /// the order of [`new`](AdamW::new) and updated in place; a clone of one, or a graph that still
    /// needs it, keeps the old values. Each needs a gradient, of its own type or f32.
    ///
    /// If the norm of the gradients is not finite, the step is skipped; the device decides this,
    /// too.
    pub fn step(&mut self, lr: f64, parameters: &mut [&mut Tensor], grads: &Grads) -> Result<()> {
        ensure!(OP, lr.is_finite() && lr >= 0.0, "the learning rate is {lr}, expected 0 or more");
        let grads = self.check(parameters, grads)?;
        let sums = run_one(&SquareSums::on(self.device()), &grads)?;
        let AdamWOptions { beta1, beta2, eps, max_norm, loss_scale } = self.options;
        let growth_interval = match loss_scale {
            LossScale::None => None,
            LossScale::Dynamic { growth_interval, .. } => Some(growth_interval),
        };
        let decide = Decide { max_norm, beta1, beta2, growth_interval };
        decide.run(&sums, [&mut self.counters, &mut self.loss_scale, &mut self.plan])?;
        let rates = |slot: &Slot| {
            let lr = lr * slot.group.lr_scale;
            GroupRates { lr, decay: lr * slot.group.weight_decay }
        };
        let mut members = Vec::with_capacity(self.slabs.len());
        let mut targets = Vec::with_capacity(4 * parameters.len());
        let mut parameters: Vec<_> = parameters.iter_mut().map(|p| Some(&mut **p)).collect();
        for slab in &mut self.slabs {
            let own = slab.members.iter().filter_map(|member| parameters[member.index].take());
            targets.extend(slab.state.iter_mut().chain(own));
            members.push(&slab.members[..]);
        }
        let update = AdamWUpdate {
            beta1,
            beta2,
            eps,
            dtypes: self.slots.iter().map(|slot| slot.parameter.dtype()).collect(),
            rates: self.slots.iter().map(rates).collect(),
            slabs: members,
        };
        let inputs: Vec<&Tensor> = [&self.plan].into_iter().chain(grads).collect();
        update.run(&inputs, &mut targets)
    }

    /// The upstream gradient for [`Tensor::backward_from`] of a loss: the loss scale, a tensor of
    /// shape `[]`, in f32, or in f64 if all parameters are.
    pub fn loss_scale(&self) -> &Tensor {
        &self.loss_scale
    }

    /// The status after the last step. This waits for the device.
    pub async fn status(&self) -> Result<Status> {
        let words = self.counters.read::<u32>().await?;
        Ok(Status {
            norm: f32::from_bits(words[counters::NORM]).into(),
            steps: words[counters::STEPS].into(),
            skipped: words[counters::SKIPPED].into(),
            loss_scale: f32::from_bits(words[counters::SCALE]).into(),
        })
    }

    /// [`status`](AdamW::status) for native callers; absent on the web, where nothing may block.
    #[cfg(not(target_family = "wasm"))]
    pub fn status_blocking(&self) -> Result<Status> {
        pollster::block_on(self.status())
    }

    /// The state, to continue bit for bit: for the `i`-th parameter `m.i`, `v.i` and, if it is f16
    /// or bf16, `master.i`; `counters`, with the last norm; and `loss_scale`. The tensors
    /// share memory: while they live, a step copies.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let mut slots = vec![Vec::new(); self.slots.len()];
        for slab in &self.slabs {
            for (i, member) in slab.members.iter().enumerate() {
                let shape = self.slots[member.index].parameter.shape();
                let tensors = slab.of_member(i, shape).into_iter();
                let names = Slab::NAMES.map(|name| format!("{name}.{}", member.index));
                slots[member.index] = names.into_iter().zip(tensors).collect();
            }
        }
        let own = [("counters", &self.counters), ("loss_scale", &self.loss_scale)];
        let own = own.map(|(name, tensor)| (name.into(), tensor.clone()));
        slots.into_iter().flatten().chain(own).collect()
    }

    /// Load a [`state`](AdamW::state), in any order, from any device. If names, shapes or types are
    /// not those of this optimiser's state, this is an error and changes nothing.
    pub fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        const OP: &str = "load_state";
        let mut given: HashMap<&str, &Tensor> = HashMap::new();
        for (name, tensor) in state {
            let twice = given.insert(name, tensor).is_some();
            ensure!(OP, !twice, "{name:?} is there twice, expected each name once");
        }
        let device = self.device();
        let mut loaded = HashMap::new();
        for (name, own) in self.state() {
            let Some(tensor) = given.remove(name.as_str()) else {
                return Err(Error::Shape { op: OP, why: format!("{name:?} is missing") });
            };
            let found = (tensor.shape(), tensor.dtype());
            let expected = (own.shape(), own.dtype());
            ensure!(
                OP,
                found == expected,
                "{name:?} is {:?} in {}, expected {:?} in {}",
                found.0,
                found.1,
                expected.0,
                expected.1
            );
            loaded.insert(name, tensor.detached().to(device)?);
        }
        if let Some(name) = given.keys().min() {
            return Err(Error::Shape { op: OP, why: format!("{name:?} is no name of this state") });
        }
        let slabs = self.slabs.iter().map(|slab| slab.filled(|name| loaded.remove(name)));
        let slabs = slabs.collect::<Result<_>>()?;
        self.slabs = slabs;
        for (name, own) in [("counters", &mut self.counters), ("loss_scale", &mut self.loss_scale)]
        {
            *own = loaded.remove(name).expect("each name was found");
        }
        Ok(())
    }

    fn device(&self) -> &Device {
        self.counters.device()
    }

    /// The gradients of the parameters, which must be those of [`new`](AdamW::new).
    fn check<'a>(&self, parameters: &[&mut Tensor], grads: &'a Grads) -> Result<Vec<&'a Tensor>> {
        let (found, expected) = (parameters.len(), self.slots.len());
        ensure!(OP, found == expected, "{found} parameters found, expected {expected}");
        let check = |(i, (parameter, slot)): (usize, (&&mut Tensor, &Slot))| {
            let (found, expected) = (&parameter.spec, &slot.parameter);
            ensure!(
                OP,
                found == expected,
                "parameter {i} is {:?} in {}, expected {:?} in {}",
                found.shape(),
                found.dtype(),
                expected.shape(),
                expected.dtype()
            );
            parameter.device().ensure(self.device(), OP, "a parameter")?;
            let grad = grads.of(parameter).map_err(|error| match error {
                Error::Gradient { why, .. } => {
                    Error::Gradient { op: OP, why: format!("parameter {i} has no gradient: {why}") }
                }
                other => other,
            })?;
            ensure!(
                OP,
                grad.shape() == found.shape(),
                "the gradient of parameter {i} is {:?}, expected {:?}",
                grad.shape(),
                found.shape()
            );
            if grad.dtype() != found.dtype() {
                grad.dtype().ensure(found.dtype().wider(), OP, "a gradient")?;
            }
            Ok(grad)
        };
        parameters.iter().zip(&self.slots).enumerate().map(check).collect()
    }
}

impl AdamWOptions {
    fn check(&self) -> Result<()> {
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            ensure!(
                OP,
                (0.0..1.0).contains(&beta),
                "{name} is {beta}, expected at least 0 and less than 1"
            );
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        ensure!(OP, positive(self.eps), "eps is {}, expected a number above 0", self.eps);
        if let Some(norm) = self.max_norm {
            ensure!(OP, positive(norm), "max_norm is {norm}, expected a number above 0");
        }
        if let LossScale::Dynamic { initial, growth_interval } = self.loss_scale {
            ensure!(
                OP,
                (MIN_LOSS_SCALE..=MAX_LOSS_SCALE).contains(&initial)
                    && initial.log2().fract() == 0.0,
                "the initial loss scale is {initial}, expected a power of two from 2⁻²⁴ to 2²⁴"
            );
            ensure!(OP, growth_interval > 0, "growth_interval is 0, expected 1 or more");
        }
        Ok(())
    }
}

impl Slot {
    fn new(parameter: &Tensor, group: Group) -> Result<Slot> {
        let Group { lr_scale, weight_decay } = group;
        for (name, value) in [("lr_scale", lr_scale), ("weight_decay", weight_decay)] {
            ensure!(OP, value.is_finite() && value >= 0.0, "{name} is {value}, expected 0 or more");
        }
        parameter.dtype().ensure_float(OP, "a parameter")?;
        Ok(Slot { parameter: parameter.spec.clone(), group })
    }
}
