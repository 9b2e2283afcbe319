//! What happens around a run: files that change, directories that overlap, settings that are
//! edited.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Harness, fail, run, succeed};

/// A run of 40 steps that was stopped after 25: with checkpoints of 20, 24 and 25.
fn stopped(test: &str) -> Harness {
    let harness = Harness::new(test);
    succeed(&mut harness.train(&["--stop-after", "25", "--save-interval", "4", "--keep", "3"]));
    harness
}

const RESUME: [&str; 3] = ["--resume", "--out", "run"];

#[test]
fn bytes_that_were_changed_are_noticed_and_named() {
    let harness = stopped("changed");
    let taipan_info = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
        command.current_dir(harness.path("")).args(["info", "run"]);
        command
    };
    let stdout = succeed(&mut taipan_info());
    assert!(stdout.contains("run/checkpoint-25: step 25, 7 files as written"), "{stdout}");
    assert!(stdout.contains("held out, files as written"), "{stdout}");
    for (file, advice) in [
        ("data/train.tokens", "without the directory run/data, --resume tokenises the text again"),
        ("data/held_out.lengths", "without the directory run/data"),
        ("checkpoint-25/model.safetensors", "the run resumes from run/checkpoint-24"),
        ("checkpoint-25/trainer.safetensors", "the run resumes from run/checkpoint-24"),
        ("checkpoint-25/trainer.json", "the run resumes from run/checkpoint-24"),
    ] {
        let name = format!("run/{file}");
        let bytes = harness.read(&name);
        let mut changed = bytes.clone();
        let place = changed.len() - 5;
        changed[place] ^= 1;
        harness.write(&name, changed);
        let error = fail(&mut harness.bare(&RESUME), 1);
        assert!(error.starts_with(&format!("error: {name}: ")), "{error}");
        assert!(error.contains("it was changed after it was written") || file.ends_with("json"));
        assert!(error.contains(advice), "{error}");
        let error = fail(&mut taipan_info(), 1);
        assert!(error.starts_with(&format!("error: {name}: ")), "{error}");
        harness.write(&name, bytes);
    }
    succeed(&mut harness.bare(&RESUME));
}

#[test]
fn a_cache_that_is_gone_is_built_again_and_must_be_the_same() {
    let harness = stopped("rebuilt");
    succeed(&mut harness.train(&["--out", "whole", "--save-interval", "4"]));
    fs::remove_dir_all(harness.path("run/data")).unwrap();
    let text = harness.text("text");
    harness.write("text", text.replace("times", "plus"));
    let error = fail(&mut harness.bare(&RESUME), 1);
    assert!(error.starts_with("error: data: the fingerprint is "), "{error}");
    fs::remove_dir_all(harness.path("run/data")).unwrap();
    harness.write("text", text);
    let stdout = succeed(&mut harness.bare(&RESUME));
    assert!(stdout.starts_with("run/data is missing: the text is tokenised again\n"), "{stdout}");
    harness.assert_same("whole", "run", 40);
}

#[test]
fn edited_settings_are_compared_with_the_checkpoint() {
    let harness = stopped("edited");
    let settings = harness.text("run/train.toml");
    for (before, after, error) in [
        ("batch-size = 2", "batch-size = 3", "batch-size is 3, but the run began with 2"),
        ("\nlr = 0.003", "\nlr = 0.03", "lr is 0.03, but the run began with 0.003"),
        ("d-model = 16", "d-model = 32", "d-model is 32, but the run began with 16"),
        ("eval-tokens = 256", "eval-tokens = 99", "eval-tokens is 99, but the run began with 256"),
        (
            "val-fraction = 0.05",
            "val-fraction = 0.1",
            "val-fraction is 0.1, but the run began with",
        ),
        ("[\"text\"]", "[\"small.toml\"]", "files is not what it was when the run began"),
    ] {
        assert!(settings.contains(before), "{before}: {settings}");
        harness.write("run/train.toml", settings.replace(before, after));
        let found = fail(&mut harness.bare(&RESUME), 2);
        assert!(found.starts_with(&format!("error: run/train.toml: {error}")), "{found}");
        assert!(harness.text("run/train.toml").contains(after), "what the user wrote stays");
    }
    // What a flag of --resume may change may be edited.
    harness.write("run/train.toml", settings.replace("steps = 40", "steps = 30"));
    succeed(&mut harness.bare(&RESUME));
    assert!(harness.path("run/checkpoint-30").exists());
}

