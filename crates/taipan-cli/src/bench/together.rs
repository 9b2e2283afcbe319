//! `taipan bench step` of several batches per step, by one process or by those of MPI.

use std::fmt;
use std::time::Instant;

use serde::Serialize;
use taipan::{DType, Device};
use taipan_lm::data::{Dataset, Task};
use taipan_lm::{LanguageModel, Ranks, Recipe, Tokenizer, Traffic, Trainer, gather};

use super::step::Step;
use super::{config, seconds};
use crate::Failure;
use crate::job::Job;

/// The keys of `--json` are these fields.
#[derive(Serialize)]
pub(super) struct Report {
    /// Of the first process.
    device: String,
    threads: usize,
    dtype: String,
    parameters: usize,
    /// Batches, sequences of each, and tokens of each.
    batch: [usize; 3],
    /// Of the fastest step.
    step_ms: f64,
    tokens_per_second: f64,
    /// Of all processes, the mean of a step.
    ranks: Vec<Rank>,
}

#[derive(Serialize)]
struct Rank {
    /// The time in which it did not wait for others.
    compute_ms: f64,
    waiting_ms: f64,
    /// What it sent to others.
    sent_bytes: f64,
}

/// Measure steps of `accum` batches. The first process has a report.
pub(super) fn measure(
    flags: &Step,
    device: &Device,
    accum: usize,
    job: Job,
) -> Result<Option<Report>, Failure> {
    let (shape, block_size) = (flags.shape(), flags.block_size);
    let config = config(flags.arch, shape, flags.d_state)?;
    let dtype = DType::from(flags.common.dtype);
    let model = LanguageModel::new(&config, dtype, 1, device)?;
    let recipe =
        Recipe { batch_size: flags.batch_size, block_size, grad_accum: accum, ..Recipe::default() };
    let data = Dataset::task(Task::Parity { length: block_size })?;
    let mut trainer = Trainer::new(model, data, Tokenizer::bytes(), recipe)?;
    let mut first = true;
    if let Some(ranks) = job.ranks {
        first = ranks.rank() == 0;
        trainer = pollster::block_on(trainer.join(ranks, None))?;
    }
    // The first step compiles kernels and fills the memory pool.
    steps(&mut trainer, 1, first)?;
    let (before, began) = (trainer.traffic(), Instant::now());
    let fastest = steps(&mut trainer, flags.common.rounds, first)?;
    let elapsed = 1e3 * began.elapsed().as_secs_f64();
    let Traffic { sent, waited } = trainer.traffic();
    let waiting = 1e3 * (waited - before.waited).as_secs_f64();
    let rounds = f64::from(flags.common.rounds);
    let own = [elapsed - waiting, waiting, (sent - before.sent) as f64].map(|x| x / rounds);
    let tokens = (accum * flags.batch_size * block_size) as f64;
    let parameters = config.parameters();
    let ranks = gather_own(trainer.into_ranks(), own)?;
    Ok(first.then(|| Report {
        device: device.describe(),
        threads: rayon::current_num_threads(),
        dtype: dtype.to_string(),
        parameters,
        batch: [accum, flags.batch_size, block_size],
        step_ms: 1e3 * fastest,
        tokens_per_second: tokens / fastest,
        ranks,
    }))
}

/// Some steps; the first process knows the time of the fastest.
fn steps(trainer: &mut Trainer, rounds: u32, first: bool) -> Result<f64, Failure> {
    let mut fastest = f64::INFINITY;
    if first {
        for _ in 0..rounds {
            let time = seconds(|| Ok(pollster::block_on(trainer.step()).map(drop)?))?;
            fastest = fastest.min(time);
        }
        trainer.end()?;
    } else {
        pollster::block_on(trainer.follow(|| false))?;
    }
    Ok(fastest)
}

/// What all processes have measured.
fn gather_own(ranks: Option<Box<dyn Ranks>>, own: [f64; 3]) -> Result<Vec<Rank>, Failure> {
    let bytes: Vec<u8> = own.into_iter().flat_map(f64::to_le_bytes).collect();
    let all = match ranks {
        Some(mut ranks) => gather(&mut *ranks, &bytes)?,
        None => vec![bytes],
    };
    let rank = |bytes: &Vec<u8>| {
        let (numbers, _) = bytes.as_chunks();
        let number = |i: usize| numbers.get(i).map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
        Rank { compute_ms: number(0), waiting_ms: number(1), sent_bytes: number(2) }
    };
    Ok(all.iter().map(rank).collect())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [accum, batch_size, block_size] = self.batch;
        let millions = self.parameters as f64 / 1e6;
        writeln!(f, "{}", self.device)?;
        write!(f, "{millions:.1} M parameters in {}, ", self.dtype)?;
        writeln!(f, "{accum} x {batch_size} x {block_size} tokens")?;
        writeln!(f, "step     {:>9.1} ms  {:.0} tokens/s", self.step_ms, self.tokens_per_second)?;
        for (i, rank) in self.ranks.iter().enumerate() {
            let sent = crate::bytes(rank.sent_bytes as u64);
            let Rank { compute_ms, waiting_ms, .. } = rank;
            writeln!(
                f,
                "rank {i:<3} {compute_ms:>9.1} ms computing, {waiting_ms:.1} ms waiting, {sent} sent"
            )?;
        }
        Ok(())
    }
}
