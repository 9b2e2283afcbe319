//! Text, token by token.

#[cfg(not(target_family = "wasm"))]
mod cache;
mod completion;
mod sampler;
mod snapshot;
mod text;

use std::collections::BTreeSet;

use taipan::{DType, Tensor};

#[cfg(not(target_family = "wasm"))]
pub use self::cache::{CacheHit, PromptCache};
pub use self::completion::{Completion, CompletionOptions, FinishReason};
pub use self::sampler::{LogProbs, Sampler};
pub use self::snapshot::Snapshot;
pub use self::text::TextUntil;
use crate::error::ensure;
use crate::model::select;
use crate::{Error, LanguageModel, Result, State};

const OP: &str = "generate";

/// Tokens of a prompt that are processed at a time. Prompts are cut at its multiples, counted from
/// the beginning of the text, so that a state in the middle gives the same bits as the whole.
const CHUNK: usize = 256;

/// Sequences that are generated together: each step samples a token for each of them. A prompt is
/// processed in parallel, then each token in constant time and memory, however long the text is.
///
/// The same model, prompt and sampler give the same tokens on every run.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{Config, Generation, LanguageModel, Preset, Sampler};
///
/// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
/// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
/// let sampler = Sampler { top_p: 0.9, seed: 7, ..Sampler::default() };
/// let mut generation = Generation::new(&model, sampler)?;
/// generation.prompt(&[3, 1, 4])?;
/// let mut pair = generation.fork(2)?;
/// for _ in 0..5 {
///     let tokens: Vec<u32> = pair.step_blocking()?; // one for each sequence
///     assert!(tokens.len() == 2 && tokens.iter().all(|token| *token < 10));
/// }
/// assert_eq!((pair.position(), generation.position()), (8, 3));
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generation<'m> {
    model: &'m LanguageModel,
    sampler: Sampler,
    /// Tokens from here on are never sampled.
    vocab_size: usize,
    /// Absent before the first token.
    processed: Option<Processed>,
    /// The last tokens, which were sampled and are not processed yet: one for each sequence.
    pending: Option<Vec<u32>>,
    /// Steps so far: the counter of the random numbers.
    counter: u64,
    /// The tokens of each sequence.
    seen: Vec<BTreeSet<u32>>,
}

/// What is known after some tokens.
#[derive(Clone, Debug)]
struct Processed {
    state: State,
    /// Of the next token, `[b, v]`.
    logits: Tensor,
}

impl<'m> Generation<'m> {
    /// One sequence, which is empty.
    pub fn new(model: &'m LanguageModel, sampler: Sampler) -> Result<Generation<'m>> {
        sampler.check()?;
        Ok(Generation {
            model,
            sampler,
            vocab_size: model.config().vocab_size,
            processed: None,
            pending: None,
            counter: 0,
            seen: vec![BTreeSet::new()],
        })
    }

    /// Continue where a [snapshot](Generation::snapshot) was taken: with the same sampler, the
    /// tokens are those that would have come without it.
    pub fn resume(
        model: &'m LanguageModel,
        sampler: Sampler,
        snapshot: Snapshot,
    ) -> Result<Generation<'m>> {
        let Snapshot { state, logits, counter, tokens, .. } = snapshot;
        let (b, v) = (state.batch_size(), model.config().vocab_size);
        let fits = logits.shape() == [b, v] && tokens.len() == b;
        let (found, lists) = (logits.shape(), tokens.len());
        ensure!(fits, OP, "logits are {found:?} and {lists} lists of tokens, expected [{b}, {v}]");
        Ok(Generation {
            processed: Some(Processed { state, logits }),
            counter,
            seen: tokens.into_iter().map(BTreeSet::from_iter).collect(),
            ..Generation::new(model, sampler)?
        })
    }

