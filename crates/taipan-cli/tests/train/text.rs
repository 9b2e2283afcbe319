//! Where the training text comes from.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::harness::{Harness, fail, succeed};

#[test]
fn standard_input_and_lines_of_json_train_as_files_do() {
    let harness = Harness::new("inputs");
    let text = harness.text("text");
    let line = serde_json::json!({"id": 1, "body": text}).to_string() + "\n";
    harness.write("text.jsonl", &line);
    let train = |out: &str, arguments: &[&str], input: Option<&str>| {
        let mut command = harness.train(&["--stop-after", "2", "--out", out]);
        let input = input.map(|name| Stdio::from(File::open(harness.path(name)).unwrap()));
        succeed(command.args(arguments).stdin(input.unwrap_or(Stdio::null())))
    };
    train("plain", &["text"], None);
    train("json", &["text.jsonl", "--text-key", "body"], None);
    train("piped", &["-"], Some("text"));
    train("piped-json", &["-", "--text-key=body"], Some("text.jsonl"));
    for run in ["json", "piped", "piped-json"] {
        for file in ["data/manifest.json", "model.safetensors"] {
            let same =
                harness.read(&format!("{run}/{file}")) == harness.read(&format!("plain/{file}"));
            assert!(same, "{file} of {run}");
        }
    }
    let stderr = fail(&mut harness.train(&["text.jsonl", "--out", "wrong"]), 1);
    assert!(stderr.contains("text.jsonl:1: no key \"text\", found \"body\", \"id\""), "{stderr}");
    assert!(!harness.path("wrong").exists());

    // The same text, measured.
    let eval = |files: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
        command.current_dir(harness.path(".")).args(["eval", "plain", "--json"]).args(files);
        succeed(command.stdin(File::open(harness.path(input)).unwrap()))
    };
    let plain = eval(&["text"], "text");
    assert_eq!(eval(&["text.jsonl", "--text-key", "body"], "text"), plain);
    assert_eq!(eval(&["-"], "text"), plain);
}

#[test]
fn a_file_in_another_encoding_is_noted_or_refused() {
    let harness = Harness::new("encoding");
    harness.write("latin1.txt", b"caf\xe9");
    let both = ["text", "latin1.txt", "--stop-after", "1"];
    let stdout = succeed(&mut harness.train(&both));
    let note = "skipped     1 of the files found, as latin1.txt: not valid UTF-8: byte at offset 3";
    assert!(stdout.contains(note), "{stdout}");
    let stderr = fail(harness.train(&both).args(["--strict", "--out", "strict"]), 1);
    assert!(stderr.contains("latin1.txt: not valid UTF-8: byte at offset 3"), "{stderr}");
    assert!(!harness.path("strict").exists());
}
