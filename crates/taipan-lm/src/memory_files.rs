//! A file system in memory, with those functions of `std::fs` that this crate uses: they succeed
//! and fail as there. It is one per process, as a file system is; a browser's tab has a few
//! megabytes in it.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is at each path. The root is always there.
static ENTRIES: Mutex<BTreeMap<PathBuf, Entry>> = Mutex::new(BTreeMap::new());

#[derive(Clone)]
enum Entry {
    Directory,
    /// Shared with those who have opened it, whatever its name becomes.
    File(Arc<Mutex<Vec<u8>>>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn missing() -> Error {
    Error::new(ErrorKind::NotFound, "no such file or directory")
}

/// A path without what does not matter in it.
fn normal(path: impl AsRef<Path>) -> PathBuf {
    use std::path::Component;
    path.as_ref().components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

type Entries = BTreeMap<PathBuf, Entry>;

fn entry(entries: &Entries, path: &Path) -> Result<Entry> {
    match path == Path::new("") {
        true => Ok(Entry::Directory),
        false => entries.get(path).cloned().ok_or_else(missing),
    }
}

fn bytes(path: impl AsRef<Path>) -> Result<Arc<Mutex<Vec<u8>>>> {
    match entry(&lock(&ENTRIES), &normal(path))? {
        Entry::File(bytes) => Ok(bytes),
        Entry::Directory => Err(Error::new(ErrorKind::IsADirectory, "is a directory")),
    }
}

/// What is below a directory, at any depth.
fn below(entries: &Entries, path: &Path) -> Vec<PathBuf> {
    let after = (Bound::Excluded(path.to_owned()), Bound::Unbounded);
    let all = entries.range(after).map(|(path, _)| path);
    all.take_while(|found| found.starts_with(path)).cloned().collect()
}

/// An error unless the directory that a path is in is there.
fn ensure_parent(entries: &Entries, path: &Path) -> Result<()> {
    match entry(entries, path.parent().ok_or_else(missing)?)? {
        Entry::Directory => Ok(()),
        Entry::File(_) => Err(Error::new(ErrorKind::NotADirectory, "not a directory")),
    }
}

/// `std::fs::File`
#[derive(Debug)]
pub struct File {
    bytes: Arc<Mutex<Vec<u8>>>,
    position: usize,
}

impl File {
    /// An empty file, in place of one that is there.
    pub fn create(path: impl AsRef<Path>) -> Result<File> {
        let path = normal(path);
        let mut entries = lock(&ENTRIES);
        ensure_parent(&entries, &path)?;
        if let Ok(Entry::Directory) = entry(&entries, &path) {
            return Err(Error::new(ErrorKind::IsADirectory, "is a directory"));
        }
        let bytes = Arc::default();
        entries.insert(path, Entry::File(Arc::clone(&bytes)));
        Ok(File { bytes, position: 0 })
    }

    /// A file to read.
    pub fn open(path: impl AsRef<Path>) -> Result<File> {
        Ok(File { bytes: bytes(path)?, position: 0 })
    }

    /// Its length.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(Metadata { length: Some(lock(&self.bytes).len() as u64) })
    }

    /// There is no disk that it could be flushed to.
    pub fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl Read for File {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let bytes = lock(&self.bytes);
        let read = (&bytes[self.position.min(bytes.len())..]).read(out)?;
        self.position += read;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> Result<usize> {
        let mut bytes = lock(&self.bytes);
        let (end, length) = (self.position + data.len(), bytes.len());
        // A file can be too large for memory, which is no reason to end the program.
        let more = end.saturating_sub(length);
        bytes.try_reserve(more).map_err(|_| Error::from(ErrorKind::OutOfMemory))?;
        bytes.resize(length.max(end), 0);
        bytes[self.position..end].copy_from_slice(data);
        self.position = end;
        Ok(data.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(at) => (0, at as i64),
            SeekFrom::End(offset) => (lock(&self.bytes).len(), offset),
            SeekFrom::Current(offset) => (self.position, offset),
        };
        let position = base.checked_add_signed(offset as isize);
        self.position = position.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        Ok(self.position as u64)
    }
}

/// `std::fs::Metadata`
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// None of a directory.
    length: Option<u64>,
}

#[allow(clippy::len_without_is_empty)] // as in `std::fs`
impl Metadata {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.length.is_none()
    }

    /// Whether it is a file.
    pub fn is_file(&self) -> bool {
        self.length.is_some()
    }

    /// The bytes of a file.
    pub fn len(&self) -> u64 {
        self.length.unwrap_or(0)
    }
}

/// `std::fs::DirEntry`
#[derive(Debug)]
pub struct DirEntry(PathBuf);

impl DirEntry {
    /// The path of the directory, and behind it the name.
    pub fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

/// `std::fs::metadata`
pub fn metadata(path: impl AsRef<Path>) -> Result<Metadata> {
    Ok(match entry(&lock(&ENTRIES), &normal(path))? {
        Entry::Directory => Metadata { length: None },
        Entry::File(bytes) => Metadata { length: Some(lock(&bytes).len() as u64) },
    })
}

/// `std::fs::symlink_metadata`; there are no links.
pub fn symlink_metadata(path: impl AsRef<Path>) -> Result<Metadata> {
    metadata(path)
}

/// `std::fs::read`
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    Ok(lock(&*bytes(path)?).clone())
}

/// `std::fs::read_to_string`
pub fn read_to_string(path: impl AsRef<Path>) -> Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// `std::fs::write`
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
    File::create(path)?.write_all(contents.as_ref())
}

