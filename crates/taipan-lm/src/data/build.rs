//! From text to tokens on disk.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::cache::{Counts, FORMAT, MANIFEST, Manifest, width};
use super::hash::Fnv;
use super::split::{Part, Split};
use super::{Dataset, Sources};
use crate::{Error, Result, Tokenizer};

/// Text that is tokenised at a time, by all threads; it decides on memory, not on results.
const BATCH: usize = 1 << 20;

impl Dataset {
    /// Tokenise `sources` into `directory`, replacing what was built there before, and open the result.
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
        fs::create_dir_all(directory).map_err(Error::io(directory))?;
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
        parts.finish(directory)?;
        Dataset::open(directory)
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
    fn finish(self, directory: &Path) -> Result<()> {
        let (train, train_files) = self.train.finish()?;
        let (held_out, held_out_files) = self.held_out.finish()?;
        if train.tokens == 0 {
            return Err(Error::invalid("data", "no tokens, expected some to learn from"));
        }
        let mut fingerprint = Fnv::new();
        for file in train_files.iter().chain(&held_out_files) {
            fingerprint.write(&file.bytes.to_le_bytes());
            fingerprint.write(&file.hash.value().to_le_bytes());
        }
        let vocab_size = self.tokenizer.vocab_size();
        fingerprint.write(&(vocab_size as u64).to_le_bytes());
        fingerprint
            .write(&self.tokenizer.end().map_or([0xff; 8], |id| u64::from(id).to_le_bytes()));
        let manifest = Manifest {
            format: FORMAT.into(),
            width: width(vocab_size),
            vocab_size,
            end: self.tokenizer.end(),
            train,
            held_out,
            fingerprint: format!("{:032x}", fingerprint.value()),
        };
        let mut file = Draft::create(directory, MANIFEST)?;
        let text = serde_json::to_string_pretty(&manifest).expect("numbers and texts");
        file.write(text.as_bytes())?;
        file.sync()?;
        // From here until the new manifest is there, the files are of two caches.
        let old = directory.join(MANIFEST);
        match fs::remove_file(&old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(&old)(error));
            }
            _ => {}
        }
        for draft in train_files.into_iter().chain(held_out_files) {
            draft.publish()?;
        }
        file.publish()
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
        let draft = |kind| Draft::create(directory, &format!("{name}.{kind}"));
        Ok(PartWriter {
            width: width(tokenizer.vocab_size()),
            counts: Counts { documents: 0, tokens: 0, bytes: 0 },
            tokens: draft("tokens")?,
            documents: draft("documents")?,
            lengths: None,
        })
    }

    fn measured(self, directory: &Path) -> Result<PartWriter> {
        Ok(PartWriter { lengths: Some(Draft::create(directory, "held_out.lengths")?), ..self })
    }

    fn begin(&mut self, end: Option<u32>) -> Result<()> {
        self.documents.write(&self.counts.tokens.to_le_bytes())?;
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
        self.tokens.write(&bytes)?;
        if let Some(file) = &mut self.lengths {
            let length = |length: &usize| {
                u16::try_from(*length).expect("a piece is shorter than 2¹⁶ bytes").to_le_bytes()
            };
            file.write(&lengths.iter().flat_map(length).collect::<Vec<u8>>())?;
        }
        self.counts.tokens += ids.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<(Counts, Vec<Draft>)> {
        let mut files = vec![self.tokens, self.documents];
        files.extend(self.lengths);
        for file in &mut files {
            file.sync()?;
        }
        Ok((self.counts, files))
    }
}

/// A file that is written beside its place; it is removed unless it is published.
struct Draft {
    file: BufWriter<File>,
    draft: PathBuf,
    place: PathBuf,
    published: bool,
    hash: Fnv,
    bytes: u64,
}

impl Draft {
    fn create(directory: &Path, name: &str) -> Result<Draft> {
        let (place, draft) = (directory.join(name), directory.join(format!("{name}.tmp")));
        let file = File::create(&draft).map_err(Error::io(&draft))?;
        let (file, hash) = (BufWriter::with_capacity(1 << 16, file), Fnv::new());
        Ok(Draft { file, draft, place, published: false, hash, bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.write(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(Error::io(&self.draft))
    }

    fn sync(&mut self) -> Result<()> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(Error::io(&self.draft))
    }

    fn publish(mut self) -> Result<()> {
        fs::rename(&self.draft, &self.place).map_err(Error::io(&self.place))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // What is left behind is overwritten by the next build, and no cache without a manifest.
            let _ = fs::remove_file(&self.draft);
        }
    }
}
