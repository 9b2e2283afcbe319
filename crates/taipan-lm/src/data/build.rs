//! From text to tokens on disk.

use std::path::Path;

#[cfg(not(target_family = "wasm"))]
use rayon::prelude::*;

use super::cache::{Counts, FILES, FORMAT, MANIFEST, Manifest, is_cache_file, width};
use super::split::{Split, Subset};
use super::{Dataset, Sources, Stage};
use crate::atomic::{Draft, Temporary, remove_unfinished, write_file};
use crate::checksum::Checksum;
use crate::error::ensure;
use crate::filesystem as fs;
use crate::{Error, Result, Tokenizer};

/// Bytes of text that are tokenised at a time, by all threads; affects memory, not results.
const BATCH: usize = 1 << 20;

impl Dataset {
    /// Tokenise `sources` into `directory`, replacing what was built there before, and open the
    /// result. The directory is created if it is missing, but not its parents.
    ///
    /// Text is read in chunks of at most 32 KiB that end at a line's end where there is one, and
    /// never held in memory as a whole. A token does not cross the border of two chunks. Every
    /// document begins with [`Tokenizer::eos_token_id`]. A build that is interrupted leaves nothing
    /// that [`Dataset::open`] accepts.
    pub fn build(
        directory: impl AsRef<Path>,
        sources: &Sources,
        tokenizer: &Tokenizer,
        split: &Split,
    ) -> Result<Dataset> {
        let directory = directory.as_ref();
        let sections = split.sections(sources)?;
        if !fs::is_there(directory) {
            fs::create_dir(directory).map_err(Error::io(directory))?;
        }
        remove_unfinished(directory, is_cache_file)?;
        let mut writer = CacheWriter {
            tokenizer,
            train: SubsetWriter::create(directory, Subset::Train, tokenizer)?,
            held_out: SubsetWriter::create(directory, Subset::HeldOut, tokenizer)?,
        };
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        let (mut done, total) = (0, sources.total_bytes()?);
        for (section, subset) in sections {
            let mut is_first = true;
            for text in sources.chunks(&section)? {
                let text = text?;
                bytes += text.len();
                chunks.push(Chunk { subset, is_first, text });
                is_first = false;
                if bytes >= BATCH {
                    writer.write(&chunks)?;
                    chunks.clear();
                    done += std::mem::take(&mut bytes) as u64;
                    sources.report(Stage::Tokenising, done, total);
                }
            }
        }
        writer.write(&chunks)?;
        sources.report(Stage::Tokenising, total, total);
        let (bytes, enough) = (writer.train.counts.bytes, writer.held_out.counts.tokens > 0);
        let enough = enough || split.held_out == 0.0;
        ensure!(enough, "data", "{bytes} bytes of text, expected enough to hold some out");
        let manifest = writer.finish(directory)?;
        // The checksums are those of what was just written.
        Dataset::open_unverified(directory, manifest)
    }
}

struct Chunk {
    subset: Subset,
    /// Whether it is the first of a document.
    is_first: bool,
    text: String,
}

struct CacheWriter<'a> {
    tokenizer: &'a Tokenizer,
    train: SubsetWriter,
    held_out: SubsetWriter,
}

impl CacheWriter<'_> {
    fn write(&mut self, chunks: &[Chunk]) -> Result<()> {
        let encode = |chunk: &Chunk| match chunk.subset {
            Subset::Train => Ok((self.tokenizer.encode(&chunk.text)?, Vec::new())),
            Subset::HeldOut => self.tokenizer.encode_measured(&chunk.text),
        };
        #[cfg(not(target_family = "wasm"))]
        let chunks_iter = chunks.par_iter();
        #[cfg(target_family = "wasm")]
        let chunks_iter = chunks.iter();
        let encoded = chunks_iter.map(encode).collect::<Result<Vec<_>>>()?;
        for (chunk, (ids, lengths)) in chunks.iter().zip(encoded) {
            let writer = match chunk.subset {
                Subset::Train => &mut self.train,
                Subset::HeldOut => &mut self.held_out,
            };
            if chunk.is_first {
                writer.start_document(self.tokenizer.eos_token_id())?;
            }
            writer.write(&ids, &lengths)?;
            writer.counts.bytes += chunk.text.len() as u64;
        }
        Ok(())
    }

    /// Publish the files, the manifest last.
    fn finish(self, directory: &Path) -> Result<Manifest> {
        let (train, train_files) = self.train.finish()?;
        let (held_out, held_out_files) = self.held_out.finish()?;
        ensure!(train.tokens > 0, "data", "no tokens, expected some to train on");
        let vocab_size = self.tokenizer.vocab_size();
        let (checksums, files): (Vec<Checksum>, Vec<Temporary>) =
            train_files.into_iter().chain(held_out_files).unzip();
        let mut manifest = Manifest {
            format: FORMAT.into(),
            width: width(vocab_size),
            vocab_size,
            eos_token_id: self.tokenizer.eos_token_id(),
            train,
            held_out,
            files: FILES.map(String::from).into_iter().zip(checksums).collect(),
            fingerprint: Checksum::of(b""),
        };
        manifest.fingerprint = manifest.expected_fingerprint();
        // Until the new manifest is there, an old one has the checksums of other files.
        files.into_iter().try_for_each(Temporary::publish)?;
        write_file(&directory.join(MANIFEST), manifest.to_json().as_bytes())?;
        Ok(manifest)
    }
}

struct SubsetWriter {
    width: usize,
    counts: Counts,
    tokens: Draft,
    documents: Draft,
    /// Bytes of text of each token, where they are counted.
    lengths: Option<Draft>,
}

impl SubsetWriter {
    fn create(directory: &Path, subset: Subset, tokenizer: &Tokenizer) -> Result<SubsetWriter> {
        let name = subset.name();
        let draft = |kind| Draft::create(&directory.join(format!("{name}.{kind}")));
        Ok(SubsetWriter {
            width: width(tokenizer.vocab_size()),
            counts: Counts::default(),
            tokens: draft("tokens")?,
            documents: draft("documents")?,
            lengths: (subset == Subset::HeldOut).then(|| draft("lengths")).transpose()?,
        })
    }

    fn start_document(&mut self, eos_token_id: Option<u32>) -> Result<()> {
        self.documents.out.write(&self.counts.tokens.to_le_bytes())?;
        self.counts.documents += 1;
        eos_token_id.map_or(Ok(()), |id| self.write(&[id], &[0]))
    }

    fn write(&mut self, ids: &[u32], lengths: &[usize]) -> Result<()> {
        let width = self.width;
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(width)).collect();
        self.tokens.out.write(&bytes)?;
        if let Some(file) = &mut self.lengths {
            let length = |length: &usize| {
                u16::try_from(*length).expect("a chunk is shorter than 2¹⁶ bytes").to_le_bytes()
            };
            file.out.write(&lengths.iter().flat_map(length).collect::<Vec<u8>>())?;
        }
        self.counts.tokens += ids.len() as u64;
        Ok(())
    }

    /// What it holds, and its files in the order of [`FILES`].
    fn finish(self) -> Result<(Counts, Vec<(Checksum, Temporary)>)> {
        let files = [Some(self.tokens), Some(self.documents), self.lengths];
        let synced = files.into_iter().flatten().map(Draft::sync).collect::<Result<_>>()?;
        Ok((self.counts, synced))
    }
}
