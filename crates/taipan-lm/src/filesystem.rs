//! Where files are: on the machine's file system, or, on the web, in memory.
//!
//! Everything in this crate that reads or writes files does so through these functions, which are
//! `std::fs`. In a browser, where that has nothing, they are a file system in memory with the same
//! functions: a run is trained, saved and resumed there by the same code and in the same files, and
//! the page keeps them where it can.

#[cfg(not(target_family = "wasm"))]
pub use std::fs::*;

#[cfg(target_family = "wasm")]
pub use crate::memory_files::*;

use std::path::Path;

/// A number that tells the temporary files of processes apart.
pub(crate) fn process_id() -> u32 {
    if cfg!(target_family = "wasm") { 0 } else { std::process::id() }
}

/// Whether there is a directory.
pub(crate) fn is_dir(path: &Path) -> bool {
    metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Whether anything is there that can be looked at.
pub(crate) fn is_there(path: &Path) -> bool {
    metadata(path).is_ok()
}
