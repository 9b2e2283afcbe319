//! Training text: where it comes from, its tokens on disk, the order in which they are visited.
//!
//! ```
//! use taipan_lm::data::{Dataset, Order, Sources, Split};
//! use taipan_lm::Tokenizer;
//!
//! # let directory = format!("taipan-data-example-{}", std::process::id());
//! # let directory = std::env::temp_dir().join(directory);
//! let sources = Sources::texts([("one", "a text to train on"), ("two", "and another one")]);
//! let split = Split { held_out: 0.5, ..Split::default() };
//! let data = Dataset::build(&directory, &sources, &Tokenizer::bytes(), &split)?;
//! data.check(8)?;
//!
//! let order = Order { seed: 1, batch_size: 4, block_size: 8 };
//! let batch = data.batch(&order, 0)?;
//! assert_eq!(batch.ids.len(), 32);
//! assert_eq!(Dataset::open(&directory)?.batch(&order, 0)?, batch);
//! # std::fs::remove_dir_all(&directory).unwrap();
//! # Ok::<(), taipan_lm::Error>(())
//! ```

mod build;
mod cache;
mod chunks;
mod order;
mod sources;
mod split;

use std::path::Path;

pub use order::Order;
pub use sources::{Reason, Skipped, Sources};
pub use split::Split;

use crate::checksum::verify_files;
use crate::error::ensure;
use crate::{Batch, IGNORE, Result};
use cache::{CyclicTokens, IntFile, Manifest, Token};
use split::Subset;

/// Tokens on disk, read batch by batch: they may be more than memory holds.
///
/// A document is the token [`eos_token_id`](crate::Tokenizer::eos_token_id), where `seq_start` is
/// 1, and then its text; its last token predicts the next document's first. When the tokenizer has
/// no such token, `seq_start` is 1 at a document's first token, and its last token predicts nothing
/// ([`IGNORE`]). Documents are packed: a sequence of a batch may contain several.
#[derive(Debug)]
pub struct Dataset {
    manifest: Manifest,
    fingerprint: String,
    train: CyclicTokens,
    held_out: CyclicTokens,
    /// Bytes of text of each held-out token.
    lengths: IntFile,
}

impl Dataset {
    /// Open what [`Dataset::build`] wrote to `directory`. A cache that is incomplete or changed is
    /// an error: all of it is read once, to compare checksums.
    pub fn open(directory: impl AsRef<Path>) -> Result<Dataset> {
        let directory = directory.as_ref();
        let dataset = Dataset::open_unverified(directory, Manifest::read(directory)?)?;
        verify_files(&dataset.manifest.files, directory)?;
        Ok(dataset)
    }

    fn open_unverified(directory: &Path, manifest: Manifest) -> Result<Dataset> {
        let open = |subset, counts| CyclicTokens::open(directory, subset, manifest.width, counts);
        let train = open(Subset::Train, manifest.train)?;
        let held_out = open(Subset::HeldOut, manifest.held_out)?;
        let lengths = directory.join("held_out.lengths");
        let lengths = IntFile::open(&lengths, size_of::<u16>(), held_out.len())?;
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

    /// Bytes of text, held out or not.
    pub fn bytes(&self) -> u64 {
        self.manifest.train.bytes + self.manifest.held_out.bytes
    }

    /// The tokenizer's vocabulary: every id is less.
    pub fn vocab_size(&self) -> usize {
        self.manifest.vocab_size
    }

    /// An error unless there is enough text for a block of `block_size` tokens to train on and,
    /// when anything is held out, for one to evaluate with.
    pub fn check(&self, block_size: usize) -> Result<()> {
        let held_out = Some(("held-out", self.held_out_tokens())).filter(|(_, tokens)| *tokens > 0);
        for (subset, tokens) in [("training", self.train_tokens())].into_iter().chain(held_out) {
            let least = block_size as u64 + 1;
            let why = format!("{tokens} tokens of {subset} text, expected {least} or more");
            ensure!(tokens >= least, "data", "{why} for a block of {block_size}");
        }
        Ok(())
    }

    /// The `index`-th batch of a run. It follows from the data, the order and the index alone.
    pub fn batch(&self, order: &Order, index: u64) -> Result<Batch> {
        let mut batch = Batch { block_size: order.block_size, ..Batch::default() };
        for sequence in 0..order.batch_size {
            let offset = order.offset(self.train.len(), index, sequence);
            self.push(&mut batch, self.train.read(offset, order.block_size + 1)?);
        }
        Ok(batch)
    }

    /// Batches over the first `tokens` held-out tokens, in order, each with the bytes of text of
    /// its targets; for bits per byte, divide the sum of losses by the sum of these (and by ln 2).
    ///
    /// Every token is in one batch. The last batch may have fewer sequences, and the last of them
    /// may end with padding, whose targets are [`IGNORE`]: weight batches by their other targets.
    pub fn held_out(
        &self,
        batch_size: usize,
        block_size: usize,
        tokens: u64,
    ) -> impl Iterator<Item = Result<(Batch, u64)>> {
        let all = self.held_out.len();
        let per_batch = batch_size.saturating_mul(block_size);
        let tokens = if per_batch == 0 { 0 } else { tokens.min(all) };
        (0..tokens).step_by(per_batch.max(1)).map(move |first| {
            let mut batch = Batch { block_size, ..Batch::default() };
            let mut offset = first;
            while batch.batch_size < batch_size && offset < tokens {
                let count = (tokens - offset).min(block_size as u64);
                self.push(&mut batch, self.held_out.read(offset, count as usize + 1)?);
                offset += count;
            }
            // Of the token after each token; after the last comes the first.
            let inside = self.lengths.read(first + 1..all.min(offset + 1))?;
            let wrapped = self.lengths.read(0..u64::from(offset == all))?;
            let lengths = inside.chain(wrapped).zip(&batch.targets);
            let predicted = lengths.filter(|(_, target)| **target != IGNORE);
            let bytes = predicted.map(|(length, _)| length).sum();
            Ok((batch, bytes))
        })
    }

    /// Add a sequence, of which the last token is only predicted, and padding.
    fn push(&self, batch: &mut Batch, tokens: Vec<Token>) {
        for pair in tokens.windows(2) {
            let [token, next] = [pair[0], pair[1]];
            let ignored = next.seq_start && self.manifest.eos_token_id.is_none();
            batch.ids.push(token.id);
            batch.seq_start.push(u32::from(token.seq_start));
            batch.targets.push(if ignored { IGNORE } else { next.id });
        }
        batch.batch_size += 1;
        let size = batch.batch_size * batch.block_size;
        batch.ids.resize(size, 0);
        batch.seq_start.resize(size, 0);
        batch.targets.resize(size, IGNORE);
    }
}
