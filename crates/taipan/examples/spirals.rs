//! Trains a two-layer network to tell two spirals apart and shows the loss as it falls, then what
//! the network has learnt. With a path as its argument, it also draws that as an SVG file.

use std::f64::consts::TAU;
use std::fmt::Write;

use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{Activation, DType, Device, Result, Tensor, linear, no_grad};

const POINTS: usize = 512;
const HIDDEN: usize = 256;
const STEPS: usize = 600;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Device::best()?;
    println!("two spirals, {POINTS} points; 2 → {HIDDEN} → 1 with gelu; {}", device.describe());
    let (x, label) = spirals(&device)?;
    let mut network = Network::new(&device)?;
    let options = AdamWOptions { beta2: 0.99, ..AdamWOptions::default() };
    let parameters = network.parameters.each_ref().map(|p| (p, Group::without_decay()));
    let mut adamw = AdamW::new(options, &parameters)?;
    for step in 0..=STEPS {
        // The cross-entropy of a logit z and a label t is softplus(z) − t·z.
        let logit = network.forward(&x)?;
        let loss = logit.softplus()?.sub(&label.mul(&logit)?)?.mean()?;
        if step % 50 == 0 {
            let value = loss.item()?;
            let bar = "█".repeat((value * 60.0).round() as usize);
            println!("step {step:>4}  loss {value:.4}  {bar}");
        }
        let grads = loss.backward()?;
        adamw.step(0.01, &mut network.parameters.each_mut(), &grads)?;
    }
    let right = no_grad(|| accuracy(&network, &x, &label))?;
    println!("{:.1} % of the points are on the right side:", 100.0 * right);
    print!("{}", map(&network, &device)?);
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(&path, draw(&network, &x, &label, &device)?)?;
        println!("drawn in {path}");
    }
    Ok(())
}

/// Points in `[−1, 1]²`, `[POINTS, 2]`, alternately of the one spiral and the other, and which it
/// is, `[POINTS, 1]`.
fn spirals(device: &Device) -> Result<(Tensor, Tensor)> {
    let noise = Tensor::randn(&[POINTS, 2], 7, DType::F64, &Device::Cpu)?.read_blocking::<f64>()?;
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for i in 0..POINTS {
        let along = (i / 2) as f64 / (POINTS / 2) as f64;
        let arm = (i % 2) as f64;
        let (radius, angle) = (0.12 + 0.83 * along, TAU * (1.25 * along + arm / 2.0));
        points.push((radius * angle.cos() + 0.015 * noise[2 * i]) as f32);
        points.push((radius * angle.sin() + 0.015 * noise[2 * i + 1]) as f32);
        labels.push(arm as f32);
    }
    Ok((Tensor::new(&points, &[POINTS, 2], device)?, Tensor::new(&labels, &[POINTS, 1], device)?))
}

struct Network {
    /// `[2, HIDDEN]`, `[HIDDEN]`, `[HIDDEN, 1]`, `[1]`
    parameters: [Tensor; 4],
}

impl Network {
    fn new(device: &Device) -> Result<Network> {
        let w1 = Tensor::randn(&[2, HIDDEN], 1, DType::F32, device)?.scale(3.0)?;
        let b1 = Tensor::randn(&[HIDDEN], 2, DType::F32, device)?;
        let w2 = Tensor::randn(&[HIDDEN, 1], 3, DType::F32, device)?;
        let w2 = w2.scale((HIDDEN as f64).powf(-0.5))?;
        let b2 = Tensor::zeros(&[1], DType::F32, device)?;
        Ok(Network { parameters: [w1, b1, w2, b2].map(Tensor::tracked) })
    }

    /// `[n, 2]` to logits `[n, 1]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [w1, b1, w2, b2] = &self.parameters;
        let hidden = linear(x, w1, Some(b1), Activation::Gelu)?;
        linear(&hidden, w2, Some(b2), Activation::None)
    }
}

fn accuracy(network: &Network, x: &Tensor, label: &Tensor) -> Result<f64> {
    let logits = network.forward(x)?.read_blocking::<f32>()?;
    let labels = label.read_blocking::<f32>()?;
    let right = logits.iter().zip(&labels).filter(|(z, t)| (**z > 0.0) == (**t > 0.5)).count();
    Ok(right as f64 / POINTS as f64)
}

/// The logits on a grid over `[−1, 1]²`, from the top, row by row.
fn grid(network: &Network, columns: usize, rows: usize, device: &Device) -> Result<Vec<f32>> {
    let at = |i: usize, n: usize| 2.0 * (i as f32 + 0.5) / n as f32 - 1.0;
    let points: Vec<f32> = (0..rows)
        .flat_map(|r| (0..columns).flat_map(move |c| [at(c, columns), -at(r, rows)]))
        .collect();
    let x = Tensor::new(&points, &[columns * rows, 2], device)?;
    no_grad(|| network.forward(&x))?.read_blocking()
}

/// What the network says of each place, as text.
fn map(network: &Network, device: &Device) -> Result<String> {
    const COLUMNS: usize = 64;
    let shade = |z: &f32| match z {
        z if *z > 1.0 => '█',
        z if *z > 0.0 => '▓',
        z if *z > -1.0 => '░',
        _ => ' ',
    };
    let logits = grid(network, COLUMNS, COLUMNS / 2, device)?;
    Ok(logits.chunks(COLUMNS).fold(String::new(), |mut text, row| {
        text.extend(row.iter().map(shade).chain(['\n']));
        text
    }))
}

/// The same, with the points, as an SVG picture.
fn draw(network: &Network, x: &Tensor, label: &Tensor, device: &Device) -> Result<String> {
    const SIDE: usize = 96;
    const LEVELS: i32 = 12;
    const CELL: usize = 5;
    let size = SIDE * CELL;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {size} {size}\" width=\"{size}\">\n"
    );
    let logits = grid(network, SIDE, SIDE, device)?;
    for (row, logits) in logits.chunks(SIDE).enumerate() {
        // How sure the network is, from 0 to LEVELS; neighbours that agree are one rectangle.
        let levels: Vec<i32> =
            logits.iter().map(|z| (LEVELS as f32 / (1.0 + (-z).exp())).round() as i32).collect();
        let mut column = 0;
        for run in levels.chunk_by(|a, b| a == b) {
            // From blue through white to orange.
            let sure = 2.0 * run[0] as f32 / LEVELS as f32 - 1.0;
            let [red, green, blue] = [[120.0, 255.0], [170.0, 190.0], [230.0, 110.0]]
                .map(|ends| 255.0 + sure.abs() * (ends[(sure > 0.0) as usize] - 255.0))
                .map(|channel: f32| channel as u8);
            let (left, top, width) = (column * CELL, row * CELL, run.len() * CELL);
            column += run.len();
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {top}h{width}v{CELL}h-{width}z\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>"
            );
        }
    }
    let (points, labels) = (x.read_blocking::<f32>()?, label.read_blocking::<f32>()?);
    for (point, label) in points.chunks(2).zip(&labels) {
        let at = |v: f32| (v + 1.0) * size as f32 / 2.0;
        let colour = if *label > 0.5 { "#b35000" } else { "#0b3d91" };
        let (left, top) = (at(point[0]), at(-point[1]));
        let _ =
            writeln!(svg, "<circle cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
