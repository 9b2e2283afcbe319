//! Trains a network of three layers to tell the arms of three spirals apart, with batches in random
//! order and a test set; on the CPU, or with the argument `gpu` on a GPU.

use std::f64::consts::TAU;
use std::time::Instant;

use taipan::nn::{Initializer, Linear, Module};
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{Activation, DType, Device, Result, Tensor, cross_entropy, no_grad};

const CLASSES: usize = 3;
const POINTS: usize = 3072;
const BATCH: usize = 256;
const EPOCHS: usize = 40;

struct Mlp {
    first: Linear,
    second: Linear,
    output: Linear,
}

taipan::module!(Mlp { first, second, output });

impl Mlp {
    fn new(init: &mut Initializer) -> Result<Mlp> {
        Ok(Mlp {
            first: Linear::new(2, 64, init)?,
            second: Linear::new(64, 64, init)?,
            output: Linear::new(64, CLASSES, init)?,
        })
    }

    /// Points `[n, 2]` to logits `[n, CLASSES]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.activated(x, Activation::Gelu)?;
        let x = self.second.activated(&x, Activation::Gelu)?;
        self.output.forward(&x)
    }
}

fn main() -> Result {
    let device = match std::env::args().nth(1).as_deref() {
        Some("gpu") => Device::gpu()?,
        _ => Device::Cpu,
    };
    let mut model = Mlp::new(&mut Initializer::new(1, DType::F32, &device))?;
    println!("{} parameters; {}", model.num_parameters(), device.describe());
    let groups = [("*.bias", Group::without_decay())];
    let mut adamw = AdamW::for_module(AdamWOptions::default(), &model, &groups)?;
    let (points, labels) = spirals(1)?;
    let (test_points, test_labels) = spirals(2)?;
    let (mut steps, start) = (0, Instant::now());
    for epoch in 1..=EPOCHS {
        let order = shuffled(epoch as u64)?;
        let mut last = None;
        for batch in order.chunks(BATCH) {
            let x: Vec<f32> = batch.iter().flat_map(|&i| points[i]).collect();
            let y: Vec<u32> = batch.iter().map(|&i| labels[i]).collect();
            let x = Tensor::new(&x, &[batch.len(), 2], &device)?;
            let y = Tensor::new(&y, &[batch.len()], &device)?;
            let loss = cross_entropy(&model.forward(&x)?, &y, None)?;
            adamw.step_module(0.005, &mut model, &loss.backward()?)?;
            last = Some(loss);
            steps += 1;
        }
        if let (0, Some(loss)) = (epoch % 10, last) {
            println!("epoch {epoch:>2}  loss {:.4}", loss.item()?);
        }
    }
    let step = start.elapsed().as_secs_f64() / steps as f64;
    let x = Tensor::new(test_points.as_flattened(), &[POINTS, 2], &device)?;
    let best = no_grad(|| model.forward(&x)?.argmax(1))?.read_blocking::<u32>()?;
    let right = best.iter().zip(&test_labels).filter(|(best, label)| best == label).count();
    println!("{:.1} % of new points are told apart", 100.0 * right as f64 / POINTS as f64);
    eprintln!("{:.0} µs per step", 1e6 * step);
    Ok(())
}

/// Points of the spirals with some noise, and the arm of each.
fn spirals(seed: u64) -> Result<(Vec<[f32; 2]>, Vec<u32>)> {
    let noise = Tensor::randn(&[POINTS, 2], seed, DType::F64, &Device::Cpu)?;
    let noise = noise.read_blocking::<f64>()?;
    let point = |i: usize| {
        let (along, arm) = (i as f64 / POINTS as f64, i % CLASSES);
        let (radius, angle) = (0.1 + along, TAU * (along + arm as f64 / CLASSES as f64));
        let (dx, dy) = (0.03 * noise[2 * i], 0.03 * noise[2 * i + 1]);
        let at = [(radius * angle.cos() + dx) as f32, (radius * angle.sin() + dy) as f32];
        (at, arm as u32)
    };
    Ok((0..POINTS).map(point).unzip())
}

/// All indices in random order.
fn shuffled(seed: u64) -> Result<Vec<usize>> {
    let keys = Tensor::rand(&[POINTS], seed, DType::F64, &Device::Cpu)?.read_blocking::<f64>()?;
    let mut order: Vec<usize> = (0..POINTS).collect();
    order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
    Ok(order)
}
