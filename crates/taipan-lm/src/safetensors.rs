//! The file format [`taipan::safetensors`], in this crate's file system.

use std::path::Path;

#[cfg(not(target_family = "wasm"))]
pub(crate) use taipan::safetensors::write_values;
pub(crate) use taipan::safetensors::write_with;
pub use taipan::safetensors::{Safetensors, Stored, View, write};

use crate::{Error, Result};

/// Map a file into memory: what is not looked at is not read.
pub fn open(path: &Path) -> Result<Safetensors<Map>> {
    Ok(Safetensors::parse(path.display().to_string(), map(path)?)?)
}

/// The bytes of a file.
#[cfg(not(target_family = "wasm"))]
pub type Map = memmap2::Mmap;
/// The bytes of a file.
#[cfg(target_family = "wasm")]
pub type Map = Vec<u8>;

/// The bytes of a file, which is in memory.
#[cfg(target_family = "wasm")]
pub(crate) fn map(path: &Path) -> Result<Map> {
    crate::filesystem::read(path).map_err(Error::io(path))
}

/// Map a file into memory. What is not a file, as a pipe that nobody writes to, is an error.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn map(path: &Path) -> Result<Map> {
    let is_file = std::fs::metadata(path).map_err(Error::io(path))?.is_file();
    crate::error::ensure!(is_file, path.display(), "not a file");
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    // SAFETY: the bytes may change under a map if another program writes to the file. This
    // crate replaces files, never writes into them; that others do the same is what every
    // reader of mapped files relies on.
    unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))
}
