//! `warnings.log`: problems that do not stop the training.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::lock::Lock;

const FILE: &str = "warnings.log";

/// The file in the directory of a run; the first warning creates it.
pub struct Warnings {
    path: PathBuf,
    known: HashSet<String>,
}

impl Warnings {
    pub fn new(directory: &Path) -> Warnings {
        Warnings { path: directory.join(FILE), known: HashSet::new() }
    }

    /// Add a line, unless it was added before or the directory is no longer the locked one; returns
    /// whether it is new.
    pub fn push(&mut self, warning: &str, lock: &Lock) -> bool {
        let new = self.known.insert(warning.to_owned());
        if new && lock.check().is_ok() {
            // Where even this cannot be written, there is nobody left to tell.
            let file = File::options().create(true).append(true).open(&self.path);
            let _ = file.and_then(|mut file| file.write_all(format!("{warning}\n").as_bytes()));
        }
        new
    }
}
