//! `taipan bench step`: how fast this machine trains.

use std::fmt;

use serde::Serialize;
use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{DType, Device, Tensor, roofline};
use taipan_lm::{Batch, LanguageModel, Lora};

use super::{Common, Table, config, peak_memory, product_flops, seconds, together};
use crate::arch::Arch;
use crate::job::{self, Job};
use crate::machine;
use crate::{Failure, usage};

/// What to measure: a step of training with these sizes.
#[derive(clap::Args)]
pub struct Step {
    /// Width of the model
    #[arg(long, value_name = "N", default_value_t = 256)]
    d_model: usize,
    /// Number of layers
    #[arg(long, value_name = "N", default_value_t = 4)]
    n_layer: usize,
    /// Mixers of the model
    #[arg(long, value_name = "NAME", default_value = "mamba")]
    pub(super) arch: Arch,
    /// State size per channel [default: 16; of others, 128]
    #[arg(long, value_name = "N")]
    pub(super) d_state: Option<usize>,
    /// Size of the vocabulary
    #[arg(long, value_name = "N", default_value_t = 256)]
    vocab_size: usize,
    /// Sequences per batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) batch_size: usize,
    /// Tokens per sequence
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) block_size: usize,
    /// Batches per step, which MPI's ranks share [default: their number]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    grad_accum: Option<u32>,
    /// Train LoRA adapters of this rank, and nothing else, and compare with the step of a frozen model
    /// without adapters
    #[arg(long, value_name = "RANK")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 12))]
    lora: Option<u32>,
    /// Show where the time of a step goes, op by op
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Step {
    /// Of the model: vocabulary, width and layers.
    pub(super) fn shape(&self) -> [usize; 3] {
        [self.vocab_size, self.d_model, self.n_layer]
    }
}

/// The keys of `--json` are these fields.
#[derive(Serialize)]
struct Report {
    device: String,
    threads: usize,
    dtype: String,
    parameters: usize,
    batch: [usize; 2],
    /// Of the fastest step.
    step_ms: f64,
    /// Of one without adapters, for `--lora`, in the same rounds.
    frozen_step_ms: Option<f64>,
    tokens_per_second: f64,
    /// Operations of the matrix products per second of the whole step, in 10⁹; what multiply-adds in
    /// registers reached on the device; the fraction.
    gflops: f64,
    peak_gflops: f64,
    fraction: f64,
    /// The speed of a matrix product on the CPU at the same time, as a baseline of the machine.
    product_gflops: f64,
    /// The peak memory of the program, in bytes, where the system reports it.
    peak_memory: Option<u64>,
    profile: Option<Table>,
}

/// Measure and print.
pub fn step(flags: &Step) -> Result<(), Failure> {
    job::run(|job| {
        let threads = flags.common.threads.or(job.threads);
        machine::with_threads(threads, || step_in(job, flags))
    })
}

/// In one of the processes of a job.
fn step_in(job: Job, flags: &Step) -> Result<(), Failure> {
    let accum = flags.grad_accum.map_or(job.size(), |accum| accum as usize);
    if accum == 1 {
        return crate::print_report(&measure(flags)?, flags.common.json);
    }
    if flags.profile || flags.lora.is_some() {
        let flag = if flags.profile { "--profile" } else { "--lora" };
        return usage(format!("{flag} is for one batch per step"));
    }
    let device = machine::open_local(&flags.common.device, job.local_rank)?;
    machine::check(&device, taipan::DType::from(flags.common.dtype))?;
    match together::measure(flags, &device, accum, job)? {
        Some(report) => crate::print_report(&report, flags.common.json),
        None => Ok(()),
    }
}

