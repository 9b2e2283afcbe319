//! `taipan bench linear` and `taipan bench scan`: how close single ops come to what the device can
//! do at all.

use std::fmt;

use serde::Serialize;
use taipan::roofline::Bounds;
use taipan::{
    Activation, DType, Device, Discretization, Scan, Tensor, Weight, linear, roofline,
    selective_scan,
};

use super::{Common, seconds};
use crate::machine;
use crate::{Failure, usage};

/// What to measure: `gelu(x·Wᵀ + bias)`, forward and backward.
#[derive(clap::Args)]
pub struct Linear {
    /// Rows of x
    #[arg(long, value_name = "N", default_value_t = 2048)]
    rows: usize,
    /// Inputs of the layer
    #[arg(long, value_name = "N", default_value_t = 768)]
    inputs: usize,
    /// Outputs of the layer
    #[arg(long, value_name = "N", default_value_t = 3072)]
    outputs: usize,
    #[command(flatten)]
    common: Common,
}

/// What to measure: the selective scan with skip, bias, softplus and gate, forward and backward.
#[derive(clap::Args)]
pub struct ScanFlags {
    /// Sequences
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch_size: usize,
    /// Steps of a sequence
    #[arg(long, value_name = "N", default_value_t = 1024)]
    length: usize,
    /// Channels
    #[arg(long, value_name = "N", default_value_t = 1536)]
    channels: usize,
    /// State size per channel
    #[arg(long, value_name = "N", default_value_t = 16)]
    d_state: usize,
    #[command(flatten)]
    common: Common,
}

/// The keys of `--json` are these fields.
#[derive(Serialize)]
pub struct Report {
    pub op: &'static str,
    /// `[m, k, n]` of a product, `[b, l, d, n]` of a scan.
    pub shape: Vec<usize>,
    dtype: String,
    device: String,
    driver: Option<String>,
    threads: usize,
    /// In the same run: bytes per second that the device reads (a GPU: copies), and floating-point
    /// operations per second of multiply-adds in registers, both in 10⁹.
    memory_gbs: f64,
    peak_gflops: f64,
    pub forward: Pass,
    /// From what forward saved.
    pub backward: Pass,
}

/// The fastest time, and what it is of the bounds.
#[derive(Serialize)]
pub struct Pass {
    pub ms: f64,
    /// Of all inputs and results, each once.
    gbs: f64,
    pub memory_fraction: f64,
    /// Of matrix products alone.
    gflops: Option<f64>,
    pub peak_fraction: Option<f64>,
}

/// Measure and print.
pub fn bench_linear(flags: &Linear) -> Result<(), Failure> {
    let sizes = [flags.rows, flags.inputs, flags.outputs];
    check("--rows × --inputs × --outputs", &sizes)?;
    report(&flags.common, |device, dtype| linear_of(sizes, dtype, device))
}

/// Measure and print.
pub fn bench_scan(flags: &ScanFlags) -> Result<(), Failure> {
    let sizes = [flags.batch_size, flags.length, flags.channels, flags.d_state];
    check("--batch-size × --length × --channels × --d-state", &sizes)?;
    report(&flags.common, |device, dtype| scan_of(sizes, dtype, device))
}

/// `gelu(x·Wᵀ + bias)` for `x` `[m, k]` and `n` outputs.
pub fn linear_of(
    [m, k, n]: [usize; 3],
    dtype: DType,
    device: &Device,
) -> Result<Measured, Failure> {
    let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, device);
    let w = randn(&[n, k], 2)?.scale((k as f64).powf(-0.5))?;
    Ok(Measured {
        op: "linear",
        shape: vec![m, k, n],
        leaves: vec![randn(&[m, k], 1)?, w, randn(&[n], 3)?],
        upstream: randn(&[m, n], 4)?,
        run: |leaves| {
            linear(&leaves[0], Weight::nk(&leaves[1]), Some(&leaves[2]), Activation::Gelu)
        },
        flops: Some(2.0 * (m * k * n) as f64),
    })
}

/// The selective scan of `[b, l, d]` with `n` states.
pub fn scan_of(
    [b, l, d, n]: [usize; 4],
    dtype: DType,
    device: &Device,
) -> Result<Measured, Failure> {
    let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, device);
    let [u, delta, z, upstream] = [1, 2, 3, 4].map(|seed| randn(&[b, l, d], seed));
    let [bm, c] = [5, 6].map(|seed| randn(&[b, l, n], seed));
    // The recurrence is f32 in half precision.
    let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
    let a_log = Tensor::arange(1, n as i64 + 1, wide, device)?.log()?.broadcast_to(&[d, n])?;
    let [skip, bias] = [7, 8].map(|seed| Tensor::randn(&[d], seed, wide, device));
    Ok(Measured {
        op: "selective_scan",
        shape: vec![b, l, d, n],
        leaves: vec![u?, delta?, a_log, bm?, c?, skip?, bias?, z?],
        upstream: upstream?,
        run: |t| {
            let scan = Scan {
                d: Some(&t[5]),
                delta_bias: Some(&t[6]),
                z: Some(&t[7]),
                discretization: Discretization::Euler,
                ..Scan::new(&t[0], &t[1], &t[2], &t[3], &t[4])
            };
            Ok(selective_scan(&scan)?.0)
        },
        flops: None,
    })
}

