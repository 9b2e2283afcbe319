//! What a compiler has accepted before is not compiled again: there are thousands of kernels, few of
//! which change.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// The sources that a compiler has accepted, by their hashes, in a file beside the test program.
pub(super) struct Accepted {
    path: PathBuf,
    hashes: HashSet<u64>,
    /// Of everything but the source that decides what is accepted.
    compiler: u64,
}

impl Accepted {
    /// By a compiler, of which `version` is the program or anything else that changes with it. The
    /// crates that we depend on, naga among them, count as a part of it.
    pub(super) fn by(compiler: &str, version: &[&[u8]]) -> Accepted {
        let program = std::env::current_exe().unwrap();
        let path = program.with_file_name(format!("accepted-by-{compiler}"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        let crates = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        Accepted {
            hashes: text.lines().filter_map(|line| line.parse().ok()).collect(),
            compiler: hash(&(crates, version)),
            path,
        }
    }

    /// The sources to compile.
    pub(super) fn others(&self, sources: Vec<String>) -> Vec<String> {
        sources.into_iter().filter(|source| !self.hashes.contains(&self.hash(source))).collect()
    }

    /// Remember these too, and none that is not among `all`.
    pub(super) fn remember(&self, all: &[String]) {
        let lines: String = all.iter().map(|source| format!("{}\n", self.hash(source))).collect();
        fs::write(&self.path, lines).unwrap();
    }

    fn hash(&self, source: &str) -> u64 {
        hash(&(self.compiler, source))
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn what_changes_is_compiled_again() {
    let sources = ["fn a() {}", "fn b() {}"].map(str::to_owned);
    let name = format!("test-{}", std::process::id());
    let first = Accepted::by(&name, &[b"1"]);
    assert_eq!(first.others(sources.to_vec()), sources);
    first.remember(&sources);
    let second = Accepted::by(&name, &[b"1"]);
    assert_eq!(second.others(sources.to_vec()), [""; 0]);
    let changed = "fn a() { return; }".to_owned();
    assert_eq!(second.others(vec![changed.clone(), sources[1].clone()]), [changed]);
    assert_eq!(Accepted::by(&name, &[b"2"]).others(sources.to_vec()), sources);
    fs::remove_file(first.path).unwrap();
}
