//! What all optimisers have in common: groups, clipping, the loss scale and the state.

use std::collections::HashMap;

use crate::autograd::Grads;
use crate::error::{Error, Result, ensure};
use crate::kernel::run_one;
use crate::spec::Spec;
use crate::tensor::{Storage, Tensor};
use crate::{DType, Device};

use super::decide::{
    Decide, MAX_LOSS_SCALE, MIN_LOSS_SCALE, counters, initial_counters, plan, plan_dtype,
};
use super::slab::Slab;
use super::square_sums::SquareSums;
use super::update::{GroupRates, Rule, Update};
use crate::nn::{Module, matches, unmatched};

/// The options of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// A factor of the learning rate; 1.
    pub lr_scale: f64,
    /// The weight decay; 0.01. [`AdamW`](super::AdamW) multiplies the parameter by
    /// `1 − lr·weight_decay`, [`Sgd`](super::Sgd) adds `weight_decay·θ` to the gradient, as PyTorch
    /// does.
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

impl Status {
    /// Of the optimiser's counters.
    fn of(words: &[u32]) -> Status {
        Status {
            norm: f32::from_bits(words[counters::NORM]).into(),
            steps: words[counters::STEPS].into(),
            skipped: words[counters::SKIPPED].into(),
            loss_scale: f32::from_bits(words[counters::SCALE]).into(),
        }
    }
}

/// The options of an optimiser: [`AdamWOptions`](super::AdamWOptions) or
/// [`SgdOptions`](super::SgdOptions).
pub trait Options: Copy + sealed::Options {}

pub(super) mod sealed {
    use super::{LossScale, Result, Rule};

    /// What the steps of an optimiser need to know of its options.
    pub trait Options {
        /// The name of the optimiser.
        const OP: &'static str;
        /// The names of its moments in its state.
        const MOMENTS: &'static [&'static str];
        /// An error if a value of its own is out of range.
        fn check(&self) -> Result<()>;
        /// The formula of its steps.
        fn rule(&self) -> Rule;
        /// To which norm gradients are clipped.
        fn max_norm(&self) -> Option<f64>;
        /// The factor of the loss.
        fn loss_scale(&self) -> LossScale;
    }
}

/// An optimiser: [`AdamW`](super::AdamW) or [`Sgd`](super::Sgd), with clipping by the global norm
/// and a loss scale, all on the device.
///
/// Moments are f32 for parameters in f16, bf16 and f32, and f64 for f64. A parameter in f16 or bf16
/// has a master copy in f32, which steps update; the parameter is its rounded copy. If a program
/// changes such a parameter itself, it needs a new optimiser.
///
/// A step whose gradient norm is not finite changes only the count of skipped steps and the loss
/// scale: see [`status`](Optimizer::status). A norm above 1.8e19, whose square overflows f32,
/// counts as infinite unless all parameters are f64.
pub struct Optimizer<O> {
    options: O,
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
    /// For errors.
    name: String,
    parameter: Spec,
    group: Group,
}

impl<O: Options> Optimizer<O> {
    /// A new optimiser for these parameters, which must be on one device.
    pub fn new(options: O, parameters: &[(&Tensor, Group)]) -> Result<Optimizer<O>> {
        let named = |(i, (tensor, group)): (usize, &(_, Group))| {
            (format!("parameter {i}"), *tensor, *group)
        };
        Optimizer::named(options, parameters.iter().enumerate().map(named).collect())
    }

