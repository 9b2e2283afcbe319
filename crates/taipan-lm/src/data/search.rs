//! Files with text: by name, in directories, and by patterns.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::sources::Document;
use super::{Reason, Skipped, Sources};
use crate::error::ensure;
use crate::{Error, Result};

/// How much of a file is looked at to tell text from other data.
const HEAD: u64 = 8 << 10;

impl Sources {
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
