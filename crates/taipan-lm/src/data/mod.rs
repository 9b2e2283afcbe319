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
//! let batch = data.batch(&order, 0)?;
//! assert_eq!(batch.ids.len(), 32);
//! assert_eq!(Dataset::open(&directory)?.batch(&order, 0)?, batch);
//! # std::fs::remove_dir_all(&directory).unwrap();
//! # Ok::<(), taipan_lm::Error>(())
//! ```

mod build;
mod cache;
mod order;
mod sources;
mod split;
mod text;

use std::path::Path;

pub use order::Order;
pub use sources::{Reason, Skipped, Sources};
pub use split::Split;

use crate::{Batch, Error, IGNORE, Result};
use cache::{Manifest, Numbers, Ring};

/// Tokens on disk, read batch by batch: they may be more than memory holds.
///
/// A document is the token [`Tokenizer::end`](crate::Tokenizer::end), where `starts` is 1, and then its text; the
/// last token of it predicts the next document's first. When the tokenizer has no such token, `starts` is 1 at a
/// document's first token, and the last token predicts nothing ([`IGNORE`]).
#[derive(Debug)]
pub struct Dataset {
    manifest: Manifest,
    fingerprint: String,
    train: Ring,
    held_out: Ring,
    /// Bytes of text that each held-out token stands for.
    lengths: Numbers,
}

impl Dataset {
    /// Open what [`Dataset::build`] left in `directory`. A cache that is not whole is an error, as is one that is
    /// not what was written: all of it is read once, to compare checksums.
    pub fn open(directory: impl AsRef<Path>) -> Result<Dataset> {
        let directory = directory.as_ref();
        let dataset = Dataset::open_unverified(directory, Manifest::read(directory)?)?;
        dataset.manifest.verify(directory)?;
        Ok(dataset)
    }

    fn open_unverified(directory: &Path, manifest: Manifest) -> Result<Dataset> {
        let ring = |name, counts| Ring::open(directory, name, manifest.width, counts);
        let train = ring("train", manifest.train)?;
        let held_out = ring("held_out", manifest.held_out)?;
        let lengths = directory.join("held_out.lengths");
        let lengths = Numbers::open(&lengths, size_of::<u16>(), held_out.len())?;
        let fingerprint = manifest.fingerprint.to_string();
        Ok(Dataset { manifest, fingerprint, train, held_out, lengths })
    }

    /// Whether there is something to [open](Dataset::open) in `directory`.
    pub fn exists(directory: impl AsRef<Path>) -> bool {
        directory.as_ref().join(cache::MANIFEST).exists()
    }

    /// Differs when tokens, documents or the split do: 32 hexadecimal digits.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
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
    pub fn batch(&self, order: &Order, index: u64) -> Result<Batch> {
        let mut rows = Rows::new(self.manifest.end, order.len);
        for row in 0..order.rows {
            let place = order.place(self.train.len(), index, row);
            rows.push(&self.train, place, order.len)?;
        }
        Ok(rows.batch)
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
    ) -> impl Iterator<Item = Result<(Batch, u64)>> {
        let all = self.held_out.len();
        let tokens = if rows == 0 || len == 0 { 0 } else { tokens.min(all) };
        let starts = (0..tokens).step_by(rows.saturating_mul(len).max(1));
        starts.map(move |first| {
            let mut batch = Rows::new(self.manifest.end, len);
            let mut place = first;
            while batch.batch.rows < rows && place < tokens {
                let count = (tokens - place).min(len as u64);
                batch.push(&self.held_out, place, count as usize)?;
                place += count;
            }
            // Of what follows each token; the first one follows the last.
            let inside = self.lengths.read(first + 1..all.min(place + 1))?;
            let wrapped = self.lengths.read(0..u64::from(place == all))?;
            let lengths = inside.chain(wrapped).zip(&batch.batch.targets);
            let predicted = lengths.filter(|(_, target)| **target != IGNORE);
            let bytes = predicted.map(|(length, _)| length).sum();
            Ok((batch.batch, bytes))
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

    /// A row of `count` tokens from a place of the ring on, and padding.
    fn push(&mut self, ring: &Ring, place: u64, count: usize) -> Result<()> {
        let Rows { end, batch } = self;
        let tokens = ring.read(place, count + 1)?;
        for pair in tokens.windows(2) {
            let [token, next] = [pair[0], pair[1]];
            batch.ids.push(token.id);
            batch.starts.push(u32::from(token.begins));
            batch.targets.push(if next.begins && end.is_none() { IGNORE } else { next.id });
        }
        batch.rows += 1;
        let size = batch.rows * batch.len;
        batch.ids.resize(size, 0);
        batch.starts.resize(size, 0);
        batch.targets.resize(size, IGNORE);
        Ok(())
    }
}
