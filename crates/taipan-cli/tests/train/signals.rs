//! Ctrl-C and SIGTERM.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Harness, fail, succeed};

/// Start a run, and wait until it has measured something.
fn start(harness: &Harness, arguments: &[&str], rows: usize) -> Child {
    let mut command = harness.train(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program was built");
    let has_measured = || {
        let text = std::fs::read_to_string(harness.path("run/metrics.jsonl"));
        text.is_ok_and(|text| text.lines().count() >= rows)
    };
    while !has_measured() {
        assert!(child.try_wait().unwrap().is_none(), "{:?}", child.wait_with_output());
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

fn send(child: &Child, signal: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
}

#[test]
fn a_signal_saves_and_ends_the_run() {
    for signal in ["-INT", "-TERM"] {
        let harness = Harness::new(&format!("signal{signal}"));
        let child = start(&harness, &["--steps", "1000000", "--log-interval", "1"], 5);
        // Without the lock it would train on: for no longer than this.
        let second = ["--resume", "--out", "run", "--max-time", "5s"];
        let error = fail(&mut harness.bare(&second), 1);
        assert_eq!(error, "error: run: another taipan train is at work in it\n");
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{signal}: {stderr}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        let step = harness.metrics("run").last().unwrap()["step"].as_u64().unwrap();
        let stopped = format!("\nstopped at step {step} of 1000000, saved; resume with: ");
        assert!(stdout.ends_with(&(stopped + "taipan train --resume --out run\n")), "{stdout}");
        let saved = harness.read(&format!("run/checkpoint-{step}/model.safetensors"));
        assert_eq!(saved, harness.read("run/model.safetensors"));
        let next = (step + 1).to_string();
        succeed(&mut harness.bare(&["--resume", "--out", "run", "--stop-after", &next]));
        assert!(harness.path(&format!("run/checkpoint-{next}")).exists());
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let harness = Harness::new("two-signals");
    // A step takes some seconds.
    let slow = ["--d-model", "256", "--n-layer", "2", "--batch-size", "16", "--block-size", "1024"];
    let arguments = [&slow[..], &["--eval-tokens", "16"]].concat();
    let mut child = start(&harness, &arguments, 1);
    send(&child, "-INT");
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "the first one waits for the step");
    send(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!harness.path("run/checkpoint-1").exists());
}
