//! Text to learn from: where it comes from, how it is kept as tokens, in which order it is visited.
//!
//! ```
//! use taipan_lm::data::{Dataset, Order, Sources, Split};
//! use taipan_lm::Tokenizer;
//!
//! # let directory = std::env::temp_dir().join(format!("taipan-data-example-{}", std::process::id()));
//! let sources = Sources::texts([("one", "a text to learn from"), ("two", "and another one")]);
//! let split = Split { held_out: 0.5, ..Split::default() };
//! let data = Dataset::build(&directory, &sources, &Tokenizer::bytes(), &split)?;
//! data.check(8)?;
//!
//! let order = Order { seed: 1, rows: 4, len: 8 };
//! let batch = data.batch(&order, 0);
//! assert_eq!(batch.ids.len(), 32);
//! assert_eq!(Dataset::open(&directory)?.batch(&order, 0), batch);
//! # std::fs::remove_dir_all(&directory).unwrap();
//! # Ok::<(), taipan_lm::Error>(())
//! ```

mod build;
mod cache;
mod hash;
mod order;
mod sources;
mod split;
mod text;

use std::path::Path;

pub use order::Order;
pub use sources::{Reason, Skipped, Sources};
pub use split::Split;

use crate::{Batch, Error, IGNORE, Result};
use cache::{Manifest, Numbers, Ring, Token};

/// Tokens on disk, mapped into memory: they may be more than memory holds.
///
/// A document is the token [`Tokenizer::end`](crate::Tokenizer::end), where `starts` is 1, and then its text; the
/// last token of it predicts the next document's first. When the tokenizer has no such token, `starts` is 1 at a
/// document's first token, and the last token predicts nothing ([`IGNORE`]).
#[derive(Debug)]
pub struct Dataset {
    manifest: Manifest,
    train: Ring,
    held_out: Ring,
    /// Bytes of text that each held-out token stands for.
    lengths: Numbers,
}

impl Dataset {
    /// Open what [`Dataset::build`] left in `directory`. A cache that is not whole is an error.
    pub fn open(directory: impl AsRef<Path>) -> Result<Dataset> {
        let directory = directory.as_ref();
        let manifest = Manifest::read(directory)?;
        let ring = |name, counts| Ring::open(directory, name, manifest.width, counts);
        let train = ring("train", manifest.train)?;
        let held_out = ring("held_out", manifest.held_out)?;
        let lengths = directory.join("held_out.lengths");
        let lengths = Numbers::open(&lengths, size_of::<u16>(), held_out.len())?;
        Ok(Dataset { manifest, train, held_out, lengths })
    }

    /// Differs when tokens, documents or the split do: 32 hexadecimal digits.
    pub fn fingerprint(&self) -> &str {
        &self.manifest.fingerprint
    }

    /// Tokens to train on.
    pub fn train_tokens(&self) -> u64 {
        self.manifest.train.tokens
    }

    /// Tokens held out.
    pub fn held_out_tokens(&self) -> u64 {
        self.manifest.held_out.tokens
    }

    /// Documents to train on. One of which only the end is held out counts here and there.
    pub fn train_documents(&self) -> u64 {
        self.manifest.train.documents
    }

    /// Documents held out.
    pub fn held_out_documents(&self) -> u64 {
        self.manifest.held_out.documents
    }

    /// Bytes of text, in both parts.
    pub fn bytes(&self) -> u64 {
        self.manifest.train.bytes + self.manifest.held_out.bytes
    }

    /// The tokenizer's vocabulary: every id is less.
    pub fn vocab_size(&self) -> usize {
        self.manifest.vocab_size
    }

    /// Whether there is text enough for a block of `len` tokens to train on, and, when anything is held out, for
    /// one to validate with.
    pub fn check(&self, len: usize) -> Result<()> {
        let held_out = Some(("held-out", self.held_out_tokens())).filter(|(_, tokens)| *tokens > 0);
        for (part, tokens) in [("training", self.train_tokens())].into_iter().chain(held_out) {
            if tokens <= len as u64 {
                let why = format!(
                    "{tokens} tokens of {part} text, expected {} or more for a block of {len}",
                    len as u64 + 1
                );
                return Err(Error::invalid("data", why));
            }
        }
        Ok(())
    }

    /// The `index`-th batch of a run. It follows from the data, the order and the index alone.
    pub fn batch(&self, order: &Order, index: u64) -> Batch {
        let mut rows = Rows::new(self.manifest.end, order.len);
        for row in 0..order.rows {
            let place = order.place(self.train.len(), index, row);
            rows.push(self.train.from(place), order.len);
        }
        rows.batch
    }

    /// Batches over the first `tokens` held-out tokens, in order, each with the bytes of text that its
    /// targets stand for; for bits per byte, divide the sum of losses by the sum of these (and by ln 2).
    ///
    /// Every token is in one batch. The last batch may have fewer rows, and the end of its last row may be
    /// padding, whose targets are [`IGNORE`]: weigh batches by their targets that are not.
    pub fn held_out(
        &self,
        rows: usize,
        len: usize,
        tokens: u64,
    ) -> impl Iterator<Item = (Batch, u64)> {
        let all = self.held_out.len();
        let tokens = if rows == 0 || len == 0 { 0 } else { tokens.min(all) };
        let mut place = 0;
        std::iter::from_fn(move || {
            let mut batch = Rows::new(self.manifest.end, len);
            let first = place;
            while batch.batch.rows < rows && place < tokens {
                let count = (tokens - place).min(len as u64);
                batch.push(self.held_out.from(place), count as usize);
                place += count;
            }
            let predicted = (first..place).zip(batch.batch.targets.iter());
            let length = |(place, _)| self.lengths.get((place + 1) % all);
            let bytes = predicted.filter(|(_, target)| **target != IGNORE).map(length).sum();
            (place > first).then_some((batch.batch, bytes))
        })
    }
}

/// A batch to which rows are added.
struct Rows {
    end: Option<u32>,
    batch: Batch,
}

impl Rows {
    fn new(end: Option<u32>, len: usize) -> Rows {
        let batch = Batch { rows: 0, len, ids: vec![], targets: vec![], starts: vec![] };
        Rows { end, batch }
    }

    /// A row of the first `count` tokens, and padding.
    fn push(&mut self, tokens: impl Iterator<Item = Token>, count: usize) {
        let Rows { end, batch } = self;
        let mut tokens = tokens.take(count + 1).peekable();
        while let Some(token) = tokens.next()
            && let Some(next) = tokens.peek()
        {
            batch.ids.push(token.id);
            batch.starts.push(u32::from(token.begins));
            batch.targets.push(if next.begins && end.is_none() { IGNORE } else { next.id });
        }
        batch.rows += 1;
        let size = batch.rows * batch.len;
        batch.ids.resize(size, 0);
        batch.starts.resize(size, 0);
        batch.targets.resize(size, IGNORE);
    }
}