fn measure(flags: &Step) -> Result<Report, Failure> {
    let device = machine::device(&flags.common.device, flags.common.dtype)?;
    let mut training = Training::new(flags, flags.lora, &device)?;
    let mut frozen = flags.lora.map(|_| Training::frozen(flags, &device)).transpose()?;
    let [m, k, n] = PRODUCT;
    let random = |shape: &[usize]| Tensor::randn(shape, 1, DType::F32, &Device::Cpu);
    let (a, b) = (random(&[m, k])?, random(&[k, n])?);
    let (mut fastest, mut fastest_frozen, mut product) =
        (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    // The first compiles kernels and fills the memory pool.
    training.step()?;
    for _ in 0..flags.common.rounds {
        fastest = fastest.min(seconds(|| training.step().map(drop))?);
        if let Some(frozen) = &mut frozen {
            fastest_frozen = fastest_frozen.min(seconds(|| frozen.step().map(drop))?);
        }
        product = product.min(seconds(|| Ok(a.matmul(&b).map(drop)?))?);
    }
    let peak_memory = peak_memory();
    let peak = roofline::bounds(&device)?.flops;
    // The gradients of a product are two products, and one if its weight is frozen.
    let tokens = flags.batch_size * flags.block_size;
    let products = if flags.lora.is_some() { 2.0 } else { 3.0 };
    let flops = products * product_flops(training.model.config(), tokens, tokens);
    let profile =
        flags.profile.then(|| Table::fastest(flags.common.rounds, || training.step().map(drop)));
    let profile = profile.transpose()?;
    Ok(Report {
        device: device.describe(),
        threads: rayon::current_num_threads(),
        dtype: training.model.dtype().to_string(),
        parameters: training.model.config().parameters(),
        batch: [flags.batch_size, flags.block_size],
        step_ms: 1e3 * fastest,
        frozen_step_ms: frozen.map(|_| 1e3 * fastest_frozen),
        tokens_per_second: (flags.batch_size * flags.block_size) as f64 / fastest,
        gflops: 1e-9 * flops / fastest,
        peak_gflops: 1e-9 * peak,
        fraction: flops / fastest / peak,
        product_gflops: 2e-9 * PRODUCT.iter().product::<usize>() as f64 / product,
        peak_memory,
        profile,
    })
}

/// All that a step of training needs.
struct Training {
    model: LanguageModel,
    adamw: AdamW,
    batch: Batch,
}

impl Training {
    fn new(flags: &Step, lora: Option<u32>, device: &Device) -> Result<Training, Failure> {
        let config = config(flags.arch, flags.shape(), flags.d_state)?;
        let (batch_size, block_size) = (flags.batch_size, flags.block_size);
        let tokens = batch_size.saturating_mul(block_size);
        if !(1..=1 << 28).contains(&tokens) {
            return usage(format!("--batch-size × --block-size is {tokens}, expected 1 to 2^28"));
        }
        // No two neighbours are equal, which would flatter the embedding.
        let token = |i: usize| (i * 7919 % flags.vocab_size) as u32;
        let batch = Batch {
            batch_size,
            block_size,
            ids: (0..tokens).map(token).collect(),
            targets: (1..=tokens).map(token).collect(),
            // Documents begin in the middle of sequences, as in packed text.
            seq_start: (0..tokens).map(|i| u32::from(i % block_size == block_size / 2)).collect(),
        };
        let model = LanguageModel::new(&config, flags.common.dtype.into(), 1, device)?;
        let model = match lora {
            Some(rank) => {
                model.with_lora(&Lora { rank: rank as usize, ..Lora::new(&config) }, 1)?
            }
            None => model,
        };
        Training::of(model, batch)
    }

    /// The same without adapters, and with everything frozen but the first norm: the gradient goes
    /// through the whole model.
    fn frozen(flags: &Step, device: &Device) -> Result<Training, Failure> {
        let Training { mut model, batch, .. } = Training::new(flags, None, device)?;
        let mut is_first = true;
        for (name, parameter) in model.parameters_mut() {
            let is_trained = name.contains("norm") && std::mem::take(&mut is_first);
            if !is_trained {
                *parameter = parameter.detached();
            }
        }
        Training::of(model, batch)
    }

    fn of(model: LanguageModel, batch: Batch) -> Result<Training, Failure> {
        let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
        let trained = model.parameters().into_iter().filter(|p| p.is_tracked());
        let parameters: Vec<(&Tensor, Group)> =
            trained.map(|p| (p.tensor, Group::default())).collect();
        let adamw = AdamW::new(options, &parameters)?;
        Ok(Training { model, adamw, batch })
    }

    /// Forward, backward, clipping, update, and reading the loss: it waits for the device.
    fn step(&mut self) -> Result<f64, Failure> {
        let loss = self.model.loss(&self.batch)?;
        let grads = loss.backward_from(&self.adamw.loss_scale().cast(loss.dtype())?)?;
        let parameters = self.model.parameters_mut().into_iter().map(|(_, parameter)| parameter);
        let mut parameters: Vec<&mut Tensor> = parameters.filter(|p| p.is_tracked()).collect();
        self.adamw.step(1e-4, &mut parameters, &grads)?;
        let loss = loss.item()?;
        self.adamw.status_blocking()?;
        Ok(loss)
    }
}

/// `m`, `k`, `n` of the baseline product.
const PRODUCT: [usize; 3] = [2048, 256, 1024];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [batch_size, block_size] = self.batch;
        let millions = self.parameters as f64 / 1e6;
        writeln!(f, "{}", self.device)?;
        write!(f, "{millions:.1} M parameters in {}, ", self.dtype)?;
        writeln!(f, "{batch_size} x {block_size} tokens")?;
        writeln!(f, "step     {:>9.1} ms  {:.0} tokens/s", self.step_ms, self.tokens_per_second)?;
        if let Some(frozen) = self.frozen_step_ms {
            let ratio = self.step_ms / frozen;
            writeln!(f, "adapters {ratio:>9.2} × the step without them, {frozen:.1} ms")?;
        }
        let percent = 100.0 * self.fraction;
        write!(f, "products {:>9.1} GF/s, ", self.gflops)?;
        writeln!(
            f,
            "{percent:.0} % of the device's {:.1} GF/s of multiply-adds",
            self.peak_gflops
        )?;
        let [m, k, n] = PRODUCT;
        writeln!(f, "baseline  {:>9.1} GF/s (f32, {m}x{k}x{n})", self.product_gflops)?;
        if let Some(bytes) = self.peak_memory {
            writeln!(f, "memory   {:>9}", crate::bytes(bytes))?;
        }
        if let Some(table) = &self.profile {
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}
