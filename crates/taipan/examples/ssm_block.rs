//! A state-space block of one's own: the library's scan inside, another parameterisation around it.
//! B and C are the same at every step, and only the step size Δ follows from the input: a gated
//! memory. It learns to remember the last marked value of a sequence; on the CPU, or with the
//! argument `gpu` on a GPU.

use taipan::nn::{Init, Initializer, Linear, Module};
use taipan::optim::{AdamW, AdamWOptions, Curve, Group, Schedule};
use taipan::{DType, Device, Discretization, Result, Scan, Tensor, no_grad, selective_scan};

const CHANNELS: usize = 32;
const STATES: usize = 4;
const BATCH: usize = 32;
const LENGTH: usize = 64;

/// `h_t = exp(Δ_t·A)·h_{t−1} + (1 − exp(Δ_t·A))/(−A)·B·u_t`, `y_t = C·h_t`.
struct GatedMemory {
    input: Linear,
    delta: Linear,
    a_log: Tensor, // [CHANNELS, STATES]
    b: Tensor,     // [STATES]
    c: Tensor,     // [STATES]
    output: Linear,
}

taipan::module!(GatedMemory { input, delta, a_log, b, c, output });

impl GatedMemory {
    fn new(inputs: usize, outputs: usize, init: &mut Initializer) -> Result<GatedMemory> {
        Ok(GatedMemory {
            input: Linear::new(inputs, CHANNELS, init)?,
            delta: Linear::new(inputs, CHANNELS, init)?,
            a_log: init.wide_parameter(&[CHANNELS, STATES], Init::LogArange)?,
            b: init.parameter(&[STATES], Init::Normal(1.0))?,
            c: init.parameter(&[STATES], Init::Normal(1.0))?,
            output: Linear::new(CHANNELS, outputs, init)?,
        })
    }

    /// `x`, `[b, l, inputs]`, to `[b, l, outputs]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (u, delta) = (self.input.forward(x)?, self.delta.forward(x)?.scale(4.0)?);
        let shape = [x.shape()[0], x.shape()[1], STATES];
        let (b, c) = (self.b.broadcast_to(&shape)?, self.c.broadcast_to(&shape)?);
        let (y, _) = selective_scan(&Scan {
            discretization: Discretization::ZeroOrderHold,
            ..Scan::new(&u, &delta, &self.a_log, &b, &c)
        })?;
        self.output.forward(&y)
    }
}

fn main() -> Result {
    let device = match std::env::args().nth(1).as_deref() {
        Some("gpu") => Device::gpu()?,
        _ => Device::Cpu,
    };
    let mut model = GatedMemory::new(2, 1, &mut Initializer::new(1, DType::F32, &device))?;
    println!("{} parameters; {}", model.num_parameters(), device.describe());
    let groups = [("*", Group::without_decay())];
    let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
    let mut adamw = AdamW::for_module(options, &model, &groups)?;
    let schedule = Schedule { peak: 0.02, min: 1e-4, warmup: 20, total: 600, curve: Curve::Cosine };
    for step in 0..schedule.total {
        let (x, last) = sequences(step, &device)?;
        let error = model.forward(&x)?.sub(&last)?;
        let loss = error.mul(&error)?.mean()?;
        adamw.step_module(schedule.lr(step), &mut model, &loss.backward()?)?;
        if (step + 1) % 100 == 0 {
            println!("step {:>3}  mean squared error {:.4}", step + 1, loss.item()?);
        }
    }
    let (x, last) = sequences(u64::MAX, &device)?;
    let y = no_grad(|| model.forward(&x))?.read_blocking::<f32>()?;
    let (x, last) = (x.read_blocking::<f32>()?, last.read_blocking::<f32>()?);
    println!("\n step  value  mark  remembered  expected");
    for t in (0..LENGTH).filter(|&t| t < 2 || x[2 * t + 1] == 1.0).take(6) {
        let mark = if x[2 * t + 1] == 1.0 { "✓" } else { " " };
        println!("{t:>5} {:>6.2}     {mark} {:>11.2} {:>9.2}", x[2 * t], y[t], last[t]);
    }
    Ok(())
}

/// Values and marks, `[BATCH, LENGTH, 2]`, and at each step the last marked value, `[BATCH, LENGTH,
/// 1]`.
fn sequences(seed: u64, device: &Device) -> Result<(Tensor, Tensor)> {
    let random = Tensor::rand(&[BATCH * LENGTH, 2], seed, DType::F32, &Device::Cpu)?;
    let random = random.read_blocking::<f32>()?;
    let (mut x, mut last) = (Vec::new(), Vec::new());
    for (i, pair) in random.as_chunks::<2>().0.iter().enumerate() {
        let (value, is_marked) = (2.0 * pair[0] - 1.0, pair[1] < 0.1);
        x.extend([value, if is_marked { 1.0 } else { 0.0 }]);
        let before = if i % LENGTH == 0 { 0.0 } else { last[i - 1] };
        last.push(if is_marked { value } else { before });
    }
    let last = Tensor::new(&last, &[BATCH, LENGTH, 1], device)?;
    Ok((Tensor::new(&x, &[BATCH, LENGTH, 2], device)?, last))
}
