//! On a GPU, against naive kernels: in 16×16 tiles, and without tiles.

use taipan::gpu::Gpu;
use taipan::{Activation, DType, Device, Result, Tensor};

use crate::Layer;
use crate::baseline::Baseline;
use crate::report::{Contender, Options, Row, cpu_ms, race, wait};

pub fn run(options: &Options, gpu: &Gpu) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    options.say(&format!("{}, {}", device.describe(), gpu.info().driver_info));
    for sizes in [[512; 3], [1024; 3], [2048, 256, 1024], [2048, 768, 64], [1, 768, 3072]] {
        compare(options, gpu, sizes)?;
    }
    overhead(options, gpu)
}

/// Forward and backward with gelu against the plain product of the baselines.
fn compare(options: &Options, gpu: &Gpu, sizes: [usize; 3]) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    let [m, k, n] = sizes;
    let report = |op, dtype: DType, ms, baseline, baseline_ms| {
        let (shape, dtype) = (format!("{m}x{k}x{n}"), dtype.to_string());
        options.report(&Row { op, shape, dtype, ms, baseline, baseline_ms });
    };
    let layer = Layer::new(sizes, DType::F32, &device)?;
    let tile16 = Baseline::new(gpu, Baseline::TILE16, &layer.x, &layer.w)?;
    let untiled = Baseline::new(gpu, Baseline::UNTILED, &layer.x, &layer.w)?;
    for baseline in [&tile16, &untiled] {
        check(baseline, &layer)?;
    }
    let ms = race(&mut [
        contender(&tile16),
        contender(&untiled),
        layer.forward(Activation::Gelu),
        layer.backward(),
    ]);
    let speed = |ms: f64| 2e-6 * (m * k * n) as f64 / ms;
    options.say(&format!(
        "{m}x{k}x{n}: tile16 {:.2} GF/s, untiled {:.2}, taipan {:.2}",
        speed(ms[0]),
        speed(ms[1]),
        speed(ms[2])
    ));
    report("linear.forward", DType::F32, ms[2], "tile16", ms[0]);
    report("linear.forward", DType::F32, ms[2], "untiled", ms[1]);
    report("linear.backward", DType::F32, ms[3], "tile16", ms[0]);
    report("linear.backward", DType::F32, ms[3], "forward", ms[2]);
    if device.supports(DType::F16) {
        let half = Layer::new(sizes, DType::F16, &device)?;
        let ms = race(&mut [
            layer.forward(Activation::Gelu),
            half.forward(Activation::Gelu),
            layer.backward(),
            half.backward(),
        ]);
        report("linear.forward", DType::F16, ms[1], "taipan f32", ms[0]);
        report("linear.backward", DType::F16, ms[3], "taipan f32", ms[2]);
    }
    Ok(())
}

/// The cost of a launch on the host: the time of this thread for an op on tiny tensors.
fn overhead(options: &Options, gpu: &Gpu) -> Result<()> {
    const OPS: usize = 1000;
    let device = Device::Gpu(gpu.clone());
    let x = Tensor::randn(&[16], 1, DType::F32, &device)?;
    let chain = || (0..OPS).try_fold(x.clone(), |y, _| y.add(&x));
    chain()?;
    let mut best = f64::INFINITY;
    let before = gpu.work();
    for _ in 0..5 {
        let start = cpu_ms();
        chain()?;
        best = best.min((cpu_ms() - start) / OPS as f64);
    }
    let submissions = (gpu.work().submissions - before.submissions) as f64 / 5.0;
    wait(&device);
    options.say(&format!("{OPS} dependent launches: {submissions:.1} submissions"));
    let (shape, dtype) = ("16".into(), "f32".into());
    options.report(&Row {
        op: "add",
        shape,
        dtype,
        ms: best,
        baseline: "40 µs",
        baseline_ms: 0.04,
    });
    Ok(())
}

/// Compute and wait.
fn compute(baseline: &Baseline) {
    baseline.submit();
    wait(baseline.y.device());
}

fn contender(baseline: &Baseline) -> Contender<'_> {
    Box::new(|| Box::new(|| compute(baseline)))
}

/// Check that it computes the same as taipan.
fn check(baseline: &Baseline, layer: &Layer) -> Result<()> {
    compute(baseline);
    let expected = layer.x.matmul(&layer.w)?.read_blocking::<f32>()?;
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3;
    let y = baseline.y.read_blocking::<f32>()?;
    assert!(y.iter().zip(&expected).all(close), "a baseline computes something else");
    Ok(())
}
