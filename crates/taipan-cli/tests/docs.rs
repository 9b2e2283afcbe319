//! README and docs: links lead somewhere, and every command runs.

#![cfg(unix)]

#[path = "../../taipan-lm/tests/common/empty.rs"]
mod empty;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use empty::directory;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every page for people.
fn pages() -> Vec<PathBuf> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut directories = vec![root(), root().join("docs")];
    directories.extend(files(&root().join("crates")));
    let mut pages: Vec<_> =
        directories.iter().flat_map(|directory| files(directory)).filter(is_page).collect();
    pages.sort();
    pages
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The targets of a page's links and pictures.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// What forges make of a heading: `## Read on` is `#read-on`.
fn anchors(text: &str) -> Vec<String> {
    let kept = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"))
        .map(|heading| heading.chars().filter(|c| kept(*c)).collect())
        .collect()
}

#[test]
fn links_resolve() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in links(&text).filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                _ => page.parent().unwrap().join(file),
            };
            assert!(path.exists(), "{}: {target} leads nowhere", page.display());
            if !anchor.is_empty() {
                let found = anchors(&fs::read_to_string(&path).unwrap());
                assert!(found.iter().any(|a| a == anchor), "{}: no {target}", page.display());
            }
            count += 1;
        }
    }
    assert!(count > 20, "{count} links found");
}

/// The lines of the blocks that are marked `sh`. A block that needs what tests do not have, or that
/// they run anyway, is marked `sh not-tested`.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks
        .filter_map(|block| block.strip_prefix("sh\n"))
        .flat_map(str::lines)
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// The command with a model of a few thousand parameters and two steps, where it trains.
fn short(line: &str) -> String {
    let line = line.split(" #").next().unwrap().trim();
    if !line.starts_with("taipan train") || line.contains("--resume") {
        return line.to_owned();
    }
    let mut words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    let mut set =
        |flag: &'static str, value: &'static str| match words.iter().position(|word| *word == flag)
        {
            Some(at) => words[at + 1] = value,
            None => words.extend([flag, value]),
        };
    set("--steps", "2");
    set("--batch-size", "1");
    set("--block-size", "32");
    set("--sample-tokens", "8");
    set("--eval-tokens", "64");
    if line.contains("--stop-after") {
        set("--stop-after", "1");
    }
    if line.contains("--train-tokenizer") {
        set("--train-tokenizer", "300");
    }
    if !line.contains("--from") {
        set("--d-model", "16");
        set("--n-layer", "1");
    }
    words.join(" ")
}

fn run(directory: &Path, line: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_taipan")).parent().unwrap();
    let path = std::env::join_paths([program, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    Command::new("sh")
        .args(["-ec", line])
        .current_dir(directory)
        .env("PATH", path)
        .env_remove("TAIPAN_ADAPTER")
        .output()
        .unwrap()
}

/// What the pages suppose to be there: texts, questions, a tokenizer and a model.
fn supplies(directory: &Path) {
    let sentence = "Once upon a time a heron walked along the shore, and counted the boats. ";
    fs::create_dir(directory.join("my-texts")).unwrap();
    for name in ["my-texts/a.txt", "my-texts/b.txt", "held-out.txt"] {
        fs::write(directory.join(name), sentence.repeat(60)).unwrap();
    }
    let question =
        r#"{"prompt": "A heron walked along the", "choices": [" shore", " moon"], "answer": 0}"#;
    fs::write(directory.join("questions.jsonl"), question).unwrap();
    let made = run(directory, &short("taipan train my-texts/ --out my-model"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::copy(directory.join("my-model/tokenizer.json"), directory.join("tokenizer.json")).unwrap();
}

/// The directory that a command writes, if it is one that must be new.
fn out(line: &str) -> Option<&str> {
    let mut words = line.split(' ');
    match words.nth(1) {
        Some("train") if !line.contains("--resume") => {
            Some(words.skip_while(|word| *word != "--out").nth(1).unwrap_or("taipan-run"))
        }
        Some("convert") => words.nth(1),
        _ => None,
    }
}

#[test]
fn commands_run() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let commands = commands(&text);
        if commands.is_empty() {
            continue;
        }
        let name = page.strip_prefix(root()).unwrap().display().to_string().replace('/', "-");
        let directory = directory("docs", &name);
        supplies(&directory);
        for line in commands {
            let line = short(line);
            if let Some(out) = out(&line) {
                let _ = fs::remove_dir_all(directory.join(out));
            }
            let output = run(&directory, &line);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {line}\n{stderr}", page.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count} commands found");
}
