//! Where the text comes from.

use std::borrow::Cow;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunks::Chunks;
use super::format::{Format, Piece, TextFile};
use super::progress::{OnProgress, Stage};
use crate::error::ensure;
use crate::filesystem::{self as fs, File};
use crate::{Error, Result, Tokenizer};

/// Documents to train on: files, found by name, in directories and by patterns, or texts in memory.
///
/// ```
/// use taipan_lm::data::Sources;
///
/// let sources = Sources::texts([("a greeting", "Hello"), ("a farewell", "Good bye")]);
/// assert_eq!(sources.len(), 2);
/// assert_eq!(
///     Sources::find(["no-such-file.txt"]).unwrap_err().to_string(),
///     "no-such-file.txt: no such file or directory"
/// );
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub(super) documents: Vec<Document>,
    pub(super) skipped: Vec<Skipped>,
    on_progress: OnProgress,
}

#[derive(Clone, Debug)]
pub(super) enum Document {
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    File(PathBuf),
    Text(String, Cow<'static, str>),
    /// A document of the file `name`: `len` bytes of `text` from `offset` on.
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    Part {
        name: Arc<Path>,
        text: Arc<dyn ReadAt>,
        offset: u64,
        len: u64,
    },
}

/// Text that is read from anywhere.
pub(super) trait ReadAt: fmt::Debug + Send + Sync {
    /// As [`Read::read`], from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize>;
}

/// Reads a text from a place on.
struct PartReader<'a> {
    text: &'a dyn ReadAt,
    offset: u64,
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.text.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// A file that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
}

/// Why a file is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Its name, or that of a directory, begins with a dot.
    #[error("hidden")]
    Hidden,
    /// There is a NUL among its first 8 KiB.
    #[error("binary")]
    Binary,
    /// It has no bytes.
    #[error("empty")]
    Empty,
    /// It was found before.
    #[error("named twice")]
    Repeated,
    /// It is a link to a directory, which could lead in circles.
    #[error("a link to a directory")]
    Link,
    /// It is a device, a pipe or a socket.
    #[error("not a file")]
    Special,
    /// Its text is in another encoding.
    #[error("not valid UTF-8: byte at offset {offset}")]
    NotUtf8 {
        /// Where its first byte is that does not fit, in the text as it is decompressed.
        offset: u64,
    },
    /// Its first line is no JSON object, or has no text under the key.
    #[error("without text under the key")]
    NoTextKey,
    /// It is in the directory that [`FindOptions::outside`](super::FindOptions) names.
    #[error("in the output directory")]
    Output,
}

/// A range of a document's bytes; `end` may be beyond the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub document: usize,
    pub start: u64,
    pub end: u64,
}

impl Sources {
    /// Texts in memory, each with a name for messages. Each is a document.
    pub fn texts<N: Into<String>, T: Into<Cow<'static, str>>>(
        texts: impl IntoIterator<Item = (N, T)>,
    ) -> Sources {
        let texts = texts.into_iter().map(|(name, text)| Document::Text(name.into(), text.into()));
        Sources { documents: texts.collect(), ..Sources::default() }
    }

    /// These sources, whose use reports its progress: [`Tokenizer::train_bpe`] and
    /// [`Dataset::build`](super::Dataset::build).
    pub fn on_progress(self, on_progress: OnProgress) -> Sources {
        Sources { on_progress, ..self }
    }

    pub(crate) fn report(&self, stage: Stage, done: u64, total: u64) {
        self.on_progress.report(stage, done, total);
    }

    /// The documents of a file, by its name: `.jsonl` and `.ndjson` have one per line, under
    /// `text_key`; `.gz` and `.zst` are decompressed. They are held in memory.
    ///
    /// ```
    /// use taipan_lm::data::Sources;
    ///
    /// let file = "{\"text\": \"Hello\"}\n{\"text\": \"Good bye\"}\n";
    /// assert_eq!(Sources::read("greetings.jsonl", file.as_bytes(), "text")?.len(), 2);
    /// assert_eq!(
    ///     Sources::read("greetings.jsonl", file.as_bytes(), "body").unwrap_err().to_string(),
    ///     "greetings.jsonl:1: no key \"body\", found \"text\""
    /// );
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn read(
        name: impl AsRef<Path>,
        reader: impl Read + 'static,
        text_key: &str,
    ) -> Result<Sources> {
        let name = name.as_ref();
        let file = TextFile { name, format: Format::of(name), text_key };
        let (mut documents, mut text) = (Vec::new(), String::new());
        let rejected = file.read(Box::new(reader), &mut |piece| {
            match piece {
                Piece::Text(more) => text += more,
                Piece::End => documents.push(std::mem::take(&mut text)),
            }
            Ok(())
        })?;
        match rejected {
            Some((_, error)) => Err(error),
            None => Ok(Sources::texts(
                documents.into_iter().map(|text| (name.display().to_string(), text)),
            )),
        }
    }

    /// How many documents.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// What was found and left out.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The tokens of a document, chunk by chunk as in training, each with the bytes of text of its
    /// tokens.
    pub fn encoded<'a>(
        &'a self,
        document: usize,
        tokenizer: &'a Tokenizer,
    ) -> Result<impl Iterator<Item = Result<(Vec<u32>, Vec<usize>)>> + 'a> {
        let count = self.len();
        ensure!(document < count, "sources", "document {document}, expected less than {count}");
        let chunks = self.chunks(&Section { document, start: 0, end: u64::MAX })?;
        Ok(chunks.map(|chunk| tokenizer.encode_measured(&chunk?)))
    }

    /// Bytes of a document.
    pub(crate) fn size(&self, document: usize) -> Result<u64> {
        match &self.documents[document] {
            Document::File(path) => Ok(fs::metadata(path).map_err(Error::io(path))?.len()),
            Document::Text(_, text) => Ok(text.len() as u64),
            Document::Part { len, .. } => Ok(*len),
        }
    }

    /// Bytes of all documents.
    pub(crate) fn total_bytes(&self) -> Result<u64> {
        (0..self.len()).map(|document| self.size(document)).sum()
    }

    /// Every document, in full.
    pub(crate) fn documents(&self) -> impl Iterator<Item = Section> {
        (0..self.len()).map(|document| Section { document, start: 0, end: u64::MAX })
    }

    /// The text of a section, in chunks that end where lines do.
    pub(crate) fn chunks(&self, section: &Section) -> Result<Chunks<'_>> {
        let (start, len) = (section.start, section.end - section.start);
        let (name, reader): (&Path, Box<dyn Read>) = match &self.documents[section.document] {
            Document::File(path) => {
                let mut file = File::open(path).map_err(Error::io(path))?;
                file.seek(SeekFrom::Start(start)).map_err(Error::io(path))?;
                (path, Box::new(file.take(len)))
            }
            Document::Text(name, text) => {
                let text = &text.as_bytes()[(start as usize).min(text.len())..];
                (name.as_ref(), Box::new(text.take(len)))
            }
            Document::Part { name, text, offset, len: all } => {
                let reader = PartReader { text: text.as_ref(), offset: offset + start };
                (name, Box::new(reader.take(all.saturating_sub(start).min(len))))
            }
        };
        Ok(Chunks::new(reader, name, start))
    }

    /// The first offset from `at` on where a character begins.
    pub(crate) fn char_boundary(&self, document: usize, at: u64) -> Result<u64> {
        let section = Section { document, start: at, end: at + 4 };
        let bytes = self.chunks(&section)?.into_bytes()?;
        let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
        Ok(at + bytes.iter().take_while(continues).count() as u64)
    }
}
