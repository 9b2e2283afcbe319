//! `taipan bench`: how fast this machine trains and runs models.

mod op;
mod run;
mod step;
mod together;

use std::fmt;
use std::time::Instant;

use serde::Serialize;
use taipan_lm::{AttentionConfig, Config, Family, LayerKind, Mamba3Config, Ssm};

pub use self::op::{
    Linear, Measured, Pass, Report as OpReport, ScanFlags, bench_linear, bench_scan, linear_of,
    scan_of,
};
pub use self::run::{Decode, Prefill, decode, prefill};
pub use self::step::{Step, step};
use crate::arch::{self, Arch, Hybrid};
use crate::machine::{self, Dtype};
use crate::{Failure, Usage};

/// What is measured in which type and where, and how often.
#[derive(clap::Args)]
struct Common {
    /// Dtype of the weights
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: Dtype,
    /// cpu, gpu, auto (a GPU if there is one), or a GPU's number or part of its name: see taipan
    /// devices
    #[arg(long, value_name = "DEVICE", default_value = machine::AUTO)]
    device: String,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Rounds to measure; the fastest is reported
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Where the time of some work goes, op by op.
#[derive(Serialize)]
struct Table {
    total_ms: f64,
    /// Kernels launched on a GPU.
    dispatches: usize,
    parts: Vec<OpTime>,
    /// The fraction of the total that these add up to.
    explained: f64,
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
struct OpTime {
    name: String,
    calls: usize,
    dispatches: usize,
    ms: f64,
}

impl Table {
    /// The profile of the fastest of some rounds, of which there is one at least.
    fn fastest(
        rounds: u32,
        mut work: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Table, Failure> {
        let profiles = (0..rounds).map(|_| {
            let (done, profile) = taipan::profile(&mut work);
            done.map(|()| profile)
        });
        let profiles = profiles.collect::<Result<Vec<_>, Failure>>()?;
        let fastest = profiles.into_iter().min_by_key(|profile| profile.total);
        let profile = fastest.expect("there is one round at least");
        let total_ms = 1e3 * profile.total.as_secs_f64();
        let parts = profile.spans.iter().map(|part| OpTime {
            name: part.name.clone(),
            calls: part.calls,
            dispatches: part.dispatches,
            ms: 1e3 * part.time.as_secs_f64(),
        });
        let parts: Vec<OpTime> = parts.collect();
        let explained = parts.iter().map(|part| part.ms).sum::<f64>() / total_ms;
        let dispatches = profile.dispatches();
        Ok(Table { total_ms, dispatches, parts, explained, text: profile.to_string() })
    }

    /// The seconds of an op.
    fn seconds_of(&self, op: &str) -> f64 {
        self.parts.iter().filter(|part| part.name == op).map(|part| 1e-3 * part.ms).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        writeln!(f, "these add up to {:.1} %", 100.0 * self.explained)
    }
}

/// The shape of a model of these sizes, as the benches' flags name them.
fn config(
    arch: Arch,
    [vocab_size, d_model, n_layer]: [usize; 3],
    d_state: Option<usize>,
) -> Result<Config, Failure> {
    let sizes = Config {
        vocab_size,
        hidden_size: d_model,
        layers: Config::ssm_layers(n_layer).map_err(Usage::from)?,
        state_size: d_state.unwrap_or(if arch == Arch::Mamba { 16 } else { 128 }),
        ..Config::default()
    };
    let config = match arch {
        Arch::Mamba => Config { ssm: Ssm::mamba(d_model.div_ceil(16)), ..sizes },
        Arch::Mamba2 => Config { family: Family::Mamba2, ssm: Ssm::mamba2(64), ..sizes },
        Arch::Mamba3 => {
            let ssm = Ssm::Mamba3(Mamba3Config::new(64));
            Config { family: Family::Mamba3, ssm, ..sizes }
        }
        Arch::Hybrid => {
            // A quarter of the layers, as in the presets.
            let layers = (0..n_layer).map(|i| match i % 4 {
                2 => LayerKind::Attention,
                _ => LayerKind::Ssm,
            });
            let (layers, heads) = (layers.collect(), (d_model / 64).max(1));
            let attention = AttentionConfig::new(heads, heads, 64);
            Hybrid { layers, head_dim: 64, attention, d_ff: arch::d_ff(d_model) }.config(sizes)
        }
    };
    config.check().map_err(Usage::from)?;
    Ok(config)
}

/// The operations of a model's products for so many tokens, two for each multiply-add, with the
/// logits of `rows` of them.
fn product_flops(config: &Config, tokens: usize, rows: usize) -> f64 {
    let (d, inner) = (config.hidden_size, config.inner_size());
    let n = config.state_size;
    let ssm = match config.ssm {
        Ssm::Mamba { time_step_rank: r, .. } => 3 * d * inner + (r + 2 * n) * inner + r * inner,
        Ssm::Mamba2 { head_dim, n_groups, .. } => {
            d * (3 * inner + 2 * n_groups * n + inner / head_dim)
        }
        Ssm::Mamba3(Mamba3Config { head_dim, n_groups, mimo_rank, rope_fraction, .. }) => {
            let (r, angles) = (mimo_rank.unwrap_or(1), (n as f64 * rope_fraction) as usize / 2);
            d * (3 * inner + 2 * r * n_groups * n + 3 * (inner / head_dim) + angles)
        }
    };
    // Projections alone: the products of attention depend on the length.
    let attention = config.attention.map_or(0, |attention| {
        let heads = 2 * (attention.num_heads + attention.num_key_value_heads);
        d * attention.head_dim * heads
    });
    let mlp = config.mlp.map_or(0, |mlp| 3 * d * mlp.size);
    let layer = |layer: &LayerKind| {
        let mixers = [(layer.has_ssm(), ssm), (layer.has_attention(), attention)];
        mlp + mixers.iter().filter(|(has, _)| *has).map(|(_, size)| size).sum::<usize>()
    };
    let products = tokens as f64 * config.layers.iter().map(layer).sum::<usize>() as f64;
    2.0 * (products + rows as f64 * (config.vocab_size * d) as f64)
}

fn seconds(f: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let began = Instant::now();
    f()?;
    Ok(began.elapsed().as_secs_f64())
}

/// The peak memory of this program so far, on Linux.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}
