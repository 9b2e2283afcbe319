//! Where the text comes from.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::chunks::Chunks;
use crate::error::ensure;
use crate::{Error, Result, Tokenizer};

/// How much of a file is looked at to tell text from other data.
const HEAD: u64 = 8 << 10;

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
    documents: Vec<Document>,
    skipped: Vec<Skipped>,
}

#[derive(Clone, Debug)]
enum Document {
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

    /// The files that are named. Each file is a document.
    ///
    /// A name is that of a file, of a directory, or a pattern (`*`, `?`, `[…]`, and `**` for
    /// directories of any depth) when there is no such file. Of directories and what patterns
    /// match, every file is taken, to any depth and in alphabetical order, but those that
    /// [`Sources::skipped`] lists. A name that leads to no text, and a file that is named itself
    /// but is not text, are errors.
    pub fn find<P: AsRef<Path>>(names: impl IntoIterator<Item = P>) -> Result<Sources> {
        Search::default().find(names)
    }

    /// [`Sources::find`] without what is in `directory`, so that a run is not trained on its own
    /// output.
    pub fn find_outside<P: AsRef<Path>>(
        directory: &Path,
        names: impl IntoIterator<Item = P>,
    ) -> Result<Sources> {
        // Where nothing is, nothing can be found.
        let outside = fs::canonicalize(directory).ok();
        Search { outside, ..Search::default() }.find(names)
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

#[derive(Default)]
struct Search {
    found: Sources,
    seen: HashSet<PathBuf>,
    /// The directory that is left out, by its real path.
    outside: Option<PathBuf>,
}

impl Search {
    fn find<P: AsRef<Path>>(mut self, names: impl IntoIterator<Item = P>) -> Result<Sources> {
        for name in names {
            let name = name.as_ref();
            let before = (self.found.documents.len(), self.found.skipped.len());
            let pattern = name.to_str().filter(|name| name.contains(['*', '?', '[']));
            match (fs::metadata(name), pattern) {
                (Ok(metadata), _) if metadata.is_dir() => self.directory(name)?,
                (Ok(_), _) => self.named(name)?,
                (Err(_), Some(pattern)) => self.pattern(pattern)?,
                (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(Error::invalid(name.display(), "no such file or directory"));
                }
                (Err(error), None) => return Err(Error::io(name)(error)),
            }
            let skipped = &self.found.skipped[before.1..];
            let repeated = skipped.iter().any(|file| file.reason == Reason::Repeated);
            let fine = self.found.documents.len() > before.0 || repeated;
            let first = skipped.first().map_or(String::new(), |first| {
                let (path, reason) = (first.path.display(), first.reason);
                format!("; of {} skipped, the first, {path}, is {reason}", skipped.len())
            });
            ensure!(fine, name.display(), "no text files found{first}");
        }
        Ok(self.found)
    }

    /// Whether a real path is left out.
    fn is_output(&self, path: &Path) -> bool {
        self.outside.as_ref().is_some_and(|outside| path.starts_with(outside))
    }

    fn skip(&mut self, path: &Path, reason: Reason) {
        self.found.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// A file that was asked for by its name: what is not text is a mistake.
    fn named(&mut self, path: &Path) -> Result<()> {
        let skipped = self.found.skipped.len();
        self.file(path)?;
        if let Some(Skipped { reason, .. }) = self.found.skipped.get(skipped) {
            let is_text = *reason == Reason::Repeated;
            ensure!(is_text, path.display(), "{reason}, expected UTF-8 text");
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        if !fs::metadata(path).map_err(Error::io(path))?.is_file() {
            self.skip(path, Reason::Special);
            return Ok(());
        }
        let mut head = Vec::new();
        let file = File::open(path).map_err(Error::io(path))?;
        file.take(HEAD).read_to_end(&mut head).map_err(Error::io(path))?;
        let identity = fs::canonicalize(path).map_err(Error::io(path))?;
        if self.is_output(&identity) {
            self.skip(path, Reason::Output);
        } else if head.is_empty() {
            self.skip(path, Reason::Empty);
        } else if head.contains(&0) {
            self.skip(path, Reason::Binary);
        } else if !self.seen.insert(identity) {
            self.skip(path, Reason::Repeated);
        } else {
            self.found.documents.push(Document::File(path.to_owned()));
        }
        Ok(())
    }

    fn directory(&mut self, path: &Path) -> Result<()> {
        if self.is_output(&fs::canonicalize(path).map_err(Error::io(path))?) {
            self.skip(path, Reason::Output);
            return Ok(());
        }
        let entries = fs::read_dir(path).map_err(Error::io(path))?;
        let mut entries = entries.collect::<std::io::Result<Vec<_>>>().map_err(Error::io(path))?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let path = entry.path();
            let kind = entry.file_type().map_err(Error::io(&path))?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                self.skip(&path, Reason::Hidden);
            } else if kind.is_dir() {
                self.directory(&path)?;
            } else if kind.is_symlink() && path.is_dir() {
                self.skip(&path, Reason::Link);
            } else {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<()> {
        let options = glob::MatchOptions {
            require_literal_separator: true,
            require_literal_leading_dot: true,
            ..Default::default()
        };
        // By itself it is the directories alone.
        let files = pattern.ends_with("**").then(|| format!("{pattern}/*"));
        let paths = glob::glob_with(files.as_deref().unwrap_or(pattern), options)
            .map_err(|error| Error::invalid(pattern, error))?;
        // What is in a directory that matched comes after it, and with it already.
        let mut walked: Option<PathBuf> = None;
        for path in paths {
            let path = path.map_err(|error| {
                let path = error.path().to_owned();
                Error::Io { path, source: error.into() }
            })?;
            if walked.as_ref().is_some_and(|walked| path.starts_with(walked)) {
                continue;
            }
            if path.is_dir() {
                self.directory(&path)?;
                walked = Some(path);
            } else {
                self.file(&path)?;
            }
        }
        Ok(())
    }
}
