//! Associative recall of several queries (MQAR; Arora et al. 2023, arXiv 2312.04927), for each family
//! of models, at a reduced size.
//!
//! Pairs of a key and a value come first, then all keys in another order, each of which asks for its
//! value:
//!
//!     k3 v7  k1 v2  k8 v4   k1 k8 k3   →   v2 v4 v7
//!
//! What was read must be found again by what it is. A state of fixed size holds so many pairs and no
//! more; attention holds them all. The program trains a model of each family on the same sequences,
//! and exits with code 1 unless the larger state or attention wins.

use std::process::ExitCode;
use std::time::Instant;

use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Curve, Group, Schedule};
use taipan::{DType, Device, Tensor};
use taipan_lm::{
    AttentionConfig, Batch, Config, Family, IGNORE, LanguageModel, LayerKind, MlpConfig, Result,
    Ssm,
};

/// Pairs of a sequence, of so many keys and as many values.
const PAIRS: usize = 16;
const KEYS: usize = 24;

const BATCH: usize = 32;
const STEPS: u64 = 1200;
const PEAK_RATE: f64 = 5e-3;
const D_MODEL: usize = 32;

fn main() -> Result<ExitCode> {
    println!("{PAIRS} pairs of {KEYS} keys and values, {STEPS} steps of {BATCH} sequences");
    let mut accuracies = Vec::new();
    for (name, config) in models() {
        let start = Instant::now();
        let accuracy = accuracy(&train(&config)?)?;
        let (states, time) = (config.inner_size() * config.state_size, start.elapsed());
        let [percent, seconds] = [100.0 * accuracy, time.as_secs_f64()];
        println!("{name:<32} {states:>6} states  {percent:>5.1} %  {seconds:>6.1} s");
        accuracies.push(accuracy);
    }
    println!("{:<32} {:>6}         {:>5.1} %", "(guessing)", "", 100.0 / KEYS as f64);
    let [small, large, hybrid] = accuracies[..] else { unreachable!("three models") };
    if hybrid < 0.99 || large < small + 0.1 {
        eprintln!("expected the larger state to win by 10 %, and attention to recall everything");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Two layers each.
fn models() -> [(&'static str, Config); 3] {
    let mamba = Config {
        vocab_size: 2 * KEYS,
        hidden_size: D_MODEL,
        layers: vec![LayerKind::Ssm; 2],
        ssm: Ssm::mamba(D_MODEL / 16),
        state_size: 4,
        ..Config::default()
    };
    let mamba2 =
        Config { family: Family::Mamba2, ssm: Ssm::mamba2(32), state_size: 64, ..mamba.clone() };
    let hybrid = Config {
        family: Family::Granite,
        layers: vec![LayerKind::Ssm, LayerKind::Attention],
        attention: Some(AttentionConfig::new(2, 2, 16)),
        mlp: Some(MlpConfig { size: 64, use_bias: false }),
        state_size: 4,
        ..mamba2.clone()
    };
    [("Mamba", mamba), ("Mamba-2", mamba2), ("Mamba-2, then attention", hybrid)]
}

/// Few pairs at first, from which it is learnt in few steps what to do; all of them in the second
/// half of the training.
fn pairs_at(step: u64) -> usize {
    let doublings = PAIRS.ilog2();
    PAIRS.min(2 << (step * 2 * u64::from(doublings - 1) / STEPS))
}

/// Sequences of so many pairs that follow from a number.
fn sequences(pairs: usize, seed: u64) -> Result<Batch> {
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

fn train(config: &Config) -> Result<LanguageModel> {
    let mut model = LanguageModel::new(config, DType::F32, 1, &Device::Cpu)?;
    let options = AdamWOptions { beta2: 0.99, max_norm: Some(1.0), ..AdamWOptions::default() };
    let parameters = model.parameters();
    let groups: Vec<_> = parameters.iter().map(|p| (p.tensor, Group::without_decay())).collect();
    let mut adamw = AdamW::new(options, &groups)?;
    let (peak, min) = (PEAK_RATE, 0.05 * PEAK_RATE);
    let schedule = Schedule { peak, min, warmup: 50, total: STEPS, curve: Curve::Cosine };
    for step in 0..STEPS {
        let grads = model.loss(&sequences(pairs_at(step), step)?)?.backward()?;
        let mut parameters: Vec<_> =
            model.parameters_mut().into_iter().map(|(_, parameter)| parameter).collect();
        adamw.step(schedule.lr(step), &mut parameters, &grads)?;
    }
    Ok(model)
}

/// The share of right answers, over sequences that were not in the training.
fn accuracy(model: &LanguageModel) -> Result<f64> {
    let (mut right, mut all) = (0, 0);
    for i in 0..8 {
        let batch = sequences(PAIRS, STEPS + i)?;
        let likeliest = model.likeliest(&batch)?.read_blocking::<u32>()?;
        for (found, expected) in likeliest.iter().zip(&batch.targets) {
            all += usize::from(*expected != IGNORE);
            right += usize::from(found == expected);
        }
    }
    Ok(right as f64 / all as f64)
}
