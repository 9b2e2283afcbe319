//! `--overwrite`: the files of a run are removed, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use taipan_lm::data::is_cache_file;
use taipan_lm::{Error, checkpoint_step, is_checkpoint_file, is_model_file, is_unfinished};

use super::start::DATA;
use super::{curve, lock, metrics, run, settings_file, tensorboard};
use crate::{Failure, usage};

/// What a run writes to its directory, besides event files, data and checkpoints.
const FILES: [&str; 6] =
    [metrics::FILE, metrics::TIMINGS, curve::FILE, run::WARNINGS, settings_file::FILE, lock::FILE];

/// An error if there is anything but a run in a directory.
pub fn check(out: &Path) -> Result<(), Failure> {
    entries(out).map(drop)
}

/// Remove the run in a directory, but for its lock. Nothing is removed if [`check`] fails.
pub fn remove(out: &Path) -> Result<(), Failure> {
    let mut entries = entries(out)?;
    // The last: without it, the rest is no run that could be overwritten.
    entries.sort_by_key(|path| path.ends_with(settings_file::FILE));
    for path in entries.iter().filter(|path| !path.ends_with(lock::FILE)) {
        let is_directory = path.is_dir();
        for file in if is_directory { list(path)? } else { Vec::new() } {
            fs::remove_file(&file).map_err(Error::io(&file))?;
        }
        let removed = if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) };
        removed.map_err(Error::io(path))?;
    }
    Ok(())
}

/// The files and directories of a run; an error that names what is not one of them.
fn entries(out: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut entries = list(out)?;
    // Temporary files are removed by those who write them.
    entries.retain(|path| !is_unfinished(name(path)));
    for entry in &entries {
        let inside = match is_file(entry)? {
            true => Vec::new(),
            false => list(entry)?,
        };
        let mut foreign = inside.iter().filter(|path| !is_inside(name(entry), name(path)));
        let foreign = match foreign.next() {
            None if is_of_a_run(entry)? => continue,
            None => entry,
            Some(foreign) => foreign,
        };
        let why = "is not a file of a run; nothing was removed";
        return usage(format!("--overwrite: {} {why}", foreign.display()));
    }
    Ok(entries)
}

fn is_of_a_run(path: &Path) -> Result<bool, Failure> {
    let name = name(path);
    Ok(match is_file(path)? {
        true => FILES.contains(&name) || is_model_file(name) || tensorboard::is_events(name),
        false => name == DATA || checkpoint_step(name).is_some(),
    })
}

/// Whether a file in a directory of a run is the run's own.
fn is_inside(directory: &str, file: &str) -> bool {
    let is_saved = checkpoint_step(directory).is_some() && is_checkpoint_file(file);
    is_unfinished(file) || is_saved || (directory == DATA && is_cache_file(file))
}

/// Whether it is a file, or a link to whatever, but no directory.
fn is_file(path: &Path) -> Result<bool, Failure> {
    Ok(!fs::symlink_metadata(path).map_err(Error::io(path))?.is_dir())
}

/// The name of a file; none of a run's is empty.
fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(directory).map_err(Error::io(directory))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    Ok(paths.map_err(Error::io(directory))?)
}
