//! Element-wise ops and reductions: on tensors larger than the caches against the time that memory
//! takes to read as much as they read and write, and on small ones against a microsecond.

#[path = "../report/mod.rs"]
mod report;

use report::{Contender, Options, Row, cpu_ms, race, race_by, wait, wall_ms};
use taipan::gpu::Gpu;
use taipan::{DType, Device, Result, Tensor, roofline};

fn main() -> Result<()> {
    report::run(cpu, gpu)
}

/// An op of two tensors, of which it may use only the first; and how many tensors of their size it
/// must at least read and write.
struct Measured {
    op: &'static str,
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    traffic: usize,
}

const OPS: [Measured; 15] = [
    Measured { op: "add", call: |a, b| a.add(b), traffic: 3 },
    Measured { op: "mul", call: |a, b| a.mul(b), traffic: 3 },
    Measured { op: "maximum", call: |a, b| a.maximum(b), traffic: 3 },
    Measured { op: "scale", call: |a, _| a.scale(0.5), traffic: 2 },
    Measured { op: "affine", call: |a, _| a.affine(0.5, 1.0), traffic: 2 },
    Measured { op: "relu", call: |a, _| a.relu(), traffic: 2 },
    Measured { op: "abs", call: |a, _| a.abs(), traffic: 2 },
    Measured { op: "exp", call: |a, _| a.exp(), traffic: 2 },
    Measured { op: "sin", call: |a, _| a.sin(), traffic: 2 },
    Measured { op: "pow(2)", call: |a, _| a.pow(2.0), traffic: 2 },
    Measured { op: "gt", call: |a, _| a.gt(0.0), traffic: 2 },
    Measured { op: "dropout", call: |a, _| a.dropout(0.1, 1), traffic: 2 },
    Measured { op: "sum", call: |a, _| a.sum(), traffic: 1 },
    Measured { op: "max_dims(0)", call: |a, _| a.max_dims(&[0]), traffic: 1 },
    Measured { op: "sum_dims(1)", call: |a, _| a.sum_dims(&[1]), traffic: 1 },
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
    for measured in &OPS {
        let read: Contender = Box::new(|| {
            Box::new(|| {
                roofline::read_rate(&[&a, &b]);
            })
        });
        let ms = race_by(clock, &mut [read, measured.contender([&a, &b], 1)]);
        let bound = ms[0] / 2.0 * measured.traffic as f64;
        options.report(&measured.row(LARGE, ms[1], ("memory", bound)));
    }
    const TIMES: usize = 10_000;
    let (a, b) = (random(&SMALL, 1)?, random(&SMALL, 2)?);
    for measured in &OPS {
        let ms = race_by(clock, &mut [measured.contender([&a, &b], TIMES)])[0] / TIMES as f64;
        options.report(&measured.row(SMALL, ms, ("1 µs", 0.001)));
    }
    Ok(())
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
        let bytes = (measured.traffic * a.len() * DType::F32.size()) as f64;
        options.report(&measured.row(LARGE, ms, ("a copy", bytes / bounds.memory * 1e3)));
    }
    Ok(())
}
