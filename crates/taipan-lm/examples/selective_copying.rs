//! The selective-copying task of the Mamba paper (Gu & Dao 2023, sections 3.1 and 4.1.1), at a
//! reduced size.
//!
//! Data tokens stand at random places among noise. Behind them, a row of markers asks for them in
//! their order:
//!
//!     . . C . A . . . B . A . . .   ? ? ? ?   →   C A B A
//!
//! What to remember has to be chosen by what it is, not by where it stands. A state-space model
//! whose step size Δ and whose B and C are the same at every step cannot choose; one that computes
//! them from its input can. The program trains both, on the same sequences, and exits with code 1
//! if that does not show.
//!
//! In the paper, with 16 data tokens among 4096 and 400 000 steps, Mamba's architecture reaches
//! 99.8 % with the selective scan (S6) and 56.4 % with a time-invariant one (S4).

use std::process::ExitCode;
use std::time::Instant;

use taipan::optim::{AdamW, AdamWOptions, Curve, Group, Schedule};
use taipan::{
    Activation, CausalConv1d, DType, Device, Result, Scan, Tensor, Weight, add_rms_norm,
    causal_conv1d, embedding, linear, linear_cross_entropy, no_grad, rms_norm, selective_scan,
};

/// Tokens before the markers, and how many of them are data.
const LENGTH: usize = 256;
const DATA: usize = 8;
/// Token ids: noise, the marker, and the rest are data.
const VOCABULARY: usize = 16;
const NOISE: u32 = 0;
const MARKER: u32 = 1;
const FIRST_DATA: u32 = 2;

const BATCH: usize = 32;
const STEPS: u64 = 1000;
const PEAK_RATE: f64 = 1e-2;

const LAYERS: usize = 2;
const D_MODEL: usize = 64;
const D_INNER: usize = 2 * D_MODEL;
const D_STATE: usize = 16;
const D_CONV: usize = 4;
const DT_RANK: usize = D_MODEL.div_ceil(16);
const EPS: f64 = 1e-5;

/// Token accuracy that the selective model must reach, and the most that the other may.
const EXPECTED: f64 = 0.97;
const FAR_BELOW: f64 = 0.75;

