//! Places for files of tests.

use std::path::{Path, PathBuf};

/// A directory of one test of a suite, empty at first.
pub fn directory(suite: &str, test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(suite).join(test);
    if path.exists() {
        std::fs::remove_dir_all(&path).unwrap();
    }
    std::fs::create_dir_all(&path).unwrap();
    path
}
