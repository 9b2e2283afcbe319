//! How far the preparation of text has come.

use std::fmt;
use std::sync::Arc;

/// What is done with the text, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done now.
    pub stage: Stage,
    /// How much of it is done, in the unit of the stage.
    pub done: u64,
    /// How much there is, or 0 where nobody knows.
    pub total: u64,
}

/// A stage of the preparation of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Files are found, decompressed and checked; bytes.
    Reading,
    /// The distinct words are counted, to train a tokenizer; bytes.
    CountingWords,
    /// Pairs of tokens are merged, to train a tokenizer; tokens of the vocabulary.
    Merging,
    /// Text becomes tokens on disk; bytes.
    Tokenising,
}

/// A function that is told of progress, often; it decides what to show.
#[derive(Clone, Default)]
pub struct OnProgress(Option<Arc<dyn Fn(Progress) + Send + Sync>>);

impl OnProgress {
    /// Tell this function.
    pub fn new(function: impl Fn(Progress) + Send + Sync + 'static) -> OnProgress {
        OnProgress(Some(Arc::new(function)))
    }

    pub(crate) fn report(&self, stage: Stage, done: u64, total: u64) {
        if let Some(function) = &self.0 {
            function(Progress { stage, done, total });
        }
    }
}

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OnProgress(_)" } else { "OnProgress(none)" })
    }
}
