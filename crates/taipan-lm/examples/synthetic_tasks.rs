//! Two tasks that tell families of models apart, at a reduced size: selective copying and associative
//! recall, for a model of each family.
//!
//! Selective copying (Gu & Dao 2023, section 4.1.1): letters at random places among dots are to be
//! said in their order, at as many markers behind them. What to remember has to be chosen by what it
//! is.
//!
//!     . . C . A . . . B . A . . .   | | | |   →   C A B A
//!
//! Associative recall of several queries (MQAR; Arora et al. 2023, arXiv 2312.04927): pairs of a key
//! and a value come first, then all keys in another order, each of which asks for its value. A state
//! of fixed size holds so many pairs and no more; attention holds them all.
//!
//!     k3 v7  k1 v2  k8 v4   k1 k8 k3   →   v2 v4 v7
//!
//! The program trains a model of each family on the same sequences and prints a table. It exits with
//! code 1 unless Mamba-2 and attention win at both by far. Of Mamba (4 states, width 32) and, at
//! recall, of Mamba-3 nothing is expected: they do not learn it in so few steps. With `copying` or
//! `recall` as its argument the program does one of the two.

use std::process::ExitCode;

use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Curve, Group, Schedule};
use taipan::{DType, Device, Tensor};
use taipan_lm::data::Task as Generated;
use taipan_lm::{
    AttentionConfig, Batch, Config, Family, IGNORE, LanguageModel, LayerKind, Mamba3Config,
    MlpConfig, Result, Ssm,
};

const BATCH: usize = 32;
const STEPS: u64 = 1200;
const PEAK_RATE: f64 = 5e-3;
const D_MODEL: usize = 32;
/// States of a channel: few, and many.
const FEW: usize = 4;
const MANY: usize = 64;

/// Copying: letters among so many tokens.
const LETTERS: usize = 6;
const LENGTH: usize = 64;
/// Recall: pairs of a sequence, of so many keys and as many values.
const PAIRS: usize = 16;
const KEYS: usize = 24;

#[derive(Clone, Copy)]
enum Task {
    Copying,
    Recall,
}

