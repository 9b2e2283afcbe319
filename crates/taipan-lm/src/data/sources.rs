//! Where the text comes from.

use std::borrow::Cow;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use super::chunks::Chunks;
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
}

#[derive(Clone, Debug)]
pub(super) enum Document {
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    File(PathBuf),
    Text(String, Cow<'static, str>),
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
    /// It is in the directory that [`Sources::find_outside`] leaves out.
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
        Sources { documents: texts.collect(), skipped: Vec::new() }
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
        }
    }

    /// Every document, in full.
    pub(crate) fn documents(&self) -> impl Iterator<Item = Section> {
        (0..self.len()).map(|document| Section { document, start: 0, end: u64::MAX })
    }

    /// The text of a section, in chunks that end where lines do.
    pub(crate) fn chunks(&self, section: &Section) -> Result<Chunks<'_>> {
        let (offset, len) = (section.start, section.end - section.start);
        let (name, reader): (_, Box<dyn Read>) = match &self.documents[section.document] {
            Document::File(path) => {
                let mut file = File::open(path).map_err(Error::io(path))?;
                file.seek(SeekFrom::Start(offset)).map_err(Error::io(path))?;
                (path.clone(), Box::new(file.take(len)))
            }
            Document::Text(name, text) => {
                let text = &text.as_bytes()[(offset as usize).min(text.len())..];
                (name.into(), Box::new(text.take(len)))
            }
        };
        Ok(Chunks { reader, name, buffer: Vec::new(), offset })
    }

    /// The first offset from `at` on where a character begins.
    pub(crate) fn char_boundary(&self, document: usize, at: u64) -> Result<u64> {
        let section = Section { document, start: at, end: at + 4 };
        let (mut text, mut bytes) = (self.chunks(&section)?, Vec::new());
        text.reader.read_to_end(&mut bytes).map_err(Error::io(&text.name))?;
        let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
        Ok(at + bytes.iter().take_while(continues).count() as u64)
    }
}
