//! Files and directories that are there whole or not at all, whenever the program or the machine stops.
//!
//! They are written beside their place under a temporary name, flushed to the disk, and renamed. What a killed
//! program leaves has `.tmp-` in its name: [`sweep`] removes it.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::checksum::{Checksum, Hasher};
use crate::{Error, Result};

const MARK: &str = ".tmp-";

/// Replace the file at `path` by one with these bytes, or leave it as it is: whenever the program or the machine
/// stops, one of the two is there, whole.
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

/// Remove what killed programs left unfinished in `directory` of the files with these names. Nobody may be
/// writing them meanwhile.
pub fn remove_unfinished(directory: &Path, names: &[&str]) -> Result<()> {
    sweep(directory, |name| names.contains(&name))
}

/// Whether a name is that of something unfinished, for [`remove_unfinished`] to remove.
pub fn is_unfinished(name: &str) -> bool {
    finished_name(name).is_some()
}

/// A file being written; its errors name the path it will have.
pub(crate) struct Output {
    place: PathBuf,
    out: BufWriter<File>,
    hasher: Hasher,
}

impl Output {
    fn create(path: &Path, place: PathBuf) -> Result<Output> {
        let file = File::create(path).map_err(Error::io(&place))?;
        Ok(Output { place, out: BufWriter::with_capacity(1 << 20, file), hasher: Hasher::new() })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.write(bytes);
        self.out.write_all(bytes).map_err(Error::io(&self.place))
    }

    /// Have the system put it on the disk.
    fn sync(self) -> Result<Checksum> {
        let Output { place, mut out, hasher } = self;
        let flushed = out.flush().and_then(|()| out.get_ref().sync_all());
        // What could not be flushed is not tried again when it is dropped.
        let (_file, _rest) = out.into_parts();
        flushed.map_err(Error::io(&place))?;
        Ok(hasher.finish())
    }
}

/// Replace the file at `path` by what `fill` writes, or leave it as it is.
pub(crate) fn replace_file(
    path: &Path,
    fill: impl FnOnce(&mut Output) -> Result<()>,
) -> Result<()> {
    let mut draft = Draft::create(path)?;
    fill(draft.output())?;
    draft.sync()?.publish()
}

/// A file being written beside its place. Unless it is [published](Synced::publish), it is removed.
pub(crate) struct Draft {
    temporary: Temporary,
    out: Output,
}

impl Draft {
    pub(crate) fn create(place: &Path) -> Result<Draft> {
        let temporary = Temporary(beside(place)?);
        let out = Output::create(&temporary.0, place.to_owned())?;
        Ok(Draft { temporary, out })
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.out
    }

    pub(crate) fn sync(self) -> Result<Synced> {
        let Draft { temporary, out } = self;
        let place = out.place.clone();
        Ok(Synced { checksum: out.sync()?, temporary, place })
    }
}

/// A file on the disk that is not yet in its place.
pub(crate) struct Synced {
    pub(crate) checksum: Checksum,
    temporary: Temporary,
    place: PathBuf,
}

impl Synced {
    pub(crate) fn publish(self) -> Result<()> {
        self.temporary.rename(&self.place)
    }
}

/// A directory being written. Unless it is [put in its place](NewDirectory::commit), it is removed.
pub(crate) struct NewDirectory {
    temporary: Temporary,
    place: PathBuf,
}

impl NewDirectory {
    /// Begin the directory that will be at `place`, where nothing may be.
    pub(crate) fn create(place: &Path) -> Result<NewDirectory> {
        if place.symlink_metadata().is_ok() {
            return Err(Error::invalid(place.display().to_string(), "is there already"));
        }
        let temporary = Temporary(beside(place)?);
        fs::create_dir(&temporary.0).map_err(Error::io(place))?;
        Ok(NewDirectory { temporary, place: place.to_owned() })
    }

    /// Write one of its files.
    pub(crate) fn file(
        &self,
        name: &str,
        fill: impl FnOnce(&mut Output) -> Result<()>,
    ) -> Result<Checksum> {
        let mut out = Output::create(&self.temporary.0.join(name), self.place.join(name))?;
        fill(&mut out)?;
        out.sync()
    }

    /// Put it in its place.
    pub(crate) fn commit(self) -> Result<()> {
        sync_directory(&self.temporary.0).map_err(Error::io(&self.place))?;
        self.temporary.rename(&self.place)
    }
}

/// Remove what a killed program left unfinished in `directory`, of names that are `ours`.
pub(crate) fn sweep(directory: &Path, ours: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(Error::io(directory))? {
        let path = entry.map_err(Error::io(directory))?.path();
        let name = path.file_name().and_then(|name| finished_name(name.to_str()?));
        if name.is_some_and(&ours) {
            remove(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

/// Remove a directory so that, whenever this is stopped, it is there whole or not under its name.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    let temporary = beside(path)?;
    let removed = fs::rename(path, &temporary)
        .and_then(|()| sync_directory(parent(path)))
        .and_then(|()| remove(&temporary));
    removed.map_err(Error::io(path))
}

/// A temporary name, and what is there until it is renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn rename(self, place: &Path) -> Result<()> {
        fs::rename(&self.0, place).map_err(Error::io(place))?;
        let parent = parent(place);
        sync_directory(parent).map_err(Error::io(parent))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename nothing is there. An error that is on its way says more than that of this removal, and
        // what stays is swept away at the next start.
        let _ = remove(&self.0);
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata()?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

/// The temporary name of a path: of this process, since two may write to one directory.
fn beside(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(path.display().to_string(), "no name of a file or directory"));
    };
    let mut name = name.to_owned();
    name.push(format!("{MARK}{}", std::process::id()));
    Ok(path.with_file_name(name))
}

/// The name that something with this temporary name would have got.
fn finished_name(name: &str) -> Option<&str> {
    let (name, id) = name.rsplit_once(MARK)?;
    id.parse::<u32>().is_ok().then_some(name)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Make the names in a directory last, where the system has a call for that.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