/// The product of sizes, which must be such that a tensor of them can be had.
fn check(names: &str, sizes: &[usize]) -> Result<usize, Failure> {
    let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    match product.filter(|product| (1..=1 << 40).contains(product)) {
        Some(product) => Ok(product),
        None => usage(format!("{names} is {sizes:?}, expected a product of 1 to 2^40")),
    }
}

/// An op with its inputs.
pub struct Measured {
    op: &'static str,
    shape: Vec<usize>,
    leaves: Vec<Tensor>,
    upstream: Tensor,
    run: fn(&[Tensor]) -> taipan::Result<Tensor>,
    flops: Option<f64>,
}

fn report(
    flags: &Common,
    measured: impl Fn(&Device, DType) -> Result<Measured, Failure> + Sync,
) -> Result<(), Failure> {
    let report = machine::with_threads(flags.threads, || {
        let device = machine::device(&flags.device, flags.dtype)?;
        measured(&device, flags.dtype.into())?.report(flags.rounds, || roofline::bounds(&device))
    })?;
    crate::print_report(&report, flags.json)
}

impl Measured {
    /// Measure, and then the bounds.
    pub fn report(
        self,
        rounds: u32,
        bounds: impl FnOnce() -> taipan::Result<Bounds>,
    ) -> Result<Report, Failure> {
        let (mut forward, mut backward) = (f64::INFINITY, f64::INFINITY);
        // The first compiles kernels and fills the memory pool.
        self.rounds()?;
        for _ in 0..rounds {
            let [one, other] = self.rounds()?;
            (forward, backward) = (forward.min(one), backward.min(other));
        }
        let bounds = bounds()?;
        let bytes = |tensors: &[&Tensor]| -> f64 {
            tensors.iter().map(|t| t.len() * t.dtype().size()).sum::<usize>() as f64
        };
        let leaves: Vec<&Tensor> = self.leaves.iter().collect();
        let (inputs, result) = (bytes(&leaves), bytes(&[&self.upstream]));
        let pass = |seconds: f64, bytes: f64, flops: Option<f64>| Pass {
            ms: 1e3 * seconds,
            gbs: 1e-9 * bytes / seconds,
            memory_fraction: bytes / seconds / bounds.memory,
            gflops: flops.map(|flops| 1e-9 * flops / seconds),
            peak_fraction: flops.map(|flops| flops / seconds / bounds.flops),
        };
        let device = self.upstream.device();
        Ok(Report {
            op: self.op,
            dtype: self.upstream.dtype().to_string(),
            device: device.describe(),
            driver: match device {
                Device::Gpu(gpu) => Some(gpu.info().driver_info.clone()),
                _ => None,
            },
            threads: rayon::current_num_threads(),
            memory_gbs: 1e-9 * bounds.memory,
            peak_gflops: 1e-9 * bounds.flops,
            forward: pass(forward, inputs + result, self.flops),
            // Reads the inputs and the upstream, and writes the gradients of all inputs.
            backward: pass(backward, 2.0 * inputs + result, self.flops.map(|f| 2.0 * f)),
            shape: self.shape,
        })
    }

    /// The seconds of a forward pass, and of the backward pass after it.
    fn rounds(&self) -> Result<[f64; 2], Failure> {
        let leaves: Vec<Tensor> = self.leaves.iter().map(|leaf| leaf.clone().tracked()).collect();
        let device = self.upstream.device();
        let mut y = None;
        let forward = seconds(|| {
            y = Some((self.run)(&leaves)?);
            synchronize(device)
        })?;
        let y = y.expect("it was computed");
        let backward = seconds(|| {
            let grads = y.backward_from(&self.upstream)?;
            leaves.iter().try_for_each(|leaf| grads.of(leaf).map(drop))?;
            synchronize(device)
        })?;
        Ok([forward, backward])
    }
}

/// Wait until the device has done what it was given.
fn synchronize(device: &Device) -> Result<(), Failure> {
    match device {
        Device::Gpu(gpu) => Ok(gpu.synchronize()?),
        _ => Ok(()),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        writeln!(f, "{}", self.device)?;
        writeln!(f, "{} {} in {}", self.op, shape.join("x"), self.dtype)?;
        for (name, pass) in [("forward", &self.forward), ("backward", &self.backward)] {
            write!(f, "{name:<9} {:>9.2} ms  ", pass.ms)?;
            let percent = |fraction: f64| 100.0 * fraction;
            match (pass.gflops, pass.peak_fraction) {
                (Some(gflops), Some(fraction)) => {
                    writeln!(f, "{gflops:.1} GF/s, {:.0} % of the device's", percent(fraction))?
                }
                _ => {
                    let fraction = percent(pass.memory_fraction);
                    writeln!(f, "{:.1} GB/s, {fraction:.0} % of the device's", pass.gbs)?
                }
            }
        }
        writeln!(f, "memory    {:>9.1} GB/s", self.memory_gbs)?;
        writeln!(f, "fma       {:>9.1} GF/s", self.peak_gflops)?;
        writeln!(f, "to share: the same command with --json")
    }
}
