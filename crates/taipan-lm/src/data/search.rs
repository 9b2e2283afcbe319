//! Files with text: by name, in directories, and by patterns.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::format::{Compression, Content, Format, Piece, Rejected, Sink, TextFile};
use super::sources::Document;
use super::spool::Spool;
use super::{OnProgress, Reason, Skipped, Sources, Stage};
use crate::error::ensure;
use crate::{Error, Result};

/// Bytes between two reports of progress.
const REPORT: u64 = 1 << 22;

/// How files with text are found and read.
///
/// ```
/// use taipan_lm::data::{Encoding, FindOptions};
///
/// let options = FindOptions { encoding: Encoding::Strict, ..FindOptions::default() };
/// assert!(options.find(["no-such-file.txt"]).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct FindOptions {
    /// A directory in which nothing is found, so that a run is not trained on its own output.
    pub outside: Option<PathBuf>,
    /// The key of the text in `.jsonl` files, and its column in `.parquet` files.
    pub text_key: String,
    /// What to do with a file that is not UTF-8.
    pub encoding: Encoding,
    /// Where temporary files are put, as large as all the text that is not in plain files.
    pub temporary: PathBuf,
    /// Told while files are read, and then by what uses the sources.
    pub on_progress: OnProgress,
}

/// What to do with a file that is not UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// It is skipped.
    #[default]
    Skip,
    /// It is an error.
    Strict,
}

impl Default for FindOptions {
    fn default() -> FindOptions {
        FindOptions {
            outside: None,
            text_key: "text".into(),
            encoding: Encoding::default(),
            temporary: std::env::temp_dir(),
            on_progress: OnProgress::default(),
        }
    }
}

impl Sources {
    /// [`FindOptions::find`] with the default options.
    pub fn find<P: AsRef<Path>>(names: impl IntoIterator<Item = P>) -> Result<Sources> {
        FindOptions::default().find(names)
    }
}

impl FindOptions {
    /// The files that are named. Each is a document; of `.jsonl` and `.ndjson` files each line is
    /// one, of `.parquet` files each row. Files that end with `.gz` or `.zst` are decompressed.
    ///
    /// A name is that of a file, of a directory, or a pattern (`*`, `?`, `[…]`, and `**` for
    /// directories of any depth) when there is no such file; or `-`, standard input, whose format
    /// is seen from its first bytes. Of directories and what patterns match, every file is taken,
    /// to any depth and in alphabetical order, but those that [`Sources::skipped`] lists. A name
    /// that leads to no text, and a file that is named itself but is not text, are errors; one in
    /// another encoding is skipped unless [`Encoding::Strict`] or nothing else is found.
    pub fn find<P: AsRef<Path>>(&self, names: impl IntoIterator<Item = P>) -> Result<Sources> {
        // Where nothing is, nothing can be found.
        let outside = self.outside.as_ref().and_then(|outside| fs::canonicalize(outside).ok());
        let mut search = Search {
            options: self,
            outside,
            found: Sources::default().on_progress(self.on_progress.clone()),
            seen: HashSet::new(),
            spool: None,
            read: Cell::new(0).into(),
        };
        for name in names {
            search.name(name.as_ref())?;
        }
        search.finish()
    }
}

struct Search<'a> {
    options: &'a FindOptions,
    /// The directory that is left out, by its real path.
    outside: Option<PathBuf>,
    found: Sources,
    seen: HashSet<PathBuf>,
    /// The text that is not in plain files, once there is some.
    spool: Option<Spool>,
    /// Bytes read so far.
    read: Rc<Cell<u64>>,
}

/// Why a file is read.
#[derive(Clone, Copy, PartialEq)]
enum Why {
    /// It was named: if it is not text, that is a mistake.
    Named,
    /// It was in a directory or matched a pattern.
    Found,
}