/// `std::fs::read_dir`
pub fn read_dir(path: impl AsRef<Path>) -> Result<impl Iterator<Item = Result<DirEntry>>> {
    let (given, path) = (path.as_ref().to_owned(), normal(path));
    let entries = lock(&ENTRIES);
    if let Entry::File(_) = entry(&entries, &path)? {
        return Err(Error::new(ErrorKind::NotADirectory, "not a directory"));
    }
    let mut found = below(&entries, &path);
    found.retain(|found| found.parent() == Some(&path));
    Ok(found
        .into_iter()
        .map(move |found| Ok(DirEntry(given.join(found.file_name().expect("below a directory"))))))
}

/// `std::fs::create_dir`
pub fn create_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = normal(path);
    let mut entries = lock(&ENTRIES);
    ensure_parent(&entries, &path)?;
    if entry(&entries, &path).is_ok() {
        return Err(Error::new(ErrorKind::AlreadyExists, "exists already"));
    }
    entries.insert(path, Entry::Directory);
    Ok(())
}

/// `std::fs::create_dir_all`
pub fn create_dir_all(path: impl AsRef<Path>) -> Result<()> {
    let path = normal(path);
    let mut missing: Vec<&Path> =
        path.ancestors().take_while(|path| !metadata(path).is_ok_and(|m| m.is_dir())).collect();
    missing.reverse();
    missing.into_iter().try_for_each(create_dir)
}

/// `std::fs::rename`
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (normal(from), normal(to));
    let mut entries = lock(&ENTRIES);
    let moved = entry(&entries, &from)?;
    ensure_parent(&entries, &to)?;
    let fits = match (&moved, entry(&entries, &to)) {
        (_, Err(_)) | (Entry::File(_), Ok(Entry::File(_))) => true,
        (Entry::Directory, Ok(Entry::Directory)) => below(&entries, &to).is_empty(),
        _ => false,
    };
    if !fits || to.starts_with(&from) && to != from {
        return Err(Error::new(ErrorKind::InvalidInput, "cannot be replaced by a rename"));
    }
    let all = below(&entries, &from);
    for path in all.into_iter().chain([from.clone()]) {
        let behind = path.strip_prefix(&from).expect("it begins so");
        let new = if behind == Path::new("") { to.clone() } else { to.join(behind) };
        let entry = entries.remove(&path).expect("it was found");
        entries.insert(new, entry);
    }
    Ok(())
}

