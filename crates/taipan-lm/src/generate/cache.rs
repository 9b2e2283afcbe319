//! States of prompts, on disk.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_128;

use super::{CHUNK, Generation, Snapshot};
use crate::atomic::is_unfinished;
use crate::{Error, LanguageModel, Result};

const SUFFIX: &str = ".state.safetensors";

/// How old the file of another program is that was surely killed while it wrote it.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Held while a file is written: the temporary names of one program are not told apart.
static WRITING: Mutex<()> = Mutex::new(());

/// A directory with states of prompts: those after every 256 tokens, and at the end. A prompt that
/// begins as an earlier one did continues from there, and gives the same bits as without.
///
/// The files that were not used for longest are removed when they exceed a size. Several programs
/// may use one directory at once: files are written under other names and renamed, and one that
/// disappears is as good as one that was never there.
pub struct PromptCache {
    directory: PathBuf,
    max_bytes: u64,
    /// Of the model.
    fingerprint: String,
}

/// The result of [`PromptCache::find`].
#[derive(Debug)]
pub struct CacheHit {
    /// How many of the tokens are processed, and where that leads.
    pub found: Option<(usize, Snapshot)>,
    /// Files that could not be read. They are removed.
    pub problems: Vec<Error>,
}

impl PromptCache {
    /// A cache of the model with this fingerprint, in a directory that is created if need be.
    pub fn open(directory: &Path, max_bytes: u64, fingerprint: &str) -> Result<PromptCache> {
        fs::create_dir_all(directory).map_err(Error::io(directory))?;
        let (directory, fingerprint) = (directory.to_owned(), fingerprint.to_owned());
        Ok(PromptCache { directory, max_bytes, fingerprint })
    }

    /// The longest part of a prompt whose state is there: all of it, or a multiple of 256 tokens.
    pub fn find(&self, model: &LanguageModel, ids: &[u32]) -> CacheHit {
        let mut problems = Vec::new();
        for (length, path) in self.paths(ids).into_iter().rev() {
            let snapshot = match Snapshot::load(&path, model, &self.fingerprint) {
                Ok(snapshot) => snapshot,
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    problems.push(error);
                    // If that fails too, it is reported again the next time.
                    let _ = fs::remove_file(&path);
                    continue;
                }
            };
            // Another prompt may have the same checksum.
            let is_same = snapshot.tokens == [&ids[..length]];
            if is_same && snapshot.state.position() == length as u64 {
                // It may have been removed meanwhile, which does not matter.
                let _ = File::options()
                    .write(true)
                    .open(&path)
                    .and_then(|file| file.set_modified(SystemTime::now()));
                return CacheHit { found: Some((length, snapshot)), problems };
            }
        }
        CacheHit { found: None, problems }
    }

    /// Keep the state of a generation of one sequence, which has processed these tokens.
    pub fn store(&self, generation: &mut Generation, ids: &[u32]) -> Result<()> {
        let Some((length, path)) = self.paths(ids).pop() else { return Ok(()) };
        debug_assert_eq!(length, ids.len());
        let model = generation.model;
        let snapshot =
            Snapshot { tokens: vec![ids.to_vec()], seed: 0, counter: 0, ..generation.snapshot()? };
        let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.save(&path, model, &self.fingerprint)?;
        self.prune()
    }

    /// Remove the files that were not used for longest, until the size is kept.
    fn prune(&self) -> Result<()> {
        let (mut files, mut bytes) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.directory).map_err(Error::io(&self.directory))? {
            let path = entry.map_err(Error::io(&self.directory))?.path();
            // What another program has just removed is not there.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let used = metadata.modified().map_err(Error::io(&path))?;
            let age = SystemTime::now().duration_since(used).unwrap_or_default();
            if name.contains(SUFFIX) && is_unfinished(name) && age > ABANDONED {
                remove(&path)?;
            } else if name.ends_with(SUFFIX) {
                bytes += metadata.len();
                files.push((used, path, metadata.len()));
            }
        }
        files.sort();
        for (_, path, size) in files {
            if bytes <= self.max_bytes {
                break;
            }
            remove(&path)?;
            bytes -= size;
        }
        Ok(())
    }

    /// The files of the parts of a prompt that are kept, the shortest first, each with its length.
    fn paths(&self, ids: &[u32]) -> Vec<(usize, PathBuf)> {
        let mut hasher = XxHash3_128::new();
        hasher.write(self.fingerprint.as_bytes());
        let mut length = 0;
        let path = |chunk: &[u32]| {
            hasher.write(bytemuck::cast_slice(chunk));
            length += chunk.len();
            (length, self.directory.join(format!("{:032x}{SUFFIX}", hasher.finish_128())))
        };
        ids.chunks(CHUNK).map(path).collect()
    }
}

/// Remove a file that may be gone already.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}