    /// A new optimiser for the parameters of a module that are not frozen. The group of each is
    /// that of the first pattern which [matches](crate::nn::matches) its name, or the default; a
    /// pattern that matches none is an error.
    ///
    /// ```
    /// use taipan::nn::{Initializer, Linear};
    /// use taipan::optim::{AdamW, AdamWOptions, Group};
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let mut model = Linear::new(2, 3, &mut Initializer::new(1, DType::F32, &Device::Cpu))?;
    /// let groups = [("*bias", Group::without_decay())];
    /// let mut adamw = AdamW::for_module(AdamWOptions::default(), &model, &groups)?;
    /// let y = model.forward(&Tensor::ones(&[1, 2], DType::F32, &Device::Cpu)?)?;
    /// adamw.step_module(0.01, &mut model, &y.mean()?.backward()?)?;
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn for_module(
        options: O,
        module: &(impl Module + ?Sized),
        groups: &[(&str, Group)],
    ) -> Result<Optimizer<O>> {
        let all = module.parameters();
        for (pattern, _) in groups {
            if !all.iter().any(|(name, _)| matches(pattern, name)) {
                return Err(unmatched(O::OP, pattern, module));
            }
        }
        let group = |name: &str| {
            let found = groups.iter().find(|(pattern, _)| matches(pattern, name));
            found.map_or(Group::default(), |(_, group)| *group)
        };
        let trained = all.into_iter().filter(|(_, tensor)| tensor.is_tracked());
        let named = trained.map(|(name, tensor)| {
            let group = group(&name);
            (name, tensor, group)
        });
        Optimizer::named(options, named.collect())
    }

    fn named(options: O, parameters: Vec<(String, &Tensor, Group)>) -> Result<Optimizer<O>> {
        options.check()?;
        check_options(&options)?;
        let Some((_, first, _)) = parameters.first() else {
            let why = "no parameters found, expected some".into();
            return Err(Error::Shape { op: O::OP, why });
        };
        let device = first.device();
        let tensors: Vec<&Tensor> = parameters.iter().map(|(_, tensor, _)| *tensor).collect();
        let slots: Vec<Slot> = parameters
            .into_iter()
            .map(|(name, parameter, group)| {
                parameter.device().ensure(device, O::OP, "a parameter")?;
                Slot::new(O::OP, name, parameter, group)
            })
            .collect::<Result<_>>()?;
        let double = slots.iter().all(|slot| slot.parameter.dtype() == DType::F64);
        let dtype = if double { DType::F64 } else { DType::F32 };
        let scale = options.loss_scale().initial();
        Ok(Optimizer {
            counters: Tensor::new(&initial_counters(scale), &[counters::LEN], device)?,
            loss_scale: Tensor::full(&[], scale, dtype, device)?,
            plan: Tensor::zeros(&[plan::LEN], plan_dtype(device), device)?,
            slabs: Slab::of_all(&tensors, O::MOMENTS)?,
            options,
            slots,
        })
    }

    /// One step at this learning rate: norm, clipping, decay and update. Parameters are given in
    /// the order of [`new`](Optimizer::new) and updated in place; a clone of one, or a graph that
    /// still needs it, keeps the old values. Each needs a gradient, of its own type or f32.
    ///
    /// If the norm of the gradients is not finite, the step is skipped; the device decides this,
    /// too.
    pub fn step(&mut self, lr: f64, parameters: &mut [&mut Tensor], grads: &Grads) -> Result<()> {
        let grads = self.grads_of(parameters, grads)?;
        let sums = self.sums(&grads)?;
        self.apply(lr, parameters, &grads, &sums)
    }

    /// The sums of the squares of blocks of gradients.
    pub(super) fn sums(&self, grads: &[&Tensor]) -> Result<Tensor> {
        run_one(&SquareSums::new(O::OP, self.device()), grads)
    }

