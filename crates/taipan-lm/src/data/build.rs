//! From text to tokens on disk.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rayon::prelude::*;

use super::cache::{Counts, FILES, FORMAT, MANIFEST, Manifest, width};
use super::split::{Part, Split};
use super::{Dataset, Sources};
use crate::atomic::{Draft, Synced, replace_file, sweep};
use crate::checksum::Checksum;
use crate::{Error, Result, Tokenizer};

/// Text that is tokenised at a time, by all threads; it decides on memory, not on results.
const BATCH: usize = 1 << 20;

impl Dataset {
    /// Tokenise `sources` into `directory`, replacing what was built there before, and open the result. The directory
    /// is made unless it is there, but not those around it.
    ///
    /// Text is read in pieces of at most 32 KiB that end at a line's end where there is one, and never held as a
    /// whole. A token does not reach from one piece into the next. Every document begins with
    /// [`Tokenizer::end`]. A build that does not come to its end leaves nothing that [`Dataset::open`] takes.
    pub fn build(
        directory: impl AsRef<Path>,
        sources: &Sources,
        tokenizer: &Tokenizer,
        split: &Split,
    ) -> Result<Dataset> {
        let directory = directory.as_ref();
        let sections = split.sections(sources)?;
        match fs::create_dir(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io(directory)(error));
            }
            _ => {}
        }
        sweep(directory, |name| FILES.contains(&name) || name == MANIFEST)?;
        let mut parts = Parts {
            tokenizer,
            train: PartWriter::create(directory, "train", tokenizer)?,
            held_out: PartWriter::create(directory, "held_out", tokenizer)?.measured(directory)?,
        };
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for (section, part) in sections {
            let mut begins = true;
            for text in sources.pieces(&section)? {
                let text = text?;
                bytes += text.len();
                pieces.push(Piece { part, begins, text });
                begins = false;
                if bytes >= BATCH {
                    parts.write(&pieces)?;
                    pieces.clear();
                    bytes = 0;
                }
            }
        }
        parts.write(&pieces)?;
        if split.held_out > 0.0 && parts.held_out.counts.tokens == 0 {
            let bytes = parts.train.counts.bytes;
            let why = format!("{bytes} bytes of text, expected enough to hold out a part of it");
            return Err(Error::invalid("data", why));
        }
        let manifest = parts.finish(directory)?;
        // The checksums are those of what was just written.
        Dataset::open_unverified(directory, manifest)
    }
}

struct Piece {
    part: Part,
    /// It is the first of a document.
    begins: bool,
    text: String,
}

struct Parts<'a> {
    tokenizer: &'a Tokenizer,
    train: PartWriter,
    held_out: PartWriter,
}

impl Parts<'_> {
    fn write(&mut self, pieces: &[Piece]) -> Result<()> {
        let encode = |piece: &Piece| match piece.part {
            Part::Train => Ok((self.tokenizer.encode(&piece.text)?, Vec::new())),
            Part::HeldOut => self.tokenizer.encode_measured(&piece.text),
        };
        let encoded = pieces.par_iter().map(encode).collect::<Result<Vec<_>>>()?;
        for (piece, (ids, lengths)) in pieces.iter().zip(encoded) {
            let part = match piece.part {
                Part::Train => &mut self.train,
                Part::HeldOut => &mut self.held_out,
            };
            if piece.begins {
                part.begin(self.tokenizer.end())?;
            }
            part.write(&ids, &lengths)?;
            part.counts.bytes += piece.text.len() as u64;
        }
        Ok(())
    }

    /// Put the files in place, the manifest last.
    fn finish(self, directory: &Path) -> Result<Manifest> {
        let (train, train_files) = self.train.finish()?;
        let (held_out, held_out_files) = self.held_out.finish()?;
        if train.tokens == 0 {
            return Err(Error::invalid("data", "no tokens, expected some to learn from"));
        }
        let vocab_size = self.tokenizer.vocab_size();
        let files: Vec<Synced> = train_files.into_iter().chain(held_out_files).collect();
        let checksums = FILES.iter().zip(&files);
        let mut manifest = Manifest {
            format: FORMAT.into(),
            width: width(vocab_size),
            vocab_size,
            end: self.tokenizer.end(),
            train,
            held_out,
            files: checksums.map(|(name, file)| (name.to_string(), file.checksum)).collect(),
            fingerprint: Checksum::of(b""),
        };
        manifest.fingerprint = manifest.expected_fingerprint();
        // From here until the new manifest is there, the files are of two caches.
        let old = directory.join(MANIFEST);
        match fs::remove_file(&old) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(&old)(error));
            }
            _ => {}
        }
        files.into_iter().try_for_each(Synced::publish)?;
        replace_file(&old, |out| out.write(manifest.to_json().as_bytes()))?;
        Ok(manifest)
    }
}

struct PartWriter {
    width: usize,
    counts: Counts,
    tokens: Draft,
    documents: Draft,
    /// Bytes of text of each token, where they are counted.
    lengths: Option<Draft>,
}

impl PartWriter {
    fn create(directory: &Path, name: &str, tokenizer: &Tokenizer) -> Result<PartWriter> {
        let draft = |kind| Draft::create(&directory.join(format!("{name}.{kind}")));
        Ok(PartWriter {
            width: width(tokenizer.vocab_size()),
            counts: Counts { documents: 0, tokens: 0, bytes: 0 },
            tokens: draft("tokens")?,
            documents: draft("documents")?,
            lengths: None,
        })
    }

    fn measured(self, directory: &Path) -> Result<PartWriter> {
        Ok(PartWriter {
            lengths: Some(Draft::create(&directory.join("held_out.lengths"))?),
            ..self
        })
    }

    fn begin(&mut self, end: Option<u32>) -> Result<()> {
        self.documents.output().write(&self.counts.tokens.to_le_bytes())?;
        self.counts.documents += 1;
        match end {
            Some(id) => self.write(&[id], &[0]),
            None => Ok(()),
        }
    }

    fn write(&mut self, ids: &[u32], lengths: &[usize]) -> Result<()> {
        let width = self.width;
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(width)).collect();
        self.tokens.output().write(&bytes)?;
        if let Some(file) = &mut self.lengths {
            let length = |length: &usize| {
                u16::try_from(*length).expect("a piece is shorter than 2¹⁶ bytes").to_le_bytes()
            };
            file.output().write(&lengths.iter().flat_map(length).collect::<Vec<u8>>())?;
        }
        self.counts.tokens += ids.len() as u64;
        Ok(())
    }

    /// What it holds, and its files in the order of [`FILES`].
    fn finish(self) -> Result<(Counts, Vec<Synced>)> {
        let files = [Some(self.tokens), Some(self.documents), self.lengths];
        let synced = files.into_iter().flatten().map(Draft::sync).collect::<Result<_>>()?;
        Ok((self.counts, synced))
    }
}
