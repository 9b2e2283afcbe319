//! Puts the project's own sources into the program, for `taipan train --corpus sources`. Built
//! outside the workspace, the crate has its own sources only. And puts the page into it that
//! `taipan web` serves, if scripts/web has built it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What is read of the workspace, or of the crate where there is none.
const ROOTS: [&str; 9] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "build.rs",
    "crates",
    "docs",
    "scripts",
    "src",
];

fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let workspace = package.join("../..");
    let base = match workspace.join("crates/taipan-cli/build.rs").is_file() {
        true => workspace.canonicalize()?,
        false => package,
    };
    let mut files = Vec::new();
    for root in ROOTS {
        let path = base.join(root);
        if path.exists() {
            // Of a directory, cargo watches all that is in it, new files, too.
            println!("cargo::rerun-if-changed={}", path.display());
            collect(&path, &mut files)?;
        }
    }
    let mut corpus = String::from("&[\n");
    for (name, path) in names(&base, files) {
        writeln!(corpus, "    ({name:?}, include_str!({path:?})),").expect("a string takes all");
    }
    corpus.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("corpus.rs"), corpus)?;
    fs::write(out.join("page.rs"), page(&base.join("crates/taipan-web/dist"))?)
}

/// The files of the page, by their address.
fn page(built: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    if built.is_dir() {
        println!("cargo::rerun-if-changed={}", built.display());
    }
    let page = built.join("page");
    let mut open: Vec<PathBuf> = page.is_dir().then(|| page.clone()).into_iter().collect();
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }
    let mut text = String::from("&[\n");
    for (name, path) in names(&page, files) {
        let address = format!("/{name}");
        writeln!(text, "    ({address:?}, include_bytes!({path:?})),").expect("a string takes all");
    }
    Ok(text + "]\n")
}

/// The text files at `path` and below it.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        files.extend(is_source(path).then(|| path.to_owned()));
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != "target" && name != "dist" && !name.to_string_lossy().starts_with('.') {
            collect(&entry.path(), files)?;
        }
    }
    Ok(())
}

/// Code and prose; a script may do without an extension.
fn is_source(path: &Path) -> bool {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => ["md", "py", "rs", "toml", "wgsl"].contains(&extension),
        None => fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"#!")),
    }
}

/// The files with their names from `base`, in one order on every system.
fn names(base: &Path, files: Vec<PathBuf>) -> Vec<(String, PathBuf)> {
    let name = |path: &PathBuf| {
        let inside = path.strip_prefix(base).expect("all were found below it");
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        parts.join("/")
    };
    let mut named: Vec<_> = files.into_iter().map(|path| (name(&path), path)).collect();
    named.sort();
    named
}
