//! On the CPU, against what a core of a given speed should take.

use taipan::{DType, Device, Discretization, Result, Scan, Tensor, selective_scan_step};

use crate::Inputs;
use crate::report::{Contender, Options, Row, cpu_ms, race_by, wall_ms};

/// Milliseconds for [`SIZES`] in f32 on a core with an FMA peak of 100 GF/s: forward, and forward
/// with backward.
const GOALS: [f64; 2] = [60.0, 320.0];
const SIZES: [usize; 4] = [4, 1024, 1536, 16];

pub fn run(options: &Options) -> Result<()> {
    let peak = options.peak();
    // The time of the one thread does not count what other programs take.
    let clock = if options.threads == 1 { cpu_ms } else { wall_ms };
    let shape = SIZES.map(|size| size.to_string()).join("x");
    let report = |op, dtype: DType, ms, baseline, baseline_ms| {
        let (shape, dtype) = (shape.clone(), dtype.to_string());
        options.report(&Row { op, shape, dtype, ms, baseline, baseline_ms });
    };
    let inputs = Inputs::new(SIZES, DType::F32, &Device::Cpu)?;
    let of = |inputs: &'_ Inputs, discretization| {
        race_by(
            clock,
            &mut [inputs.forward(discretization), inputs.forward_backward(discretization)],
        )
    };
    let euler = of(&inputs, Discretization::Euler);
    let goal = GOALS.map(|goal| goal * 100.0 / peak);
    report("scan.forward", DType::F32, euler[0], "goal", goal[0]);
    report("scan.forward_backward", DType::F32, euler[1], "goal", goal[1]);
    let zero_order = of(&inputs, Discretization::ZeroOrderHold);
    report("scan.zoh.forward", DType::F32, zero_order[0], "euler", euler[0]);
    report("scan.zoh.forward_backward", DType::F32, zero_order[1], "euler", euler[1]);
    for dtype in [DType::F16, DType::BF16] {
        let half = of(&Inputs::new(SIZES, dtype, &Device::Cpu)?, Discretization::Euler);
        report("scan.forward", dtype, half[0], "f32", euler[0]);
        report("scan.forward_backward", dtype, half[1], "f32", euler[1]);
    }
    step(options, clock)
}

/// One step of decoding.
fn step(options: &Options, clock: fn() -> f64) -> Result<()> {
    const STEPS: usize = 1000;
    let [_, _, d, n] = SIZES;
    let inputs = Inputs::new([1, 1, d, n], DType::F32, &Device::Cpu)?;
    let [u, delta, z] = [&inputs.u, &inputs.delta, &inputs.z].map(|t| t.reshape(&[1, d]));
    let [b, c] = [&inputs.b, &inputs.c].map(|t| t.reshape(&[1, n]));
    let (u, delta, z, b, c) = (u?, delta?, z?, b?, c?);
    let state = Tensor::zeros(&[1, d, n], DType::F32, &Device::Cpu)?;
    let steps: Contender = Box::new(|| {
        Box::new(|| {
            let mut state = state.clone();
            for _ in 0..STEPS {
                let scan = Scan {
                    initial_state: Some(&state),
                    z: Some(&z),
                    ..inputs.scan(Discretization::Euler)
                };
                let scan = Scan { u: &u, delta: &delta, b: &b, c: &c, ..scan };
                state = selective_scan_step(&scan).expect("a step").1;
            }
        })
    });
    let ms = race_by(clock, &mut [steps])[0] / STEPS as f64;
    let (shape, dtype) = (format!("1x1x{d}x{n}"), "f32".into());
    options.report(&Row {
        op: "scan.step",
        shape,
        dtype,
        ms,
        baseline: "40 µs",
        baseline_ms: 0.04,
    });
    Ok(())
}
