//! Texts, from the first token to the last.

use std::ops::ControlFlow;

use super::{Generation, LogProbs, TextUntil};
use crate::{Result, Tokenizer};

/// When texts end, and what is wanted of them.
#[derive(Clone, Debug)]
pub struct CompletionOptions<'a> {
    /// Turns tokens into text; without it there are only ids.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Tokens of a text at most.
    pub max_tokens: usize,
    /// Texts that end one. They are not part of it.
    pub stops: Vec<String>,
    /// The token that ends a text, if any does.
    pub eos_token_id: Option<u32>,
    /// How many alternatives are wanted for each token; no log-probabilities if absent.
    pub log_probs: Option<usize>,
}

/// A text that was generated, from a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Without the prompt; empty without a tokenizer.
    pub text: String,
    /// Its tokens, also those of a stop text and the token that ended it.
    pub ids: Vec<u32>,
    /// Of each token, if they are wanted.
    pub log_probs: Vec<LogProbs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It has as many tokens as it may have.
    Length,
    /// By the end-of-text token.
    Eos,
    /// By a stop text.
    Stop,
    /// The caller stopped it.
    Interrupted,
}

impl Generation<'_> {
    /// Generate a text for each sequence. With each token, `show` gets the number of its sequence
    /// and the text that is new, which may be empty; if it breaks, all texts end.
    ///
    /// The sequences advance together: while one is generated, those that have ended are continued,
    /// and not shown.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use taipan::{DType, Device};
    /// use taipan_lm::{Config, Generation, LanguageModel, Preset, Sampler, CompletionOptions, Tokenizer};
    ///
    /// let config = Config { hidden_size: 16, ..Preset::Tiny.config(256) };
    /// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let tokenizer = Tokenizer::bytes();
    /// let mut generation = Generation::new(&model, Sampler::default())?;
    /// generation.prompt(&tokenizer.encode("Once upon")?)?;
    /// let options = CompletionOptions {
    ///     tokenizer: Some(&tokenizer),
    ///     max_tokens: 8,
    ///     stops: vec!["\n\n".into()],
    ///     eos_token_id: tokenizer.eos_token_id(),
    ///     log_probs: None,
    /// };
    /// let mut shown = String::new();
    /// let texts = pollster::block_on(generation.complete(&options, |_sequence, text| {
    ///     shown += text;
    ///     ControlFlow::Continue(())
    /// }))?;
    /// assert_eq!(texts[0].text, shown);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub async fn complete(
        &mut self,
        options: &CompletionOptions<'_>,
        mut show: impl FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Completion>> {
        let begin = || Draft::new(options);
        let mut drafts = (0..self.batch_size()).map(|_| begin()).collect::<Result<Vec<_>>>()?;
        let mut interrupted = false;
        for _ in 0..options.max_tokens {
            if interrupted || drafts.iter().all(|draft| draft.finish_reason.is_some()) {
                break;
            }
            let tokens = self.step().await?;
            let mut log_probs = match options.log_probs {
                Some(top) => self.log_probs(top).await?,
                None => Vec::new(),
            }
            .into_iter();
            for (sequence, (draft, token)) in drafts.iter_mut().zip(tokens).enumerate() {
                let log_probs = log_probs.next();
                if draft.finish_reason.is_none() {
                    let text = draft.push(token, log_probs, options)?;
                    interrupted |= show(sequence, &text).is_break();
                }
            }
        }
        let otherwise = if interrupted { FinishReason::Interrupted } else { FinishReason::Length };
        let mut texts = Vec::with_capacity(drafts.len());
        for (sequence, draft) in drafts.into_iter().enumerate() {
            let (rest, text) = draft.finish(otherwise)?;
            if !rest.is_empty() {
                // There is nothing left to stop.
                let _ = show(sequence, &rest);
            }
            texts.push(text);
        }
        Ok(texts)
    }
}

/// A text that is being generated.
struct Draft {
    until: Option<TextUntil>,
    text: String,
    ids: Vec<u32>,
    log_probs: Vec<LogProbs>,
    finish_reason: Option<FinishReason>,
}

impl Draft {
    fn new(options: &CompletionOptions) -> Result<Draft> {
        let until = options.tokenizer.map(|tokenizer| TextUntil::new(tokenizer, &options.stops));
        let (text, ids, log_probs) = (String::new(), Vec::new(), Vec::new());
        Ok(Draft { until: until.transpose()?, text, ids, log_probs, finish_reason: None })
    }

    /// One more token; the text that can be shown now.
    fn push(
        &mut self,
        token: u32,
        log_probs: Option<LogProbs>,
        options: &CompletionOptions,
    ) -> Result<String> {
        self.ids.push(token);
        self.log_probs.extend(log_probs);
        if Some(token) == options.eos_token_id {
            self.finish_reason = Some(FinishReason::Eos);
            return Ok(String::new());
        }
        let Some(until) = &mut self.until else { return Ok(String::new()) };
        let text = until.push(token)?;
        if until.is_stopped() {
            self.finish_reason = Some(FinishReason::Stop);
        }
        self.text += &text;
        Ok(text)
    }

    /// The text that was held back, and the whole.
    fn finish(self, otherwise: FinishReason) -> Result<(String, Completion)> {
        let Draft { until, mut text, ids, log_probs, finish_reason } = self;
        let rest = until.map(TextUntil::finish).transpose()?.unwrap_or_default();
        text += &rest;
        let finish_reason = finish_reason.unwrap_or(otherwise);
        Ok((rest, Completion { text, ids, log_probs, finish_reason }))
    }
}
