//! Element-wise ops and reductions: on tensors larger than the caches against what memory allows, and
//! on small ones against a microsecond.

#[path = "../report/mod.rs"]
mod report;

use std::hint::black_box;
use std::sync::Mutex;

use rayon::prelude::*;
use report::{Contender, Options, Row, cpu_ms, race, race_by, wait, wall_ms};
use taipan::gpu::Gpu;
use taipan::{DType, Device, Result, Tensor, roofline};

fn main() -> Result<()> {
    report::run(cpu, gpu)
}

/// An op of two tensors, of which it may use only the first; and which it reads and writes.
struct Measured {
    op: &'static str,
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    traffic: Traffic,
}

/// What an op cannot do without.
#[derive(Clone, Copy, PartialEq)]
enum Traffic {
    /// One tensor is read.
    Read,
    /// One is read, and one written.
    Copy,
    /// Two are read, and one written.
    Add,
}

const OPS: [Measured; 15] = [
    Measured { op: "add", call: |a, b| a.add(b), traffic: Traffic::Add },
    Measured { op: "mul", call: |a, b| a.mul(b), traffic: Traffic::Add },
    Measured { op: "maximum", call: |a, b| a.maximum(b), traffic: Traffic::Add },
    Measured { op: "scale", call: |a, _| a.scale(0.5), traffic: Traffic::Copy },
    Measured { op: "affine", call: |a, _| a.affine(0.5, 1.0), traffic: Traffic::Copy },
    Measured { op: "relu", call: |a, _| a.relu(), traffic: Traffic::Copy },
    Measured { op: "abs", call: |a, _| a.abs(), traffic: Traffic::Copy },
    Measured { op: "exp", call: |a, _| a.exp(), traffic: Traffic::Copy },
    Measured { op: "sin", call: |a, _| a.sin(), traffic: Traffic::Copy },
    Measured { op: "pow(2)", call: |a, _| a.pow(2.0), traffic: Traffic::Copy },
    Measured { op: "gt", call: |a, _| a.gt(0.0), traffic: Traffic::Copy },
    Measured { op: "dropout", call: |a, _| a.dropout(0.1, 1), traffic: Traffic::Copy },
    Measured { op: "sum", call: |a, _| a.sum(), traffic: Traffic::Read },
    Measured { op: "max_dims(0)", call: |a, _| a.max_dims(&[0]), traffic: Traffic::Read },
    Measured { op: "sum_dims(1)", call: |a, _| a.sum_dims(&[1]), traffic: Traffic::Read },
];

/// 64 MiB of f32.
const LARGE: [usize; 2] = [4096, 4096];
const SMALL: [usize; 2] = [8, 8];

impl Measured {
    /// So many calls.
    fn contender<'a>(&'a self, [a, b]: [&'a Tensor; 2], times: usize) -> Contender<'a> {
        Box::new(move || {
            Box::new(move || {
                for _ in 0..times {
                    (self.call)(a, b).expect(self.op);
                }
                wait(a.device());
            })
        })
    }

    fn row(&self, shape: [usize; 2], ms: f64, (baseline, baseline_ms): (&'static str, f64)) -> Row {
        let shape = shape.map(|size| size.to_string()).join("x");
        Row { op: self.op, shape, dtype: "f32".into(), ms, baseline, baseline_ms }
    }
}

fn cpu(options: &Options) -> Result<()> {
    options.peak();
    // The time of the one thread does not count what other programs take.
    let clock = if options.threads == 1 { cpu_ms } else { wall_ms };
    let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &Device::Cpu);
    let (a, b) = (random(&LARGE, 1)?, random(&LARGE, 2)?);
    let plain = Plain::new(&a, &b)?;
    for measured in &OPS {
        let ms = race_by(
            clock,
            &mut [plain.contender(measured.traffic), measured.contender([&a, &b], 1)],
        );
        options.report(&measured.row(LARGE, ms[1], ("plain loop", ms[0])));
    }
    const TIMES: usize = 10_000;
    let (a, b) = (random(&SMALL, 1)?, random(&SMALL, 2)?);
    for measured in &OPS {
        let ms = race_by(clock, &mut [measured.contender([&a, &b], TIMES)])[0] / TIMES as f64;
        options.report(&measured.row(SMALL, ms, ("1 µs", 0.001)));
    }
    Ok(())
}

/// The baseline: loops that read and write as much, and compute next to nothing.
struct Plain {
    a: Vec<f32>,
    b: Vec<f32>,
    out: Mutex<Vec<f32>>,
}

impl Plain {
    fn new(a: &Tensor, b: &Tensor) -> Result<Plain> {
        let (a, b) = (a.read_blocking::<f32>()?, b.read_blocking::<f32>()?);
        let out = Mutex::new(a.clone());
        Ok(Plain { a, b, out })
    }

    fn contender(&self, traffic: Traffic) -> Contender<'_> {
        Box::new(move || Box::new(move || self.run(traffic)))
    }

    fn run(&self, traffic: Traffic) {
        const CHUNK: usize = 1 << 14;
        let mut out = self.out.lock().expect("nobody panicked");
        let inputs = self.a.par_chunks(CHUNK).zip(self.b.par_chunks(CHUNK));
        if traffic == Traffic::Read {
            let largest = self.a.par_chunks(CHUNK).map(|a| {
                let mut lanes = [0f32; 64];
                for a in a.as_chunks::<64>().0 {
                    lanes = std::array::from_fn(|i| lanes[i] + a[i]);
                }
                lanes[0]
            });
            black_box(largest.reduce(|| 0.0, f32::max));
            return;
        }
        inputs.zip(out.par_chunks_mut(CHUNK)).for_each(|((a, b), out)| match traffic {
            Traffic::Add => {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = a + b;
                }
            }
            _ => {
                for (out, a) in out.iter_mut().zip(a) {
                    *out = a * 0.5;
                }
            }
        });
    }
}

fn gpu(options: &Options, gpu: &Gpu) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    let bounds = roofline::bounds(&device)?;
    let name = device.describe();
    options.say(&format!("{name}, copies {:.1} GB/s", bounds.memory / 1e9));
    let (a, b) =
        (Tensor::ones(&LARGE, DType::F32, &device)?, Tensor::ones(&LARGE, DType::F32, &device)?);
    for measured in &OPS {
        let ms = race(&mut [measured.contender([&a, &b], 1)])[0];
        let tensors = match measured.traffic {
            Traffic::Read => 1,
            Traffic::Copy => 2,
            Traffic::Add => 3,
        };
        let bytes = (tensors * a.len() * DType::F32.size()) as f64;
        options.report(&measured.row(LARGE, ms, ("a copy", bytes / bounds.memory * 1e3)));
    }
    Ok(())
}
