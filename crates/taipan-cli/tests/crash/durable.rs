//! A machine that stops: what its disk was not asked to keep may be gone, even if it was written
//! before something that is there.

use std::collections::BTreeSet;

use crate::attack::{Attack, Start};

/// What a run can do without.
const DISPENSABLE: [&str; 4] = [".lock", "loss.svg", "timings.jsonl", "events.out.tfevents."];

/// What a machine that stops may still lose.
#[derive(Default)]
struct Unsynced {
    /// Files that were written to.
    files: BTreeSet<String>,
    /// Directories with new names.
    directories: BTreeSet<String>,
}

impl Unsynced {
    /// Follow a call; give what it does too early.
    fn follow(&mut self, kind: &str, path: &str) -> Option<String> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        match kind {
            "open" => {
                self.directories.insert(parent);
                self.files.insert(path.to_owned());
            }
            "write" => drop(self.files.insert(path.to_owned())),
            "fsync" => {
                self.files.remove(path);
                self.directories.remove(path);
            }
            "mkdir" if !path.is_empty() => drop(self.directories.insert(parent)),
            "rename" => {
                self.directories.insert(parent);
                let inside = format!("{path}/");
                let unsynced = self.files.iter().chain(&self.directories);
                let early = unsynced.filter(|name| *name == path || name.starts_with(&inside));
                let early: Vec<_> = early.cloned().collect();
                self.files.remove(path);
                return (!early.is_empty()).then(|| format!("{path} is renamed before {early:?}"));
            }
            _ => {}
        }
        None
    }
}

#[test]
fn what_a_checkpoint_needs_is_on_the_disk_when_it_is() {
    let attack = Attack::new("durable");
    let (mut unsynced, mut is_new, mut early) = (Unsynced::default(), false, BTreeSet::new());
    let mut saved = 0;
    for call in attack.all_calls(Start::Nothing, "") {
        let (kind, path) = call.split_once(' ').unwrap();
        if DISPENSABLE.iter().any(|name| path.starts_with(name)) {
            continue;
        }
        early.extend(unsynced.follow(kind, path));
        let step = path.strip_prefix("checkpoint-");
        if let ("rename", Some(step)) = (kind, step) {
            is_new = step.parse::<u64>().is_err();
        }
        // The directory of the run tells of a new checkpoint.
        if (kind, path, is_new) == ("fsync", "", true) {
            let left = unsynced.files.iter().chain(&unsynced.directories);
            early.extend(left.map(|name| format!("a checkpoint is saved before {name:?}")));
            is_new = false;
            saved += 1;
        }
    }
    assert!(early.is_empty(), "{early:#?}");
    assert_eq!(saved, 4, "every checkpoint is on the disk under its name before the next one");
}
