//! Directories as values.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The files below a directory by their paths, and the directories, whose names end with `/`.
#[derive(Clone, Default)]
pub struct Tree(BTreeMap<String, Vec<u8>>);

impl Tree {
    pub fn read(directory: &Path) -> Tree {
        let mut tree = Tree::default();
        tree.add(directory, "");
        tree
    }

    fn add(&mut self, directory: &Path, prefix: &str) {
        let entries =
            fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        for entry in entries.map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                self.0.insert(format!("{name}/"), Vec::new());
                self.add(&entry.path(), &format!("{name}/"));
            } else {
                self.0.insert(name, fs::read(entry.path()).unwrap());
            }
        }
    }

    /// Make a new directory of it.
    pub fn write(&self, directory: &Path) {
        fs::create_dir(directory).unwrap();
        for (name, bytes) in &self.0 {
            match name.strip_suffix('/') {
                Some(name) => fs::create_dir(directory.join(name)).unwrap(),
                None => fs::write(directory.join(name), bytes).unwrap(),
            }
        }
    }

    /// What is in one of its directories.
    pub fn below(&self, directory: &str) -> Tree {
        let inside = self.0.iter().filter_map(|(name, bytes)| {
            let name = name.strip_prefix(directory)?.strip_prefix('/')?;
            (!name.is_empty()).then(|| (name.to_owned(), bytes.clone()))
        });
        Tree(inside.collect())
    }

    /// Without what tells of times, of warnings and of the program that is at work.
    pub fn of_the_run_alone(mut self) -> Tree {
        self.0.retain(|name, _| {
            !([".lock", "timings.jsonl", "warnings.log"].contains(&name.as_str())
                || name.starts_with("events.out.tfevents."))
        });
        self
    }

    /// The steps of its checkpoints.
    pub fn checkpoints(&self) -> impl Iterator<Item = u64> {
        let names = self.0.keys().filter_map(|name| name.strip_suffix('/'));
        names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok())
    }

    /// Nothing, or how it is unlike another.
    pub fn compare(&self, expected: &Tree) -> Result<(), String> {
        let mut unlike = Vec::new();
        for (name, bytes) in &self.0 {
            match expected.0.get(name) {
                None => unlike.push(format!("{name} is left over")),
                Some(expected) if expected != bytes => unlike.push(format!("{name} is another")),
                Some(_) => {}
            }
        }
        let missing = expected.0.keys().filter(|name| !self.0.contains_key(*name));
        unlike.extend(missing.map(|name| format!("{name} is missing")));
        if unlike.is_empty() { Ok(()) } else { Err(unlike.join(", ")) }
    }
}
