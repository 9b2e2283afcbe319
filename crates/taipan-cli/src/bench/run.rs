//! `taipan bench decode` and `taipan bench prefill`: how fast this machine runs models.

use std::fmt;

use serde::Serialize;
use taipan::{Device, Tensor, roofline};
use taipan_lm::{LanguageModel, State};

use super::{Common, Table, config, peak_memory, product_flops, seconds};
use crate::arch::Arch;
use crate::machine::{self, Quantize};
use crate::{Failure, usage};

/// The model, and how it runs. The defaults are the shape of mamba-130m.
#[derive(clap::Args)]
struct Model {
    /// Width of the model
    #[arg(long, value_name = "N", default_value_t = 768)]
    d_model: usize,
    /// Number of layers
    #[arg(long, value_name = "N", default_value_t = 24)]
    n_layer: usize,
    /// Mixers of the model
    #[arg(long, value_name = "NAME", default_value = "mamba")]
    arch: Arch,
    /// State size per channel [default: 16; of others, 128]
    #[arg(long, value_name = "N")]
    d_state: Option<usize>,
    /// Size of the vocabulary
    #[arg(long, value_name = "N", default_value_t = 50280)]
    vocab_size: usize,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Weights in fewer bits
    #[arg(long, value_name = "TYPE")]
    quantize: Option<Quantize>,
    /// Show where the time goes, op by op
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    common: Common,
}

/// What to measure: a token of each sequence, after the tokens before it.
#[derive(clap::Args)]
pub struct Decode {
    #[command(flatten)]
    model: Model,
}

/// What to measure: a prompt of each sequence, up to the logits after it.
#[derive(clap::Args)]
pub struct Prefill {
    #[command(flatten)]
    model: Model,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 1024)]
    tokens: usize,
}

/// The keys of `--json` are these fields, and those of the bound.
#[derive(Serialize)]
struct Report<B> {
    device: String,
    threads: usize,
    /// Of the weights.
    dtype: String,
    parameters: usize,
    batch: usize,
    /// Of one sequence, in a round.
    tokens: usize,
    /// The time of the fastest round, by all tokens of it.
    token_ms: f64,
    tokens_per_second: f64,
    #[serde(flatten)]
    bound: B,
    /// The peak memory of the program, in bytes, where the system reports it.
    peak_memory: Option<u64>,
    profile: Option<Table>,
}

/// Decoding is bound by memory: each token reads all weights.
#[derive(Serialize)]
struct Bandwidth {
    weight_bytes: usize,
    /// Bytes of weights per second, in 10⁹.
    weight_gbs: f64,
    /// What a loop that only reads the weights reached at the same time; absent on a GPU.
    memory_gbs: Option<f64>,
    fraction: Option<f64>,
}

/// A prompt is bound by arithmetic: each token multiplies all matrices but the tables of tokens.
#[derive(Serialize)]
struct Arithmetic {
    /// Operations of the products per second of the whole prompt, in 10⁹.
    gflops: f64,
    /// The same per second of the products alone.
    product_gflops: f64,
    /// What multiply-adds in registers reached at the same time; absent on a GPU.
    peak_gflops: Option<f64>,
    fraction: Option<f64>,
    product_fraction: Option<f64>,
}

/// Measure and print.
pub fn decode(flags: &Decode) -> Result<(), Failure> {
    let report = machine::with_threads(flags.model.common.threads, || {
        let mut run = Run::new(&flags.model, 1)?;
        let (on_cpu, model) = (run.on_cpu(), run.model.clone());
        let weights = model.weights();
        let (fastest, memory) = run.fastest(|| on_cpu.then(|| roofline::read_rate(&weights)))?;
        let weight_bytes = weights.iter().map(|weight| weight.len() * weight.dtype().size()).sum();
        let rate = weight_bytes as f64 / fastest;
        let bound = Bandwidth {
            weight_bytes,
            weight_gbs: 1e-9 * rate,
            memory_gbs: memory.map(|memory| 1e-9 * memory),
            fraction: memory.map(|memory| rate / memory),
        };
        let peak_memory = peak_memory();
        let profile = flags.model.profile.then(|| run.profile()).transpose()?;
        Ok(run.report(fastest, bound, peak_memory, profile))
    })?;
    crate::print_report(&report, flags.model.common.json)
}

/// Measure and print.
pub fn prefill(flags: &Prefill) -> Result<(), Failure> {
    let report = machine::with_threads(flags.model.common.threads, || {
        let mut run = Run::new(&flags.model, flags.tokens)?;
        let on_cpu = run.on_cpu();
        let (fastest, peak) = run.fastest(|| on_cpu.then(roofline::flops))?;
        let peak_memory = peak_memory();
        let table = run.profile()?;
        let (flops, products) = (run.product_flops(), table.seconds_of("linear"));
        let bound = Arithmetic {
            gflops: 1e-9 * flops / fastest,
            product_gflops: 1e-9 * flops / products,
            peak_gflops: peak.map(|peak| 1e-9 * peak),
            fraction: peak.map(|peak| flops / fastest / peak),
            product_fraction: peak.map(|peak| flops / products / peak),
        };
        Ok(run.report(fastest, bound, peak_memory, flags.model.profile.then_some(table)))
    })?;
    crate::print_report(&report, flags.model.common.json)
}