/// `std::fs::remove_file`
pub fn remove_file(path: impl AsRef<Path>) -> Result<()> {
    bytes(&path)?;
    lock(&ENTRIES).remove(&normal(path));
    Ok(())
}

/// `std::fs::remove_dir_all`
pub fn remove_dir_all(path: impl AsRef<Path>) -> Result<()> {
    let path = normal(path);
    let mut entries = lock(&ENTRIES);
    if let Entry::File(_) = entry(&entries, &path)? {
        return Err(Error::new(ErrorKind::NotADirectory, "not a directory"));
    }
    for below in below(&entries, &path) {
        entries.remove(&below);
    }
    entries.remove(&path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every function below answers, in memory and on the disk.
    macro_rules! answers {
        ($fs:path, $root:expr) => {{
            use $fs as fs;
            let root: PathBuf = $root;
            let kind = |result: Result<()>| result.err().map(|error| error.kind());
            let names = |path: &Path| {
                let mut names: Vec<_> = fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path().strip_prefix(&root).unwrap().to_owned())
                    .collect();
                names.sort();
                names
            };
            fs::create_dir_all(&root).unwrap();
            let mut found = vec![
                kind(fs::write(root.join("no/file"), b"x")),
                kind(fs::create_dir(root.join("a"))),
                kind(fs::create_dir(root.join("a"))),
                kind(fs::create_dir_all(root.join("a/b/c"))),
                kind(fs::write(root.join("a/file"), b"one two")),
                kind(fs::write(root.join("a/file/below"), b"x")),
                kind(fs::create_dir(root.join("a/file"))),
                kind(fs::read(root.join("a")).map(drop)),
                kind(fs::read(root.join("none")).map(drop)),
                kind(fs::remove_file(root.join("none"))),
                kind(fs::read_dir(root.join("a/file")).map(drop)),
                kind(fs::rename(root.join("none"), root.join("b"))),
            ];

            let mut open = fs::File::open(root.join("a/file")).unwrap();
            found.push(kind(fs::rename(root.join("a"), root.join("b"))));
            found.push(kind(fs::write(root.join("b/new"), b"three")));
            found.push(kind(fs::rename(root.join("b/new"), root.join("b/file"))));
            let (mut before, mut part) = (String::new(), [0; 3]);
            open.read_to_string(&mut before).unwrap();
            open.seek(SeekFrom::Start(4)).unwrap();
            open.read_exact(&mut part).unwrap();
            found.push(kind(open.read_exact(&mut part)));
            let texts = [before, fs::read_to_string(root.join("b/file")).unwrap()];
            let lengths =
                [open.metadata().unwrap().len(), fs::metadata(root.join("b/file")).unwrap().len()];
            let listed = [names(&root), names(&root.join("b"))];
            found.push(kind(fs::remove_dir_all(root.join("b"))));
            found.push(kind(fs::symlink_metadata(root.join("b/b/c")).map(drop)));
            (found, texts, part, lengths, listed, names(&root))
        }};
    }

    #[test]
    fn it_answers_as_the_machines_file_system() {
        let machine = tempfile::tempdir().unwrap();
        let on_disk = answers!(std::fs, machine.path().join("root"));
        assert_eq!(answers!(super, PathBuf::from("/answers/root")), on_disk);
    }

    #[test]
    fn directories_are_not_replaced() {
        create_dir_all("replace/a/full").unwrap();
        create_dir_all("replace/b").unwrap();
        write("replace/file", b"x").unwrap();
        assert!(rename("replace/b", "replace/a").is_err(), "it is not empty");
        assert!(rename("replace/file", "replace/b").is_err());
        assert!(rename("replace/a", "replace/a/full/a").is_err(), "below itself");
        assert!(metadata("replace/a/full").unwrap().is_dir());
    }
}