    /// A step, given the gradients of the parameters and the sums that their norm is computed from.
    pub(super) fn apply(
        &mut self,
        lr: f64,
        parameters: &mut [&mut Tensor],
        grads: &[&Tensor],
        sums: &Tensor,
    ) -> Result<()> {
        let finite = lr.is_finite() && lr >= 0.0;
        ensure!(O::OP, finite, "the learning rate is {lr}, expected 0 or more");
        self.check(parameters, grads)?;
        let rule = self.options.rule();
        let growth_interval = match self.options.loss_scale() {
            LossScale::None => None,
            LossScale::Dynamic { growth_interval, .. } => Some(growth_interval),
        };
        let [beta1, beta2] = rule.bias_corrected();
        let max_norm = self.options.max_norm();
        let decide = Decide { op: O::OP, max_norm, beta1, beta2, growth_interval };
        decide.run(sums, [&mut self.counters, &mut self.loss_scale, &mut self.plan])?;
        let rates = |slot: &Slot| {
            let lr = lr * slot.group.lr_scale;
            GroupRates { lr, decay: rule.decay(lr, slot.group.weight_decay) }
        };
        let mut members = Vec::with_capacity(self.slabs.len());
        let mut targets = Vec::with_capacity(4 * parameters.len());
        let mut parameters: Vec<_> = parameters.iter_mut().map(|p| Some(&mut **p)).collect();
        for slab in &mut self.slabs {
            let own = slab.members.iter().filter_map(|member| parameters[member.index].take());
            targets.extend(slab.state.iter_mut().chain(own));
            members.push(&slab.members[..]);
        }
        let update = Update {
            op: O::OP,
            rule,
            dtypes: self.slots.iter().map(|slot| slot.parameter.dtype()).collect(),
            rates: self.slots.iter().map(rates).collect(),
            slabs: members,
        };
        let inputs: Vec<&Tensor> = [&self.plan].into_iter().chain(grads.iter().copied()).collect();
        update.run(&inputs, &mut targets)
    }

    /// [`step`](Optimizer::step) for the module of [`for_module`](Optimizer::for_module).
    pub fn step_module(
        &mut self,
        lr: f64,
        module: &mut (impl Module + ?Sized),
        grads: &Grads,
    ) -> Result<()> {
        let parameters = module.parameters_mut().into_iter().map(|(_, tensor)| tensor);
        let mut trained: Vec<_> = parameters.filter(|tensor| tensor.is_tracked()).collect();
        self.step(lr, &mut trained, grads)
    }

    /// The upstream gradient for [`Tensor::backward_from`] of a loss: the loss scale, a tensor of
    /// shape `[]`, in f32, or in f64 if all parameters are.
    pub fn loss_scale(&self) -> &Tensor {
        &self.loss_scale
    }

    /// The status after the last step. This waits for the device.
    pub async fn status(&self) -> Result<Status> {
        Ok(Status::of(&self.counters.read::<u32>().await?))
    }

    /// The [`status`](Optimizer::status) and the value of a loss, a tensor of one f32 or f64, in one
    /// read: in a browser, each takes a turn of its event loop, and the GPU is idle meanwhile.
    pub async fn status_and_loss(&self, loss: &Tensor) -> Result<(Status, f64)> {
        const OP: &str = "status_and_loss";
        let (len, dtype) = (loss.len(), loss.dtype());
        ensure!(OP, len == 1, "the loss is {:?}, expected one element", loss.shape());
        if dtype == DType::F64 {
            return Ok((self.status().await?, loss.read::<f64>().await?[0]));
        }
        DType::F32.ensure(dtype, OP, "the loss")?;
        match (&self.counters.storage, &loss.storage) {
            (Storage::Gpu(counters), Storage::Gpu(loss)) if counters.device() == loss.device() => {
                const BYTES: usize = 4 * counters::LEN;
                let Device::Gpu(gpu) = loss.device() else { unreachable!("it is on a GPU") };
                let both = gpu.scratch(OP, BYTES + 4)?;
                gpu.copy_bytes((counters, 0), (&both, 0), BYTES);
                gpu.copy_bytes((loss, 0), (&both, BYTES), 4);
                let mut words = [0_u32; counters::LEN + 1];
                both.read(OP, bytemuck::cast_slice_mut(&mut words)).await?;
                Ok((Status::of(&words), f32::from_bits(words[counters::LEN]).into()))
            }
            _ => Ok((self.status().await?, loss.read::<f32>().await?[0].into())),
        }
    }

    /// [`status`](Optimizer::status) for native callers; absent on the web, where nothing may
    /// block.
    #[cfg(not(target_family = "wasm"))]
    pub fn status_blocking(&self) -> Result<Status> {
        pollster::block_on(self.status())
    }

