//! One program at a time in the directory of a run.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use taipan_lm::Error;

use crate::Failure;

/// The file that is locked.
pub const FILE: &str = ".lock";

/// Excludes other programs from a directory while it lives.
pub struct Lock {
    directory: PathBuf,
    file: File,
}

impl Lock {
    /// Lock a directory, which must exist.
    pub fn take(directory: &Path) -> Result<Lock, Failure> {
        let path = directory.join(FILE);
        loop {
            let file = File::options().create(true).append(true).open(&path);
            if let Some(lock) = Lock::claim(directory, file.map_err(Error::io(&path))?)? {
                return Ok(lock);
            }
        }
    }

    /// Lock the open file; none if it is no longer the one in the directory. The program that held
    /// the lock may have removed it, and another may have made a new one.
    fn claim(directory: &Path, file: File) -> Result<Option<Lock>, Failure> {
        let shown = directory.display();
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!("{shown}: another taipan train is at work in it").into());
            }
            Err(TryLockError::Error(error)) => {
                let why = "the file system cannot lock it, so that two programs could write here";
                return Err(format!("{shown}/{FILE}: {error}; {why}").into());
            }
        }
        let lock = Lock { directory: directory.to_owned(), file };
        Ok(lock.is_ours().then_some(lock))
    }

    /// An error if the directory is no longer the one that was locked: it was removed, moved or
    /// replaced.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_ours() {
            return Ok(());
        }
        let directory = self.directory.display();
        let why = "was removed, moved or replaced while the run was at work in it";
        Err(format!("{directory}: {why}; nothing more is written there").into())
    }

    #[cfg(unix)]
    fn is_ours(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let named = fs::metadata(self.directory.join(FILE)).map(identity).ok();
        named.is_some() && named == self.file.metadata().map(identity).ok()
    }

    /// Elsewhere a file that is open cannot be removed.
    #[cfg(not(unix))]
    fn is_ours(&self) -> bool {
        self.file.metadata().is_ok() && self.directory.join(FILE).exists()
    }
}

/// A warning about the locks of a directory's file system: some network file systems are mounted so
/// that a lock is seen on one machine only.
pub fn warning(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let kind = taipan_lm::local_locks(&directory)?;
    let (directory, why) = (directory.display(), "does not share its locks with other machines");
    Some(format!("{directory} is on {kind}, which {why}: run one taipan train at a time in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn the_lock_of_a_file_that_was_removed_is_no_lock() {
        let directory = std::env::temp_dir().join(format!("taipan-lock-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(FILE);
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let (before, lock) = (open(), Lock::take(&directory).unwrap());
        let error = Lock::claim(&directory, open()).err().unwrap().to_string();
        assert!(error.ends_with(": another taipan train is at work in it"), "{error}");
        lock.check().unwrap();
        fs::remove_file(&path).unwrap();
        let error = lock.check().unwrap_err().to_string();
        assert!(error.contains(" was removed, moved or replaced"), "{error}");
        drop(lock);
        assert!(Lock::claim(&directory, before).unwrap().is_none());
        Lock::take(&directory).unwrap().check().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }
}