fn main() -> Result<ExitCode> {
    let device = Device::Cpu;
    println!(
        "selective copying: {DATA} data tokens among {LENGTH}, {STEPS} steps of {BATCH} \
         sequences; {}",
        device.describe()
    );
    let mut accuracies = Vec::new();
    for mixer in [Mixer::Selective, Mixer::TimeInvariant] {
        println!("\nΔ, B, C {}", mixer.describe());
        let model = train(mixer, &device)?;
        accuracies.push((mixer, accuracy(&model, &device)?));
    }
    println!("\n{:<28} {:>14}", "Δ, B, C", "token accuracy");
    for (mixer, accuracy) in &accuracies {
        println!("{:<28} {:>12.1} %", mixer.describe(), 100.0 * accuracy);
    }
    println!("{:<28} {:>12.1} %", "(guessing)", 100.0 / (VOCABULARY as f64 - FIRST_DATA as f64));
    let as_in_the_paper = accuracies.iter().all(|(mixer, accuracy)| match mixer {
        Mixer::Selective => *accuracy >= EXPECTED,
        Mixer::TimeInvariant => *accuracy <= FAR_BELOW,
    });
    if !as_in_the_paper {
        eprintln!(
            "expected at least {:.0} % when selective and at most {:.0} % when not",
            100.0 * EXPECTED,
            100.0 * FAR_BELOW
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn train(mixer: Mixer, device: &Device) -> Result<Model> {
    let mut model = Model::new(mixer, device)?;
    let options = AdamWOptions { beta2: 0.99, max_norm: Some(1.0), ..AdamWOptions::default() };
    let no_decay = |parameter: &mut &mut Tensor| (parameter.clone(), Group::without_decay());
    let mut adamw = {
        let parameters: Vec<_> = model.parameters().iter_mut().map(no_decay).collect();
        let parameters: Vec<_> =
            parameters.iter().map(|(tensor, group)| (tensor, *group)).collect();
        AdamW::new(options, &parameters)?
    };
    let schedule = Schedule {
        peak: PEAK_RATE,
        min: 0.05 * PEAK_RATE,
        warmup: 50,
        total: STEPS,
        curve: Curve::Cosine,
    };
    let start = Instant::now();
    for step in 0..STEPS {
        let length = length_at(step);
        let (tokens, answers) = sequences(length, step, device)?;
        let loss = linear_cross_entropy(
            &model.forward(&tokens)?,
            Weight::nk(&model.head),
            &answers,
            None,
        )?;
        let grads = loss.backward()?;
        adamw.step(schedule.lr(step), &mut model.parameters(), &grads)?;
        if (step + 1) % (STEPS / 10) == 0 {
            println!(
                "step {:>5}  length {length:>3}  loss {:.4}  {:>5.1} s",
                step + 1,
                loss.item()?,
                start.elapsed().as_secs_f64()
            );
        }
    }
    Ok(model)
}

/// Short sequences at first: where little stands between, what to do is learnt in few steps, and
/// those are fast. The length doubles until it is whole, for the second half of the training.
fn length_at(step: u64) -> usize {
    let doublings = (LENGTH / (2 * DATA)).ilog2();
    let stage = step * 2 * u64::from(doublings) / STEPS;
    LENGTH.min((2 * DATA) << stage)
}

/// The share of the answers, over 512 sequences that were not in the training, that are right.
fn accuracy(model: &Model, device: &Device) -> Result<f64> {
    let (mut right, mut all) = (0, 0);
    for batch in 0..512 / BATCH as u64 {
        let (tokens, answers) = sequences(LENGTH, STEPS + batch, device)?;
        let best = no_grad(|| {
            let x = model.forward(&tokens)?;
            linear(&x, Weight::nk(&model.head), None, Activation::None)?.argmax(2)
        })?;
        let (best, answers) = (best.read_blocking::<u32>()?, answers.read_blocking::<u32>()?);
        right += best.iter().zip(&answers).filter(|(best, answer)| best == answer).count();
        all += answers.len();
    }
    Ok(right as f64 / all as f64)
}

/// A batch: tokens `[BATCH, length + DATA]` and what the markers ask for, `[BATCH, DATA]`.
fn sequences(length: usize, seed: u64, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut random = Random(seed);
    let (mut tokens, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        let mut missing = DATA;
        for at in 0..length {
            // Data stand here with the probability that makes every choice of places equally
            // likely.
            let is_data = random.below(length - at) < missing;
            if is_data {
                missing -= 1;
                answers.push(FIRST_DATA + random.below(VOCABULARY - FIRST_DATA as usize) as u32);
            }
            tokens.push(if is_data { answers[answers.len() - 1] } else { NOISE });
        }
        tokens.extend([MARKER; DATA]);
    }
    let tokens = Tensor::new(&tokens, &[BATCH, length + DATA], device)?;
    Ok((tokens, Tensor::new(&answers, &[BATCH, DATA], device)?))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }
}

/// Where Δ, B and C come from. Everything else is the same, the convolution and the gate included,
/// as in the paper's comparison of S4 and S6 inside Mamba's architecture: what is left is selection
/// alone.
#[derive(Clone, Copy, Debug)]
enum Mixer {
    Selective,
    TimeInvariant,
}

impl Mixer {
    fn describe(self) -> &'static str {
        match self {
            Mixer::Selective => "from the input (selective)",
            Mixer::TimeInvariant => "the same at every step",
        }
    }
}

struct Model {
    embedding: Tensor, // [VOCABULARY, D_MODEL]
    layers: Vec<Layer>,
    norm: Tensor, // [D_MODEL]
    head: Tensor, // [VOCABULARY, D_MODEL]
}

struct Layer {
    norm: Tensor,      // [D_MODEL]
    in_x: Tensor,      // [D_INNER, D_MODEL]
    in_z: Tensor,      // [D_INNER, D_MODEL]
    conv: Tensor,      // [D_INNER, D_CONV]
    conv_bias: Tensor, // [D_INNER]
    dynamics: Dynamics,
    dt_bias: Tensor, // [D_INNER]
    a_log: Tensor,   // [D_INNER, D_STATE]
    skip: Tensor,    // [D_INNER]
    out: Tensor,     // [D_MODEL, D_INNER]
}

/// What Δ, B and C are computed from. Δ has a bias besides, which alone is the time-invariant one.
enum Dynamics {
    Selective {
        dt_in: Tensor,  // [DT_RANK, D_INNER]
        dt_out: Tensor, // [D_INNER, DT_RANK]
        b: Tensor,      // [D_STATE, D_INNER]
        c: Tensor,      // [D_STATE, D_INNER]
    },
    TimeInvariant {
        b: Tensor, // [D_STATE]
        c: Tensor, // [D_STATE]
    },
}

/// Initial values, as in Mamba: Δ log-uniform from 0.001 to 0.1, A = −1, −2, … −D_STATE.
struct Init<'a> {
    random: Random,
    device: &'a Device,
}