/// A model, and what it is given.
struct Run<'a> {
    flags: &'a Model,
    model: LanguageModel,
    /// `[batch, tokens]`
    ids: Tensor,
    /// After earlier tokens, for decoding; none before a prompt.
    state: Option<State>,
}

impl<'a> Run<'a> {
    fn new(flags: &'a Model, tokens: usize) -> Result<Run<'a>, Failure> {
        let device = machine::name_for(&flags.common.device, flags.quantize);
        let device = machine::device(device, flags.common.dtype)?;
        let config =
            config(flags.arch, [flags.vocab_size, flags.d_model, flags.n_layer], flags.d_state)?;
        let all = flags.batch.saturating_mul(tokens);
        if !(1..=1 << 20).contains(&all) {
            return usage(format!("--batch × --tokens is {all}, expected 1 to 2^20"));
        }
        let model = LanguageModel::new(&config, flags.common.dtype.into(), 1, &device)?;
        let model = match flags.quantize {
            Some(Quantize::Int8) => model.quantized()?,
            None => model,
        };
        // No two neighbours are equal.
        let ids: Vec<u32> = (0..all).map(|i| (i * 7919 % flags.vocab_size) as u32).collect();
        let ids = Tensor::new(&ids, &[flags.batch, tokens], &device)?;
        let mut run = Run { flags, model, ids, state: None };
        // The first compiles kernels and fills the memory pool.
        let state = run.next()?;
        run.state = (tokens == 1).then_some(state);
        Ok(run)
    }

    fn on_cpu(&self) -> bool {
        *self.model.device() == Device::Cpu
    }

    /// One round: it waits for the device by choosing a token.
    fn next(&mut self) -> Result<State, Failure> {
        let (logits, state) = self.model.next(&self.ids, self.state.take())?;
        logits.argmax(1)?.read_blocking::<u32>()?;
        Ok(state)
    }

    fn round(&mut self) -> Result<(), Failure> {
        let continues = self.state.is_some();
        let state = self.next()?;
        self.state = continues.then_some(state);
        Ok(())
    }

    /// The seconds of the fastest round, and the highest bound, measured between rounds.
    fn fastest(&mut self, bound: impl Fn() -> Option<f64>) -> Result<(f64, Option<f64>), Failure> {
        let (mut fastest, mut highest) = (f64::INFINITY, None);
        for _ in 0..self.flags.common.rounds {
            fastest = fastest.min(seconds(|| self.round())?);
            highest = bound().map(|bound| bound.max(highest.unwrap_or(0.0)));
        }
        Ok((fastest, highest))
    }

    fn profile(&mut self) -> Result<Table, Failure> {
        Table::fastest(self.flags.common.rounds, || self.round())
    }

    /// Of a round. Of the head, only the last position of a prompt is computed.
    fn product_flops(&self) -> f64 {
        product_flops(self.model.config(), self.ids.len(), self.ids.shape()[0])
    }

    fn report<B>(
        &self,
        fastest: f64,
        bound: B,
        peak_memory: Option<u64>,
        profile: Option<Table>,
    ) -> Report<B> {
        let [batch, tokens] = [self.ids.shape()[0], self.ids.shape()[1]];
        let rate = (batch * tokens) as f64 / fastest;
        Report {
            device: self.model.device().describe(),
            threads: rayon::current_num_threads(),
            dtype: match self.flags.quantize {
                Some(Quantize::Int8) => "int8".into(),
                None => self.model.dtype().to_string(),
            },
            parameters: self.model.config().parameters(),
            batch,
            tokens,
            token_ms: 1e3 / rate,
            tokens_per_second: rate,
            bound,
            peak_memory,
            profile,
        }
    }
}

impl<B: fmt::Display> fmt::Display for Report<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millions = self.parameters as f64 / 1e6;
        writeln!(f, "{}", self.device)?;
        write!(f, "{millions:.1} M parameters in {}, ", self.dtype)?;
        writeln!(f, "{} x {} tokens", self.batch, self.tokens)?;
        writeln!(f, "token    {:>9.2} ms  {:.1} tokens/s", self.token_ms, self.tokens_per_second)?;
        write!(f, "{}", self.bound)?;
        if let Some(bytes) = self.peak_memory {
            writeln!(f, "memory   {:>9}", crate::bytes(bytes))?;
        }
        match &self.profile {
            Some(table) => write!(f, "\n{table}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights  {:>9.1} GB/s", self.weight_gbs)?;
        if let (Some(memory), Some(fraction)) = (self.memory_gbs, self.fraction) {
            write!(f, ", {:.0} % of the {memory:.1} GB/s of memory", 100.0 * fraction)?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rate, fraction) in [
            ("prompt", self.gflops, self.fraction),
            ("products", self.product_gflops, self.product_fraction),
        ] {
            write!(f, "{name:<8} {rate:>9.1} GF/s")?;
            if let (Some(peak), Some(fraction)) = (self.peak_gflops, fraction) {
                write!(f, ", {:.0} % of the {peak:.1} GF/s of multiply-adds", 100.0 * fraction)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
