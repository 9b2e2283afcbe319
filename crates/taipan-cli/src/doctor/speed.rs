//! How close products and scans come to what the device can do at all.

use serde::Serialize;
use taipan::{DType, Device, roofline};

use super::screen::Screen;
use crate::Failure;
use crate::bench::{Measured, OpReport, linear_of, scan_of};

/// What was measured; `taipan bench` measures more.
#[derive(Serialize)]
pub struct Speed {
    /// Bytes per second that the device reads (a GPU: copies), in 10⁹.
    pub memory_gbs: f64,
    /// Operations per second of multiply-adds in registers, in 10⁹.
    pub peak_gflops: f64,
    pub ops: Vec<OpReport>,
}

/// How often each is measured; the fastest counts.
const ROUNDS: u32 = 5;

/// Measure in f32.
pub fn measure(device: &Device, screen: &mut Screen) -> Result<Speed, Failure> {
    screen.note("speed");
    let bounds = roofline::bounds(device)?;
    let linear = linear_of([512, 512, 512], DType::F32, device)?;
    let scan = scan_of([1, 512, 512, 16], DType::F32, device)?;
    let report = |measured: Measured| measured.report(ROUNDS, || Ok(bounds));
    Ok(Speed {
        memory_gbs: 1e-9 * bounds.memory,
        peak_gflops: 1e-9 * bounds.flops,
        ops: vec![report(linear)?, report(scan)?],
    })
}