#[test]
fn a_run_does_not_learn_from_its_own_directory() {
    let harness = Harness::new("inside");
    fs::create_dir(harness.path("corpus")).unwrap();
    fs::rename(harness.path("text"), harness.path("corpus/text")).unwrap();
    let settings = ["corpus", "--eval-interval", "500", "--save-interval", "500"];
    succeed(harness.train(&settings).args(["--out", "whole", "--steps", "40"]));
    // Killed before its first checkpoint, when its directory is full of text.
    let mut long = harness.train(&settings);
    long.args(["--out", "corpus/run", "--steps", "1000000", "--log-interval", "1"]);
    let mut child = long.stdout(Stdio::null()).spawn().unwrap();
    let rows = || fs::read_to_string(harness.path("corpus/run/metrics.jsonl")).unwrap_or_default();
    while rows().lines().count() < 3 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let resume = ["--resume", "--out", "corpus/run", "--stop-after", "5"];
    let stdout = succeed(&mut harness.bare(&resume));
    assert!(
        stdout.starts_with(
            "corpus/run: no checkpoint yet, the run starts again from the beginning\n"
        ),
        "{stdout}"
    );
    assert!(stdout.contains("corpus/run: in the output directory"), "{stdout}");
    for file in ["train.tokens", "held_out.tokens", "manifest.json"] {
        let [whole, run] =
            ["whole", "corpus/run"].map(|run| harness.read(&format!("{run}/data/{file}")));
        assert!(whole == run, "{file}");
    }
}

#[test]
fn a_cache_that_is_shortened_while_training_is_an_error() {
    let harness = Harness::new("shortened");
    let mut command = harness.train(&["--steps", "1000000", "--log-interval", "1"]);
    command.args(["--save-interval", "5", "--max-time", "60s"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !harness.path("run/checkpoint-5").exists() {
        assert!(child.try_wait().unwrap().is_none(), "{:?}", child.wait_with_output());
        std::thread::sleep(Duration::from_millis(1));
    }
    let tokens = fs::File::options().write(true).open(harness.path("run/data/train.tokens"));
    tokens.unwrap().set_len(100).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?}: {error}", output.status);
    let start = "error: run/data/train.tokens: less than ";
    assert!(
        error.starts_with(start) && error.contains(" is complete; to resume from it: "),
        "{error}"
    );
}

#[test]
fn a_run_that_was_stopped_between_two_rows_has_the_same_metrics() {
    let harness = Harness::new("rows");
    let settings = ["--log-interval", "10", "--eval-interval", "15", "--dtype", "bf16"];
    succeed(harness.train(&settings).args(["--out", "whole"]));
    succeed(harness.train(&settings).args(["--stop-after", "13"]));
    assert_eq!(harness.metrics("run").last().unwrap()["step"], 13, "what was reached is shown");
    succeed(harness.bare(&RESUME).args(["--stop-after", "17"]));
    succeed(&mut harness.bare(&RESUME));
    let steps: Vec<_> = harness.metrics("run").iter().map(|row| row["step"].clone()).collect();
    assert_eq!(steps, [0, 10, 15, 20, 30, 40]);
    harness.assert_same("whole", "run", 40);
    assert!(!harness.path("run/warnings.log").exists());
}

#[test]
fn a_damaged_old_checkpoint_is_a_warning() {
    let harness = stopped("old");
    harness.write("run/checkpoint-20/trainer.json", "{");
    let stdout = succeed(&mut harness.bare(&RESUME));
    let warning = "run/checkpoint-20/trainer.json: EOF while parsing";
    assert_eq!(stdout.matches(&format!("warning: {warning}")).count(), 1, "{stdout}");
    assert!(harness.text("run/warnings.log").starts_with(warning));
    assert!(
        harness.path("run/checkpoint-20").exists() && harness.path("run/checkpoint-40").exists()
    );
    assert!(!harness.path("run/checkpoint-24").exists(), "what is old goes");
}

#[test]
fn what_could_not_begin_leaves_nothing_and_a_directory_of_its_own_only() {
    let harness = Harness::new("nothing");
    fail(&mut harness.train(&["--out", "a/b/c", "--block-size", "100000"]), 1);
    assert!(!harness.path("a").exists());
    // What an earlier program, killed at once, left is no run.
    fs::create_dir(harness.path("begun")).unwrap();
    harness.write("begun/.lock", "");
    harness.write("begun/train.toml.tmp-123", "half");
    succeed(&mut harness.train(&["--out", "begun", "--steps", "1"]));
    assert!(!harness.path("begun/train.toml.tmp-123").exists());
    fs::create_dir(harness.path("own")).unwrap();
    harness.write("own/notes.txt", "the user's own");
    let output = run(&mut harness.train(&["--out", "own"]));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read_dir(harness.path("own")).unwrap().count(), 1, "nothing is written there");
}
