//! Twenty steps of training against the losses they should have.

use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{DType, Device};
use taipan_lm::{Batch, Config, LanguageModel, LayerKind, Role, Ssm};

use crate::Check;

/// The losses in f64 on a CPU.
const LOSSES: [f64; 20] = [
    4.1540117206692555,
    3.7565977300894797,
    3.4301107516323945,
    3.1111531082540225,
    2.793138680387775,
    2.4765456455217008,
    2.16836930699001,
    1.8665837079685978,
    1.5739427743122754,
    1.3019540269732406,
    1.0544971600921098,
    0.8386829208362256,
    0.6563352612458642,
    0.5074966169551246,
    0.38917996342930256,
    0.29962694666775724,
    0.23476716145353654,
    0.1899122399769392,
    0.14928463300705053,
    0.12426864832423896,
];

/// How far a loss may be off in f32, relative to it.
const TOLERANCE: f64 = 1e-4;

const VOCABULARY: usize = 61;
const ROWS: usize = 4;
const LENGTH: usize = 33;

/// Train in f32 and compare.
pub async fn training(device: &Device) -> Check {
    let found = losses(DType::F32, device).await.map(|losses| {
        let off = worst(&losses);
        let (first, last) = (losses[0], losses[LOSSES.len() - 1]);
        let found = format!("20 steps, loss {first:.4} to {last:.4}, off by {off:.0e} at most");
        (off <= TOLERANCE, found)
    });
    Check::new("training", found)
}

/// The largest relative error. NaN is the largest.
fn worst(losses: &[f64]) -> f64 {
    let errors = losses.iter().zip(LOSSES).map(|(found, stored)| (found / stored - 1.0).abs());
    errors.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

/// The loss of each step of a small model that learns to count.
async fn losses(dtype: DType, device: &Device) -> taipan_lm::Result<Vec<f64>> {
    let config = Config {
        vocab_size: VOCABULARY,
        hidden_size: 48,
        layers: vec![LayerKind::Ssm; 2],
        ssm: Ssm::mamba(3),
        ..Config::default()
    };
    let mut model = LanguageModel::new(&config, dtype, 1, device)?;
    let group = |role| match role {
        Role::Matrix => Group::default(),
        Role::Vector | Role::Recurrence => Group::without_decay(),
    };
    let groups: Vec<_> = model.parameters().iter().map(|p| (p.tensor, group(p.role))).collect();
    let options = AdamWOptions { max_norm: Some(1.0), ..Default::default() };
    let mut adamw = AdamW::new(options, &groups)?;
    let batch = batch();
    let mut losses = Vec::new();
    for _ in 0..LOSSES.len() {
        let loss = model.loss(&batch)?;
        let grads = loss.backward_from(adamw.loss_scale())?;
        let parameters = model.parameters_mut();
        let mut parameters: Vec<_> = parameters.into_iter().map(|(_, tensor)| tensor).collect();
        adamw.step(1e-2, &mut parameters, &grads)?;
        losses.push(match dtype {
            DType::F64 => loss.read::<f64>().await?[0],
            _ => loss.read::<f32>().await?[0].into(),
        });
    }
    Ok(losses)
}

/// Rows that count by 1, 2, 3 and 4.
fn batch() -> Batch {
    let ids = |first: usize| {
        let row = |row: usize| (first..first + LENGTH).map(move |t| t * (row + 1) % VOCABULARY);
        (0..ROWS).flat_map(row).map(|id| id as u32).collect()
    };
    Batch {
        batch_size: ROWS,
        block_size: LENGTH,
        ids: ids(0),
        targets: ids(1),
        seq_start: vec![0; ROWS * LENGTH],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the losses are from: to store others, copy them from the message.
    #[test]
    fn losses_are_those_of_f64() {
        let found = pollster::block_on(losses(DType::F64, &Device::Cpu)).unwrap();
        assert!(worst(&found) < 1e-9, "{found:#?}");
        assert!(found[19] < 0.5 * found[0], "nothing is learned: {found:?}");
    }

    #[test]
    fn another_loss_is_found() {
        let mut wrong = LOSSES;
        wrong[19] *= 1.001;
        assert!(worst(&wrong) > TOLERANCE);
        wrong[7] = f64::NAN;
        assert!(worst(&wrong).is_nan());
    }
}