impl Init<'_> {
    fn normal(&mut self, shape: &[usize], deviation: f64) -> Result<Tensor> {
        let normal = Tensor::randn(shape, self.random.bits(), DType::F32, self.device)?;
        Ok(normal.scale(deviation)?.tracked())
    }

    /// A matrix `[n, k]` that keeps the scale of what it is applied to.
    fn matrix(&mut self, n: usize, k: usize) -> Result<Tensor> {
        self.normal(&[n, k], (k as f64).powf(-0.5))
    }

    fn full(&self, len: usize, value: f64) -> Result<Tensor> {
        Ok(Tensor::full(&[len], value, DType::F32, self.device)?.tracked())
    }

    fn dt_bias(&mut self) -> Result<Tensor> {
        let (least, most) = (0.001f64, 0.1f64);
        let uniform = Tensor::rand(&[D_INNER], self.random.bits(), DType::F64, &Device::Cpu)?;
        let dt =
            uniform.read_blocking::<f64>()?.into_iter().map(|u| least * (most / least).powf(u));
        let bias: Vec<f32> = dt.map(|dt| dt.exp_m1().ln() as f32).collect(); // softplus⁻¹
        Ok(Tensor::new(&bias, &[D_INNER], self.device)?.tracked())
    }

    fn a_log(&self) -> Result<Tensor> {
        let a_log = Tensor::arange(1, D_STATE as i64 + 1, DType::F32, self.device)?.log()?;
        Ok(a_log.broadcast_to(&[D_INNER, D_STATE])?.tracked())
    }

    fn dynamics(&mut self, mixer: Mixer) -> Result<Dynamics> {
        Ok(match mixer {
            Mixer::Selective => Dynamics::Selective {
                dt_in: self.matrix(DT_RANK, D_INNER)?,
                dt_out: self.matrix(D_INNER, DT_RANK)?,
                b: self.matrix(D_STATE, D_INNER)?,
                c: self.matrix(D_STATE, D_INNER)?,
            },
            Mixer::TimeInvariant => Dynamics::TimeInvariant {
                b: self.normal(&[D_STATE], 1.0)?,
                c: self.normal(&[D_STATE], 1.0)?,
            },
        })
    }

    fn layer(&mut self, mixer: Mixer) -> Result<Layer> {
        Ok(Layer {
            norm: self.full(D_MODEL, 1.0)?,
            in_x: self.matrix(D_INNER, D_MODEL)?,
            in_z: self.matrix(D_INNER, D_MODEL)?,
            conv: self.matrix(D_INNER, D_CONV)?,
            conv_bias: self.full(D_INNER, 0.0)?,
            dynamics: self.dynamics(mixer)?,
            dt_bias: self.dt_bias()?,
            a_log: self.a_log()?,
            skip: self.full(D_INNER, 1.0)?,
            out: self.matrix(D_MODEL, D_INNER)?,
        })
    }
}

