//! The optimisers: against PyTorch, and on every device and type against its formulas.

mod errors;
mod formulas;
mod halves;
mod norm;
mod sgd;
mod state;

use half::f16;
use serde_json::Value;
use taipan::check::{Array, FLOATS, Random, array, devices, input, round, tensor};
use taipan::optim::{AdamW, AdamWOptions, Curve, Group, LossScale, Schedule, Status};
use taipan::{Activation, DType, Device, Grads, Result, Tensor, cross_entropy, linear};

/// Each device with each float type it has.
fn everywhere() -> Vec<(Device, DType)> {
    let types = |device: Device| {
        let supported = FLOATS.into_iter().filter(move |&dtype| device.supports(dtype));
        supported.collect::<Vec<_>>()
    };
    let pairs =
        |device: Device| types(device.clone()).into_iter().map(move |t| (device.clone(), t));
    devices().into_iter().flat_map(pairs).collect()
}

/// Gradients as a backward would leave them.
fn grads_of(parameters: &[Tensor], grads: &[Tensor]) -> Result<Grads> {
    let mut all = Grads::default();
    for (parameter, grad) in parameters.iter().zip(grads) {
        all.accumulate(parameter.backward_from(grad)?)?;
    }
    Ok(all)
}

fn step(adamw: &mut AdamW, lr: f64, parameters: &mut [Tensor], grads: &[Tensor]) -> Result<()> {
    let grads = grads_of(parameters, grads)?;
    adamw.step(lr, &mut parameters.iter_mut().collect::<Vec<_>>(), &grads)
}

fn with_groups<'a>(parameters: &'a [Tensor], groups: &[Group]) -> Vec<(&'a Tensor, Group)> {
    parameters.iter().zip(groups.iter().copied()).collect()
}

/// All bits of parameters and state.
fn bits(adamw: &AdamW, parameters: &[Tensor]) -> Vec<Vec<u64>> {
    let state = adamw.state().into_iter().map(|(_, tensor)| tensor);
    let all = parameters.iter().cloned().chain(state);
    all.map(|t| array(&t).data.iter().map(|x| x.to_bits()).collect()).collect()
}

fn dynamic(initial: f64, growth_interval: u32) -> AdamWOptions {
    let loss_scale = LossScale::Dynamic { initial, growth_interval };
    AdamWOptions { max_norm: Some(1.0), loss_scale, ..AdamWOptions::default() }
}

/// Steps of a small network, with a gradient that is not finite in between.
struct Training {
    parameters: Vec<Tensor>,
    adamw: AdamW,
    x: Tensor,
    targets: Tensor,
}

impl Training {
    fn new(dtype: DType, device: &Device) -> Result<Training> {
        let leaf = |shape: &[usize], seed| -> Result<Tensor> {
            Ok(Tensor::randn(shape, seed, DType::F32, device)?.cast(dtype)?.tracked())
        };
        let parameters = vec![leaf(&[7, 33], 1)?, leaf(&[33], 2)?, leaf(&[33, 5], 3)?];
        let groups = [Group::default(), Group::without_decay(), Group::default()];
        let adamw = AdamW::new(dynamic(256.0, 4), &with_groups(&parameters, &groups))?;
        let x = Tensor::randn(&[16, 7], 4, DType::F32, device)?.cast(dtype)?;
        let targets = Tensor::arange(0, 16, DType::U32, &Device::Cpu)?;
        let targets: Vec<u32> = array(&targets).data.iter().map(|&i| i as u32 % 5).collect();
        Ok(Training { parameters, adamw, x, targets: Tensor::new(&targets, &[16], device)? })
    }

    fn step(&mut self, i: u64) -> Result<()> {
        let [w1, b1, w2] = &self.parameters[..] else { unreachable!() };
        let hidden = linear(&self.x, w1, Some(b1), Activation::Silu)?;
        let logits = linear(&hidden, w2, None, Activation::None)?;
        let mut loss = cross_entropy(&logits, &self.targets, None)?;
        if i == 2 {
            loss = loss.scale(f64::INFINITY)?;
        }
        let grads = loss.backward_from(self.adamw.loss_scale())?;
        let mut parameters: Vec<&mut Tensor> = self.parameters.iter_mut().collect();
        self.adamw.step(0.01 / (i + 1) as f64, &mut parameters, &grads)
    }
}
