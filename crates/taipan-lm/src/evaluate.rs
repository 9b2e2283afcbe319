//! How well a model predicts text.

use std::ops::AddAssign;

use serde::Serialize;
use taipan::{DType, Tensor};

use crate::error::ensure;
use crate::{IGNORE, LanguageModel, Result, State};

/// Tokens that are processed at a time.
const CHUNK: usize = 1024;

/// The probability of tokens, given those before them. Scores can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// `Σ −ln p(token)`
    pub nats: f64,
    /// How many tokens were predicted.
    pub tokens: u64,
    /// Their bytes of text; 0 for tokens without text.
    pub bytes: u64,
}

impl Score {
    /// The mean of `−ln p(token)`.
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// `exp(loss)`
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// `Σ −log₂ p(token)` per byte of text; none if there is no text.
    pub fn bits_per_byte(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.nats / (std::f64::consts::LN_2 * self.bytes as f64))
    }
}

impl AddAssign for Score {
    fn add_assign(&mut self, other: Score) {
        self.nats += other.nats;
        self.tokens += other.tokens;
        self.bytes += other.bytes;
    }
}

/// Scores a text of any length in constant memory, through the model's state. The first token of a
/// text is never predicted. A clone continues independently.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{Config, LanguageModel, Preset, Scorer};
///
/// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
/// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
/// let mut scorer = Scorer::new(&model);
/// pollster::block_on(scorer.context(&[3, 1]))?;
/// pollster::block_on(scorer.push(&[4, 1, 5], &[]))?;
/// let score = pollster::block_on(scorer.finish())?;
/// assert_eq!(score.tokens, 3);
/// assert!((score.loss() - 10f64.ln()).abs() < 0.1, "it knows nothing yet");
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scorer<'m> {
    model: &'m LanguageModel,
    state: Option<State>,
    /// Tokens that are not processed yet: at least the last one, from which the next is predicted.
    pending: Vec<Pending>,
    score: Score,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    id: u32,
    /// `id`, or [`IGNORE`] if it is not scored.
    target: u32,
    bytes: usize,
}

impl<'m> Scorer<'m> {
    /// At the beginning of a text.
    pub fn new(model: &'m LanguageModel) -> Scorer<'m> {
        Scorer { model, state: None, pending: Vec::new(), score: Score::default() }
    }

    /// The next tokens, which are not scored.
    pub async fn context(&mut self, ids: &[u32]) -> Result<()> {
        self.add(ids.iter().map(|id| Pending { id: *id, target: IGNORE, bytes: 0 })).await
    }

    /// The next tokens, and how many bytes of text each is, or none of that for tokens without text.
    pub async fn push(&mut self, ids: &[u32], bytes: &[usize]) -> Result<()> {
        let bytes = bytes.iter().copied().chain(std::iter::repeat(0));
        self.add(ids.iter().zip(bytes).map(|(id, bytes)| Pending { id: *id, target: *id, bytes }))
            .await
    }

    async fn add(&mut self, tokens: impl Iterator<Item = Pending>) -> Result<()> {
        let v = self.model.config().vocab_size;
        for token in tokens {
            let id = token.id;
            ensure!((id as usize) < v, "evaluate", "token {id}, expected less than {v}");
            self.pending.push(token);
            if self.pending.len() > CHUNK {
                self.process(CHUNK).await?;
            }
        }
        Ok(())
    }

    /// Process all tokens but the last, so that clones need not do it again.
    pub async fn flush(&mut self) -> Result<()> {
        match self.pending.len() {
            0 | 1 => Ok(()),
            length => self.process(length - 1).await,
        }
    }

    /// The score of all tokens that were [pushed](Scorer::push), except the first token of the
    /// text.
    pub async fn finish(mut self) -> Result<Score> {
        self.flush().await?;
        Ok(self.score)
    }

    /// Process some tokens, of which each predicts the next.
    async fn process(&mut self, length: usize) -> Result<()> {
        let tensor = |values: Vec<u32>| Tensor::new(&values, &[1, length], self.model.device());
        let ids = tensor(self.pending[..length].iter().map(|token| token.id).collect())?;
        let predicted = &self.pending[1..=length];
        let is_scored = |token: &&Pending| token.target != IGNORE;
        let count = predicted.iter().filter(is_scored).count();
        let state = if count == 0 {
            self.model.next(&ids, self.state.clone())?.1
        } else {
            let targets = tensor(predicted.iter().map(|token| token.target).collect())?;
            let (loss, state) = self.model.loss_from(&ids, &targets, self.state.clone())?;
            let loss = match loss.dtype() {
                DType::F64 => loss.read::<f64>().await?[0],
                _ => loss.read::<f32>().await?[0].into(),
            };
            let bytes: usize = predicted.iter().map(|token| token.bytes).sum();
            let (nats, tokens) = (loss * count as f64, count as u64);
            self.score += Score { nats, tokens, bytes: bytes as u64 };
            state
        };
        self.state = Some(state);
        self.pending.drain(..length);
        Ok(())
    }
}

/// Scores a text as seen through windows: each begins with an empty state, `stride` tokens after the
/// one before, and scores the tokens that were in none before it. It is what users of Hugging
/// Face's library do with models whose context is limited.
#[derive(Clone, Debug)]
pub struct WindowScorer<'m> {
    model: &'m LanguageModel,
    window: usize,
    stride: usize,
    /// The tokens from the beginning of the next window on, each with its bytes of text.
    tokens: Vec<(u32, usize)>,
    /// How many of them were in the window before.
    overlap: usize,
    score: Score,
}

impl<'m> WindowScorer<'m> {
    /// At the beginning of a text; the stride is at most the window.
    pub fn new(model: &'m LanguageModel, window: usize, stride: usize) -> Result<WindowScorer<'m>> {
        ensure!(window > 1, "evaluate", "a window of {window} tokens, expected 2 or more");
        let fits = (1..=window).contains(&stride);
        ensure!(fits, "evaluate", "the stride is {stride}, expected 1 to the window, {window}");
        let (tokens, score) = (Vec::new(), Score::default());
        Ok(WindowScorer { model, window, stride, tokens, overlap: 0, score })
    }

    /// The next tokens: see [`Scorer::push`].
    pub async fn push(&mut self, ids: &[u32], bytes: &[usize]) -> Result<()> {
        let bytes = bytes.iter().copied().chain(std::iter::repeat(0));
        for token in ids.iter().copied().zip(bytes) {
            self.tokens.push(token);
            if self.tokens.len() > self.window {
                self.score_window(self.window).await?;
                self.tokens.drain(..self.stride);
                self.overlap = self.window - self.stride;
            }
        }
        Ok(())
    }

    /// The score of all windows.
    pub async fn finish(mut self) -> Result<Score> {
        self.score_window(self.tokens.len()).await?;
        Ok(self.score)
    }

    async fn score_window(&mut self, length: usize) -> Result<()> {
        let (ids, bytes): (Vec<u32>, Vec<usize>) = self.tokens[..length].iter().copied().unzip();
        let mut scorer = Scorer::new(self.model);
        scorer.context(&ids[..self.overlap]).await?;
        scorer.push(&ids[self.overlap..], &bytes[self.overlap..]).await?;
        self.score += scorer.finish().await?;
        Ok(())
    }
}