impl Search<'_> {
    fn name(&mut self, name: &Path) -> Result<()> {
        if name == Path::new("-") {
            return self.standard_input();
        }
        let before = (self.found.documents.len(), self.found.skipped.len());
        let pattern = name.to_str().filter(|name| name.contains(['*', '?', '[']));
        match (fs::metadata(name), pattern) {
            (Ok(metadata), _) if metadata.is_dir() => self.directory(name)?,
            (Ok(_), _) => self.file(name, Why::Named)?,
            (Err(_), Some(pattern)) => self.pattern(pattern)?,
            (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::invalid(name.display(), "no such file or directory"));
            }
            (Err(error), None) => return Err(Error::io(name)(error)),
        }
        let skipped = &self.found.skipped[before.1..];
        let is_tolerated = skipped
            .iter()
            .any(|file| matches!(file.reason, Reason::Repeated | Reason::NotUtf8 { .. }));
        let fine = self.found.documents.len() > before.0 || is_tolerated;
        let first = skipped.first().map_or(String::new(), |first| {
            let (path, reason) = (first.path.display(), first.reason);
            format!("; of {} skipped, the first, {path}, is {reason}", skipped.len())
        });
        ensure!(fine, name.display(), "no text files found{first}");
        Ok(())
    }

    fn finish(self) -> Result<Sources> {
        let is_invalid = |file: &&Skipped| matches!(file.reason, Reason::NotUtf8 { .. });
        if self.found.is_empty()
            && let Some(Skipped { path, reason }) = self.found.skipped.iter().find(is_invalid)
        {
            return Err(Error::invalid(path.display(), reason));
        }
        self.spool.map_or(Ok(()), Spool::finish)?;
        let read = self.read.get();
        self.found.report(Stage::Reading, read, read);
        Ok(self.found)
    }

    /// Whether a real path is left out.
    fn is_output(&self, path: &Path) -> bool {
        self.outside.as_ref().is_some_and(|outside| path.starts_with(outside))
    }

    fn skip(&mut self, path: &Path, reason: Reason) {
        self.found.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// Skip a file, unless that is an error.
    fn reject(&mut self, path: &Path, why: Why, (reason, error): Rejected) -> Result<()> {
        let is_error = match reason {
            Reason::NotUtf8 { .. } => self.options.encoding == Encoding::Strict,
            Reason::Repeated => false,
            _ => why == Why::Named,
        };
        if is_error {
            return Err(error);
        }
        self.skip(path, reason);
        Ok(())
    }

    fn file(&mut self, path: &Path, why: Why) -> Result<()> {
        let rejected = |reason| {
            (reason, Error::invalid(path.display(), format!("{reason}, expected UTF-8 text")))
        };
        if !fs::metadata(path).map_err(Error::io(path))?.is_file() {
            return self.reject(path, why, rejected(Reason::Special));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let identity = fs::canonicalize(path).map_err(Error::io(path))?;
        if self.is_output(&identity) {
            return self.reject(path, why, rejected(Reason::Output));
        }
        if !self.seen.insert(identity) {
            return self.reject(path, why, rejected(Reason::Repeated));
        }
        let format = Format::of(path);
        let is_parquet = format.content == Content::Parquet;
        if is_parquet && format.compression == Compression::None {
            return self.add(path, format, why, |text, sink| text.parquet(file, sink));
        }
        let reader = self.counted(file);
        if !format.is_plain() {
            return self.add(path, format, why, |text, sink| text.read(reader, sink));
        }
        // It is read where it is, and here only checked.
        let text_file = TextFile { name: path, format, text_key: "" };
        match text_file.read(reader, &mut |_| Ok(()))? {
            Some(rejected) => self.reject(path, why, rejected),
            None => {
                self.found.documents.push(Document::File(path.to_owned()));
                Ok(())
            }
        }
    }

    fn standard_input(&mut self) -> Result<()> {
        let name = Path::new("standard input");
        let reader = self.counted(std::io::stdin());
        let (format, reader) = Format::of_stream(reader).map_err(Error::io(name))?;
        self.add(name, format, Why::Named, |text, sink| text.read(reader, sink))
    }

    /// Bytes that are counted as they are read.
    fn counted(&self, reader: impl Read + 'static) -> Box<dyn Read> {
        let on_progress = self.options.on_progress.clone();
        Box::new(Counted { reader, read: self.read.clone(), on_progress })
    }

    /// Add the documents that are read from a file that is not plain text.
    fn add(
        &mut self,
        path: &Path,
        format: Format,
        why: Why,
        read: impl FnOnce(&TextFile, Sink) -> Result<Option<Rejected>>,
    ) -> Result<()> {
        let spool = match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(Spool::new(&self.options.temporary)?),
        };
        let (name, documents) = (Arc::from(path), &mut self.found.documents);
        let (before, begin) = (documents.len(), spool.len());
        let mut offset = begin;
        let file = TextFile { name: path, format, text_key: &self.options.text_key };
        let rejected = read(&file, &mut |piece| {
            match piece {
                Piece::Text(text) => spool.push(text)?,
                Piece::End => {
                    documents.push(spool.document(&name, offset));
                    offset = spool.len();
                }
            }
            Ok(())
        })?;
        let Some(rejected) = rejected else { return Ok(()) };
        documents.truncate(before);
        spool.truncate(begin)?;
        self.reject(path, why, rejected)
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
                self.file(&path, Why::Found)?;
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
                self.file(&path, Why::Found)?;
            }
        }
        Ok(())
    }
}

/// Reports how much is read.
struct Counted<R> {
    reader: R,
    read: Rc<Cell<u64>>,
    on_progress: OnProgress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        let (before, after) = (self.read.get(), self.read.get() + read as u64);
        self.read.set(after);
        if before / REPORT < after / REPORT {
            self.on_progress.report(Stage::Reading, after, 0);
        }
        Ok(read)
    }
}
