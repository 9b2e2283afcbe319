//! How well a model predicts held-out text, computed by one process or by several.

use taipan::{DType, Tensor, no_grad};

use super::team::{Command, Team};
use super::{Trainer, targets};
use crate::checkpoint::Evaluation;
use crate::error::ensure;
use crate::ranks::{bytes, words};
use crate::{Recipe, Result};

impl Trainer {
    /// How well the model predicts the first `tokens` tokens of held-out text.
    pub async fn evaluate(&mut self, tokens: u64) -> Result<Evaluation> {
        self.send(Command::Evaluate(tokens))?;
        let (mut nats, mut count, mut bytes) = (0.0, 0, 0);
        for score in self.scores(tokens).await? {
            nats += score.nats;
            count += score.targets;
            bytes += score.bytes;
        }
        ensure!(count > 0, "evaluate", "no held-out tokens, expected some");
        let loss = nats / count as f64;
        ensure!(nats.is_finite(), "evaluate", "the loss is {loss}, expected a finite number");
        let bits_per_byte = (bytes > 0).then(|| nats / (std::f64::consts::LN_2 * bytes as f64));
        let evaluation = Evaluation { loss, bits_per_byte };
        self.evaluation = Some(evaluation);
        Ok(evaluation)
    }

    /// The scores of all batches of held-out text that have targets, whichever process computes
    /// them.
    pub(super) async fn scores(&mut self, tokens: u64) -> Result<Vec<BatchScore>> {
        let Recipe { batch_size, block_size, .. } = self.recipe;
        let (rank, ranks) = self.place();
        let (mut own, mut batches) = (Vec::new(), 0);
        for (i, batch) in self.dataset.held_out(batch_size, block_size, tokens).enumerate() {
            batches = i + 1;
            if i % ranks != rank {
                continue;
            }
            let (batch, bytes) = batch?;
            let mut score = BatchScore { nats: 0.0, targets: targets(&batch) as u64, bytes: 0 };
            if score.targets > 0 {
                let loss = no_grad(|| self.model.loss(&batch))?;
                let nats = number(&loss).await? * score.targets as f64;
                score = BatchScore { nats, bytes, ..score };
            }
            own.push(score);
        }
        match &mut self.team {
            Some(team) => team.gather_scores(own, batches),
            None => Ok(own),
        }
    }

    /// The fraction of held-out targets that the model finds likeliest, among those of the first
    /// `tokens` tokens.
    pub async fn accuracy(&self, tokens: u64) -> Result<f64> {
        let Recipe { batch_size, block_size, .. } = self.recipe;
        let (mut right, mut all) = (0, 0);
        for batch in self.dataset.held_out(batch_size, block_size, tokens) {
            let (batch, _) = batch?;
            let likeliest = self.model.likeliest(&batch)?.read::<u32>().await?;
            // A target that is not to be predicted is no token.
            right += batch.targets.iter().zip(&likeliest).filter(|(t, found)| t == found).count();
            all += targets(&batch);
        }
        ensure!(all > 0, "evaluate", "no held-out tokens, expected some");
        Ok(right as f64 / all as f64)
    }
}

impl Team {
    /// The scores of all batches of an evaluation, in order, of which each process has every
    /// `size`-th.
    pub(super) fn gather_scores(
        &mut self,
        own: Vec<BatchScore>,
        batches: usize,
    ) -> Result<Vec<BatchScore>> {
        let size = self.ranks.size();
        let own = own.iter().flat_map(|score| [score.nats.to_bits(), score.targets, score.bytes]);
        let count = |rank| (batches + size - 1 - rank) / size;
        let lens: Vec<usize> = (0..size).map(|rank| 24 * count(rank)).collect();
        let all = self.ranks.all_gather(&bytes(own), &lens)?;
        let all: Vec<Vec<u64>> = all.iter().map(|bytes| words(bytes)).collect();
        let score = |i: usize| {
            let [nats, targets, bytes] = all[i % size].as_chunks().0[i / size];
            BatchScore { nats: f64::from_bits(nats), targets, bytes }
        };
        Ok((0..batches).map(score).collect())
    }
}

/// How well a batch is predicted.
pub(super) struct BatchScore {
    /// The sum of `−ln p(token)`.
    nats: f64,
    targets: u64,
    bytes: u64,
}

/// The value of a loss, of which the type is f32 or f64.
async fn number(loss: &Tensor) -> Result<f64> {
    Ok(match loss.dtype() {
        DType::F64 => loss.read::<f64>().await?[0],
        _ => loss.read::<f32>().await?[0].into(),
    })
}
