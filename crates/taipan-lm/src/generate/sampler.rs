//! How the next token is chosen.

use std::ops::Bound;

use taipan::Sampling;

use crate::InvalidValue;

/// How the next token is chosen. The settings apply in the order of Hugging Face's library:
/// repetition penalty, temperature, top-k, top-p, min-p.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    /// Logits are divided by it: below 1, likely tokens become likelier. At 0 the likeliest is
    /// taken.
    pub temperature: f64,
    /// Sample from this many of the most probable tokens only; all if absent.
    pub top_k: Option<usize>,
    /// Sample from the most probable tokens only, as few as have this probability together; all at
    /// 1.
    pub top_p: f64,
    /// Sample only from tokens that are at least this times as probable as the most probable one;
    /// all at 0.
    pub min_p: f64,
    /// Positive logits of tokens that are in the text already are divided by it, negative ones
    /// multiplied; none at 1.
    pub repetition_penalty: f64,
    /// Other seeds give other texts, the same one the same.
    pub seed: u64,
}

/// The probabilities of the model, with seed 0.
impl Default for Sampler {
    fn default() -> Sampler {
        Sampler {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampler {
    /// An error unless every setting lies in its range.
    pub fn check(&self) -> Result<(), InvalidValue> {
        let positive = (Bound::Excluded(0.0), Bound::Excluded(f64::INFINITY));
        InvalidValue::check("sampler", "temperature", self.temperature, 0.0..f64::INFINITY)?;
        InvalidValue::check("sampler", "top_k", self.top_k.unwrap_or(1), 1..)?;
        InvalidValue::check("sampler", "min_p", self.min_p, 0.0..=1.0)?;
        let penalty = self.repetition_penalty;
        InvalidValue::check("sampler", "repetition_penalty", penalty, positive)?;
        match self.top_p {
            top_p if top_p > 0.0 && top_p <= 1.0 => Ok(()),
            top_p => Err(InvalidValue {
                owner: "sampler",
                name: "top_p",
                found: top_p.to_string(),
                expected: "above 0 and at most 1".into(),
            }),
        }
    }

    /// Of one step.
    pub(super) fn sampling(&self, step: u64) -> Sampling {
        let &Sampler { temperature, top_k, top_p, min_p, seed, .. } = self;
        Sampling { temperature, top_k, top_p, min_p, seed, step }
    }
}

/// How probable a token was, and which others were.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The token.
    pub id: u32,
    /// `ln p(id)`
    pub log_prob: f64,
    /// The most probable tokens with their `ln p`, the most probable first; of equally probable
    /// ones, the smallest id.
    pub top: Vec<(u32, f64)>,
}

impl LogProbs {
    /// Of a token and a row of logits.
    pub(super) fn of(logits: &[f64], id: u32, top: usize) -> LogProbs {
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
        let log_prob = |id: u32| logits[id as usize] - most - sum.ln();
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if top < ids.len() {
            ids.select_nth_unstable_by(top, by_logit);
            ids.truncate(top);
        }
        ids.sort_by(by_logit);
        let top = ids.into_iter().map(|id| (id, log_prob(id))).collect();
        LogProbs { id, log_prob: log_prob(id), top }
    }
}