fn main() -> Result<ExitCode> {
    let chosen = std::env::args().nth(1);
    let tasks = match chosen.as_deref() {
        None => vec![Task::Copying, Task::Recall],
        Some("copying") => vec![Task::Copying],
        Some("recall") => vec![Task::Recall],
        Some(other) => {
            eprintln!("{other:?}, expected copying, recall or nothing");
            return Ok(ExitCode::FAILURE);
        }
    };
    println!(
        "{LETTERS} letters among {LENGTH} tokens; {PAIRS} pairs of {KEYS} keys and values; \
         {STEPS} steps of {BATCH} sequences"
    );
    let mut as_expected = true;
    for task in tasks {
        println!(
            "\n| {} | states per layer | answers that are right |\n|---|---|---|",
            task.name()
        );
        let mut accuracies = Vec::new();
        for (name, config) in models(task) {
            let accuracy = task.accuracy(&task.train(&config)?)?;
            let states = config.inner_size() * config.state_size;
            println!("| {name} | {states} | {:.1} % |", 100.0 * accuracy);
            accuracies.push(accuracy);
        }
        println!("| guessing | | {:.1} % |", 100.0 * task.guessing());
        as_expected &= task.is_expected(&accuracies);
    }
    if !as_expected {
        eprintln!("expected Mamba-2 and attention to win, and Mamba-3 to copy");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Two layers each.
fn models(task: Task) -> [(&'static str, Config); 4] {
    let mamba = Config {
        vocab_size: task.vocabulary(),
        hidden_size: D_MODEL,
        layers: vec![LayerKind::Ssm; 2],
        ssm: Ssm::mamba(D_MODEL / 16),
        state_size: FEW,
        ..Config::default()
    };
    let mamba2 =
        Config { family: Family::Mamba2, ssm: Ssm::mamba2(32), state_size: MANY, ..mamba.clone() };
    let mamba3 = Ssm::Mamba3(Mamba3Config::new(32));
    let mamba3 = Config { family: Family::Mamba3, ssm: mamba3, ..mamba2.clone() };
    let hybrid = Config {
        family: Family::Granite,
        layers: vec![LayerKind::Ssm, LayerKind::Attention],
        attention: Some(AttentionConfig::new(2, 2, 16)),
        mlp: Some(MlpConfig { size: 64, use_bias: false }),
        state_size: FEW,
        ..mamba2.clone()
    };
    [
        ("Mamba", mamba),
        ("Mamba-2", mamba2),
        ("Mamba-3", mamba3),
        ("Mamba-2 of few states, then attention", hybrid),
    ]
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Task::Copying => "selective copying",
            Task::Recall => "associative recall",
        }
    }

    fn vocabulary(self) -> usize {
        match self {
            Task::Copying => 128, // bytes
            Task::Recall => 2 * KEYS,
        }
    }

    fn guessing(self) -> f64 {
        match self {
            Task::Copying => 1.0 / 16.0, // letters from A to P
            Task::Recall => 1.0 / KEYS as f64,
        }
    }

    /// Of the models in their order.
    fn is_expected(self, accuracies: &[f64]) -> bool {
        let &[mamba, mamba2, mamba3, hybrid] = accuracies else { return false };
        let copies = match self {
            Task::Copying => mamba3 > 0.9,
            Task::Recall => true,
        };
        copies && [mamba2, hybrid].iter().all(|accuracy| *accuracy > 0.9_f64.max(mamba + 0.1))
    }

    /// The size of sequences at a step: small at first, from which it is learnt in few steps what to
    /// do. It doubles until it is whole, for the second half of the training.
    fn size_at(self, step: u64) -> usize {
        let (first, whole) = match self {
            Task::Copying => (2 * LETTERS, LENGTH),
            Task::Recall => (2, PAIRS),
        };
        let doublings = u64::from((whole / first).ilog2()).max(1);
        whole.min(first << (step * 2 * doublings / STEPS))
    }

    /// Sequences of a size that follow from a number.
    fn sequences(self, size: usize, seed: u64) -> Result<Batch> {
        match self {
            Task::Copying => Ok(copying(size, seed)),
            Task::Recall => recall(size, seed),
        }
    }

    fn train(self, config: &Config) -> Result<LanguageModel> {
        let mut model = LanguageModel::new(config, DType::F32, 1, &Device::Cpu)?;
        let options = AdamWOptions { beta2: 0.99, max_norm: Some(1.0), ..AdamWOptions::default() };
        let tensors = model.parameters();
        let groups: Vec<_> = tensors.iter().map(|p| (p.tensor, Group::without_decay())).collect();
        let mut adamw = AdamW::new(options, &groups)?;
        let (peak, min) = (PEAK_RATE, 0.05 * PEAK_RATE);
        let schedule = Schedule { peak, min, warmup: 50, total: STEPS, curve: Curve::Cosine };
        for step in 0..STEPS {
            let batch = self.sequences(self.size_at(step), step)?;
            let grads = model.loss(&batch)?.backward()?;
            let mut parameters: Vec<_> =
                model.parameters_mut().into_iter().map(|(_, parameter)| parameter).collect();
            adamw.step(schedule.lr(step), &mut parameters, &grads)?;
        }
        Ok(model)
    }

    /// The share of right answers, over sequences that were not in the training.
    fn accuracy(self, model: &LanguageModel) -> Result<f64> {
        let (mut right, mut all) = (0, 0);
        for i in 0..8 {
            let batch = self.sequences(self.size_at(STEPS), STEPS + i)?;
            let likeliest = model.likeliest(&batch)?.read_blocking::<u32>()?;
            for (found, expected) in likeliest.iter().zip(&batch.targets) {
                all += usize::from(*expected != IGNORE);
                right += usize::from(found == expected);
            }
        }
        Ok(right as f64 / all as f64)
    }
}

/// So many tokens before the markers.
fn copying(length: usize, seed: u64) -> Batch {
    let task = Generated::SelectiveCopying { length, data: LETTERS };
    let block_size = task.block_size();
    let mut batch = Batch { batch_size: BATCH, block_size, ..Batch::default() };
    for sequence in 0..BATCH as u64 {
        let (ids, targets) = task.sequence(seed, sequence);
        batch.ids.extend(ids);
        batch.targets.extend(targets);
    }
    batch.seq_start = vec![0; batch.ids.len()];
    batch
}

/// So many pairs, then as many keys.
fn recall(pairs: usize, seed: u64) -> Result<Batch> {
    // A permutation for each sequence: the order of random numbers.
    let order = |count: usize, seed: u64| -> Result<Vec<Vec<usize>>> {
        let random = Tensor::rand(&[BATCH, count], seed, DType::F32, &Device::Cpu)?;
        let random = random.read_blocking::<f32>()?;
        Ok(random
            .chunks(count)
            .map(|row| {
                let mut order: Vec<usize> = (0..count).collect();
                order.sort_by(|a, b| row[*a].total_cmp(&row[*b]));
                order
            })
            .collect())
    };
    let (keys, values) = (order(KEYS, 3 * seed)?, order(KEYS, 3 * seed + 1)?);
    let queries = order(pairs, 3 * seed + 2)?;
    let (mut ids, mut targets) = (Vec::new(), Vec::new());
    for ((keys, values), queries) in keys.iter().zip(&values).zip(&queries) {
        let value = |i: usize| (KEYS + values[i]) as u32;
        for (i, key) in keys.iter().enumerate().take(pairs) {
            ids.extend([*key as u32, value(i)]);
            targets.extend([IGNORE; 2]);
        }
        for i in queries {
            ids.push(keys[*i] as u32);
            targets.push(value(*i));
        }
    }
    let seq_start = vec![0; ids.len()];
    Ok(Batch { batch_size: BATCH, block_size: 3 * pairs, ids, targets, seq_start })
}
