//! Atomic writes of files and directories: whenever the program or the machine stops, they are
//! complete or absent.
//!
//! They are written under a temporary name beside their destination, flushed to the disk, and
//! renamed. What a killed program leaves has `.tmp-` in its name: [`remove_unfinished`] removes it.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use crate::checksum::Checksum;
use crate::error::ensure;
use crate::filesystem::{self as fs, File};
use crate::{Error, Result};

const MARK: &str = ".tmp-";

/// Atomically replace the file at `path` by one with these bytes: whenever the program or the
/// machine stops, the old or the new file is there, complete.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("taipan-write-file-{}", std::process::id()));
/// taipan_lm::write_file(&path, b"steps = 100\n")?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"steps = 100\n");
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), taipan_lm::Error>(())
/// ```
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_file(path, |out| out.write(bytes))
}

/// Remove the temporary files that killed programs left in `directory`, for names that are `ours`.
/// Nobody may be writing them meanwhile.
pub fn remove_unfinished(directory: &Path, ours: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(Error::io(directory))? {
        let path = entry.map_err(Error::io(directory))?.path();
        let name = path.file_name().and_then(|name| final_name(name.to_str()?));
        if name.is_some_and(&ours) {
            remove(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

/// Whether a name is that of a temporary file, which [`remove_unfinished`] removes.
pub fn is_unfinished(name: &str) -> bool {
    final_name(name).is_some()
}

/// A file being written; its errors name the path it will have.
pub(crate) struct Output {
    destination: PathBuf,
    out: BufWriter<File>,
    hasher: XxHash3_128,
}

impl Output {
    fn create(path: &Path, destination: PathBuf) -> Result<Output> {
        let file = File::create(path).map_err(Error::io(&destination))?;
        let out = BufWriter::with_capacity(1 << 20, file);
        Ok(Output { destination, out, hasher: XxHash3_128::new() })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.write(bytes);
        self.out.write_all(bytes).map_err(Error::io(&self.destination))
    }

    /// Flush it to the disk.
    pub(crate) fn sync(self) -> Result<Checksum> {
        let Output { destination, mut out, hasher } = self;
        let flushed = out.flush().and_then(|()| out.get_ref().sync_all());
        // What could not be flushed is not tried again when it is dropped.
        let (_file, _rest) = out.into_parts();
        flushed.map_err(Error::io(&destination))?;
        Ok(hasher.into())
    }
}

/// Replace the file at `path` by what `fill` writes, or leave it as it is.
pub(crate) fn replace_file(
    path: &Path,
    fill: impl FnOnce(&mut Output) -> Result<()>,
) -> Result<()> {
    let mut draft = Draft::create(path)?;
    fill(&mut draft.out)?;
    draft.sync()?.1.publish()
}

/// A file being written beside its destination.
pub(crate) struct Draft {
    temporary: Temporary,
    pub(crate) out: Output,
}

impl Draft {
    pub(crate) fn create(destination: &Path) -> Result<Draft> {
        let temporary = Temporary::new(destination)?;
        let out = Output::create(&temporary.path, destination.to_owned())?;
        Ok(Draft { temporary, out })
    }

    /// Flush it to the disk, where it does not yet have its name.
    pub(crate) fn sync(self) -> Result<(Checksum, Temporary)> {
        Ok((self.out.sync()?, self.temporary))
    }
}

/// Atomically remove a directory: whenever this is stopped, it is complete or not under its name.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    let temporary = Temporary::new(path)?;
    let removed = fs::rename(path, &temporary.path)
        .and_then(|()| sync_directory(parent(path)))
        .and_then(|()| remove(&temporary.path));
    removed.map_err(Error::io(path))
}

/// A temporary file or directory. Unless it is [published](Temporary::publish), it is removed.
pub(crate) struct Temporary {
    path: PathBuf,
    destination: PathBuf,
}

impl Temporary {
    /// Its name is of this process, since two may write to one directory.
    fn new(destination: &Path) -> Result<Temporary> {
        let Some(name) = destination.file_name() else {
            let why = "not the name of a file or directory";
            return Err(Error::invalid(destination.display(), why));
        };
        let mut name = name.to_owned();
        name.push(format!("{MARK}{}", fs::process_id()));
        let destination = destination.to_owned();
        Ok(Temporary { path: destination.with_file_name(name), destination })
    }

    /// Start the directory that will be at `destination`, which must not exist.
    pub(crate) fn directory(destination: &Path) -> Result<Temporary> {
        let is_new = fs::symlink_metadata(destination).is_err();
        ensure!(is_new, destination.display(), "exists already");
        let temporary = Temporary::new(destination)?;
        fs::create_dir(&temporary.path).map_err(Error::io(destination))?;
        Ok(temporary)
    }

    /// Start a file of the directory.
    pub(crate) fn create(&self, name: &str) -> Result<Output> {
        Output::create(&self.path.join(name), self.destination.join(name))
    }

    /// Write a file of the directory.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn file(
        &self,
        name: &str,
        fill: impl FnOnce(&mut Output) -> Result<()>,
    ) -> Result<()> {
        let mut out = self.create(name)?;
        fill(&mut out)?;
        out.sync().map(drop)
    }

    /// Give it its name.
    pub(crate) fn publish(self) -> Result<()> {
        if fs::is_dir(&self.path) {
            sync_directory(&self.path).map_err(Error::io(&self.destination))?;
        }
        fs::rename(&self.path, &self.destination).map_err(Error::io(&self.destination))?;
        let parent = parent(&self.destination);
        sync_directory(parent).map_err(Error::io(parent))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename nothing is there. An error that is being returned says more than that of
        // this removal, and what stays is removed at the next start.
        let _ = remove(&self.path);
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// The final name of a temporary one.
fn final_name(name: &str) -> Option<&str> {
    let (name, id) = name.rsplit_once(MARK)?;
    id.parse::<u32>().is_ok().then_some(name)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Flush the names in a directory to the disk, where the system has a call for that.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