    /// The state, to continue bit for bit: for the `i`-th parameter its moments, `m.i` and, of
    /// AdamW, `v.i`, and, if it is f16 or bf16, `master.i`; `counters`, with the last norm; and
    /// `loss_scale`. The tensors share memory: while they live, a step copies.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let mut slots = vec![Vec::new(); self.slots.len()];
        for slab in &self.slabs {
            for (i, member) in slab.members.iter().enumerate() {
                let shape = self.slots[member.index].parameter.shape();
                let tensors = slab.of_member(i, shape).into_iter();
                let names = slab.names().map(|name| format!("{name}.{}", member.index));
                slots[member.index] = names.zip(tensors).collect();
            }
        }
        let own = [("counters", &self.counters), ("loss_scale", &self.loss_scale)];
        let own = own.map(|(name, tensor)| (name.into(), tensor.clone()));
        slots.into_iter().flatten().chain(own).collect()
    }

    /// Load a [`state`](Optimizer::state), in any order, from any device. If names, shapes or types
    /// are not those of this optimiser's state, this is an error and changes nothing.
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

    pub(super) fn device(&self) -> &Device {
        self.counters.device()
    }

    /// The gradients of the parameters, which must be those of [`new`](Optimizer::new).
    fn grads_of<'a>(
        &self,
        parameters: &[&mut Tensor],
        grads: &'a Grads,
    ) -> Result<Vec<&'a Tensor>> {
        let find = |(parameter, slot): (&&mut Tensor, &Slot)| {
            grads.of(parameter).map_err(|error| match error {
                Error::Gradient { why, .. } => {
                    let why = format!("{} has no gradient: {why}", slot.name);
                    Error::Gradient { op: O::OP, why }
                }
                other => other,
            })
        };
        parameters.iter().zip(&self.slots).map(find).collect()
    }

    /// An error unless these are the parameters of [`new`](Optimizer::new), and gradients of them.
    fn check(&self, parameters: &[&mut Tensor], grads: &[&Tensor]) -> Result<()> {
        let (found, expected) = (parameters.len(), self.slots.len());
        ensure!(O::OP, found == expected, "{found} parameters found, expected {expected}");
        let found = grads.len();
        ensure!(O::OP, found == expected, "{found} gradients found, expected {expected}");
        for ((parameter, grad), slot) in parameters.iter().zip(grads).zip(&self.slots) {
            let (found, expected, name) = (&parameter.spec, &slot.parameter, &slot.name);
            ensure!(
                O::OP,
                found == expected,
                "{name} is {:?} in {}, expected {:?} in {}",
                found.shape(),
                found.dtype(),
                expected.shape(),
                expected.dtype()
            );
            parameter.device().ensure(self.device(), O::OP, "a parameter")?;
            ensure!(
                O::OP,
                grad.shape() == found.shape(),
                "the gradient of {name} is {:?}, expected {:?}",
                grad.shape(),
                found.shape()
            );
            if grad.dtype() != found.dtype() {
                grad.dtype().ensure(found.dtype().wider(), O::OP, "a gradient")?;
            }
        }
        Ok(())
    }
}

/// An error unless every number is in its range.
fn check_options<O: Options>(options: &O) -> Result<()> {
    if let Some(norm) = options.max_norm() {
        let positive = norm.is_finite() && norm > 0.0;
        ensure!(O::OP, positive, "max_norm is {norm}, expected a number above 0");
    }
    if let LossScale::Dynamic { initial, growth_interval } = options.loss_scale() {
        ensure!(
            O::OP,
            (MIN_LOSS_SCALE..=MAX_LOSS_SCALE).contains(&initial) && initial.log2().fract() == 0.0,
            "the initial loss scale is {initial}, expected a power of two from 2⁻²⁴ to 2²⁴"
        );
        ensure!(O::OP, growth_interval > 0, "growth_interval is 0, expected 1 or more");
    }
    Ok(())
}

impl Slot {
    fn new(op: &'static str, name: String, parameter: &Tensor, group: Group) -> Result<Slot> {
        let Group { lr_scale, weight_decay } = group;
        for (name, value) in [("lr_scale", lr_scale), ("weight_decay", weight_decay)] {
            ensure!(op, value.is_finite() && value >= 0.0, "{name} is {value}, expected 0 or more");
        }
        parameter.dtype().ensure_float(op, "a parameter")?;
        Ok(Slot { name, parameter: parameter.spec.clone(), group })
    }
}