    /// The same, which samples only tokens below `vocab_size`: a head may have more rows than its
    /// tokenizer has tokens.
    pub fn with_vocab_size(self, vocab_size: usize) -> Result<Generation<'m>> {
        ensure!(vocab_size > 0, OP, "a vocabulary of 0 tokens, expected 1 or more");
        Ok(Generation { vocab_size: vocab_size.min(self.model.config().vocab_size), ..self })
    }

    /// The number of sequences.
    pub fn batch_size(&self) -> usize {
        self.seen.len()
    }

    /// The number of tokens of each sequence.
    pub fn position(&self) -> u64 {
        let processed = self.processed.as_ref().map_or(0, |processed| processed.state.position());
        processed + u64::from(self.pending.is_some())
    }

    /// Add tokens to every sequence.
    pub fn prompt(&mut self, ids: &[u32]) -> Result<()> {
        let mut rest = ids;
        while !rest.is_empty() {
            rest = self.prompt_chunk(rest)?;
        }
        Ok(())
    }

    /// Add the first of these tokens to every sequence, at most 256; the rest is returned. With it,
    /// a long prompt can be interrupted.
    pub fn prompt_chunk<'i>(&mut self, ids: &'i [u32]) -> Result<&'i [u32]> {
        let v = self.model.config().vocab_size;
        if let Some(id) = ids.iter().find(|id| **id as usize >= v) {
            return Err(Error::invalid(OP, format!("token {id}, expected less than {v}")));
        }
        self.process_pending()?;
        let length = CHUNK - (self.position() % CHUNK as u64) as usize;
        let (chunk, rest) = ids.split_at(length.min(ids.len()));
        if !chunk.is_empty() {
            self.process(&chunk.repeat(self.batch_size()))?;
            self.seen.iter_mut().for_each(|seen| seen.extend(chunk));
        }
        Ok(rest)
    }

    /// Every sequence `count` times, to be continued independently.
    pub fn fork(&self, count: usize) -> Result<Generation<'m>> {
        ensure!(count > 0, OP, "0 sequences, expected 1 or more");
        let rows: Vec<usize> =
            (0..self.batch_size()).flat_map(|row| std::iter::repeat_n(row, count)).collect();
        let fork = |processed: &Processed| -> Result<Processed> {
            let state = processed.state.select(&rows)?;
            Ok(Processed { state, logits: select(&processed.logits, &rows)? })
        };
        Ok(Generation {
            processed: self.processed.as_ref().map(fork).transpose()?,
            pending: self.pending.as_ref().map(|ids| rows.iter().map(|&row| ids[row]).collect()),
            seen: rows.iter().map(|&row| self.seen[row].clone()).collect(),
            ..self.clone()
        })
    }

    /// Sample the next token of each sequence. There must be one to begin with.
    pub async fn step(&mut self) -> Result<Vec<u32>> {
        self.process_pending()?;
        let Some(Processed { logits, .. }) = &self.processed else {
            return Err(Error::invalid(OP, "no tokens yet, expected a prompt"));
        };
        let v = self.model.config().vocab_size;
        let mut logits = match self.vocab_size {
            size if size < v => logits.slice(1, 0..size)?,
            _ => logits.clone(),
        };
        if self.sampler.repetition_penalty != 1.0 {
            let seen = self.seen_tensor()?;
            logits = logits.repetition_penalty(&seen, self.sampler.repetition_penalty)?;
        }
        let tokens = logits.sample(&self.sampler.sampling(self.counter))?.read::<u32>().await?;
        self.counter += 1;
        for (seen, token) in self.seen.iter_mut().zip(&tokens) {
            seen.insert(*token);
        }
        self.pending = Some(tokens.clone());
        Ok(tokens)
    }

    /// [`step`](Generation::step) for native callers; absent on the web, where nothing may block.
    #[cfg(not(target_family = "wasm"))]
    pub fn step_blocking(&mut self) -> Result<Vec<u32>> {
        pollster::block_on(self.step())
    }

    /// The log-probabilities of the tokens that were sampled last, and of the `top` most probable
    /// ones instead of each: those of the model, before any setting of the sampler.
    pub async fn log_probs(&self, top: usize) -> Result<Vec<LogProbs>> {
        let (Some(Processed { logits, .. }), Some(tokens)) = (&self.processed, &self.pending)
        else {
            return Err(Error::invalid(OP, "no token was sampled yet"));
        };
        let v = self.model.config().vocab_size;
        let logits: Vec<f64> = match logits.dtype() {
            DType::F64 => logits.read::<f64>().await?,
            _ => {
                let logits = logits.cast(DType::F32)?.read::<f32>().await?;
                logits.into_iter().map(f64::from).collect()
            }
        };
        let rows = logits.chunks(v).zip(tokens);
        Ok(rows.map(|(row, id)| LogProbs::of(&row[..self.vocab_size], *id, top)).collect())
    }

    /// Where the sequences are, all of their tokens processed.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        self.process_pending()?;
        let Some(Processed { state, logits }) = self.processed.clone() else {
            return Err(Error::invalid(OP, "no tokens yet, expected some before a snapshot"));
        };
        let tokens = self.seen.iter().map(|seen| seen.iter().copied().collect()).collect();
        Ok(Snapshot { state, logits, seed: self.sampler.seed, counter: self.counter, tokens })
    }

    fn process_pending(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(tokens) => self.process(&tokens),
            None => Ok(()),
        }
    }

    /// Process ids `[b, l]`.
    fn process(&mut self, ids: &[u32]) -> Result<()> {
        let b = self.batch_size();
        let ids = Tensor::new(ids, &[b, ids.len() / b], self.model.device())?;
        // The state is given away, so that attention can add to its cache in place.
        let is_new = self.seen.iter().all(BTreeSet::is_empty);
        let before = self.processed.take().map(|processed| processed.state);
        ensure!(
            is_new || before.is_some(),
            OP,
            "an earlier step failed, expected a new generation"
        );
        let (logits, state) = self.model.next(&ids, before)?;
        self.processed = Some(Processed { state, logits });
        Ok(())
    }

    /// The tokens of each sequence, `[b, m]`, those with fewer padded.
    fn seen_tensor(&self) -> Result<Tensor> {
        let m = self.seen.iter().map(BTreeSet::len).max().unwrap_or(0);
        let padded = |seen: &BTreeSet<u32>| {
            let padding = std::iter::repeat_n(u32::MAX, m - seen.len());
            seen.iter().copied().chain(padding).collect::<Vec<u32>>()
        };
        let ids: Vec<u32> = self.seen.iter().flat_map(padded).collect();
        Ok(Tensor::new(&ids, &[self.batch_size(), m], self.model.device())?)
    }
}