impl Model {
    fn new(mixer: Mixer, device: &Device) -> Result<Model> {
        let mut init = Init { random: Random(u64::MAX), device };
        Ok(Model {
            embedding: init.normal(&[VOCABULARY, D_MODEL], 1.0)?,
            layers: (0..LAYERS).map(|_| init.layer(mixer)).collect::<Result<_>>()?,
            norm: init.full(D_MODEL, 1.0)?,
            head: init.matrix(VOCABULARY, D_MODEL)?,
        })
    }

    fn parameters(&mut self) -> Vec<&mut Tensor> {
        let Model { embedding, layers, norm, head } = self;
        let mut all = vec![embedding, norm, head];
        for layer in layers {
            let Layer { norm, in_x, in_z, conv, conv_bias, dynamics, dt_bias, a_log, skip, out } =
                layer;
            all.extend([norm, in_x, in_z, conv, conv_bias, dt_bias, a_log, skip, out]);
            match dynamics {
                Dynamics::Selective { dt_in, dt_out, b, c } => all.extend([dt_in, dt_out, b, c]),
                Dynamics::TimeInvariant { b, c } => all.extend([b, c]),
            }
        }
        all
    }

    /// Tokens `[BATCH, l]` to what the head turns into logits, at the markers: `[BATCH, DATA,
    /// D_MODEL]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut residual = embedding(&self.embedding, tokens)?;
        let mut x = rms_norm(&residual, &self.layers[0].norm, EPS)?;
        let next_norms = self.layers[1..].iter().map(|layer| &layer.norm).chain([&self.norm]);
        for (layer, norm) in self.layers.iter().zip(next_norms) {
            (x, residual) = add_rms_norm(&layer.forward(&x)?, &residual, norm, EPS)?;
        }
        let l = tokens.shape()[1];
        x.slice(1, l - DATA..l)
    }
}

impl Layer {
    /// `[BATCH, l, D_MODEL]` to the same.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (u, z) = (project(x, &self.in_x)?, project(x, &self.in_z)?);
        let (u, _) = causal_conv1d(&CausalConv1d {
            bias: Some(&self.conv_bias),
            activation: Activation::Silu,
            ..CausalConv1d::new(&u, &self.conv)
        })?;
        let [delta, b, c] = self.dynamics.at_every_step(&u)?;
        let (y, _) = selective_scan(&Scan {
            d: Some(&self.skip),
            delta_bias: Some(&self.dt_bias),
            z: Some(&z),
            ..Scan::new(&u, &delta, &self.a_log, &b, &c)
        })?;
        project(&y, &self.out)
    }
}

impl Dynamics {
    /// Δ without its bias `[BATCH, l, D_INNER]`, B and C `[BATCH, l, D_STATE]`, for `u`, `[BATCH,
    /// l, D_INNER]`.
    fn at_every_step(&self, u: &Tensor) -> Result<[Tensor; 3]> {
        match self {
            Dynamics::Selective { dt_in, dt_out, b, c } => {
                Ok([project(&project(u, dt_in)?, dt_out)?, project(u, b)?, project(u, c)?])
            }
            Dynamics::TimeInvariant { b, c } => {
                let shape = [u.shape()[0], u.shape()[1], D_STATE];
                let delta = Tensor::zeros(u.shape(), u.dtype(), u.device())?;
                Ok([delta, b.broadcast_to(&shape)?, c.broadcast_to(&shape)?])
            }
        }
    }
}

/// `x·wᵀ`
fn project(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    linear(x, Weight::nk(w), None, Activation::None)
}
