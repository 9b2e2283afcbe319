//! What a run writes, to the terminal and to its directory.

use crate::harness::{Harness, succeed};

#[test]
fn elsewhere_than_on_a_terminal_lines_are_plain() {
    let harness = Harness::new("plain");
    let stdout = succeed(&mut harness.train(&["--steps", "20"]));
    assert!(!stdout.contains(['\r', '\u{1b}']), "{stdout:?}");
    let lines: Vec<_> = stdout.lines().filter(|line| line.starts_with("step ")).collect();
    // Every 10 steps, and where it is measured on held-out text, every 2.
    assert_eq!(lines.len(), 10, "{stdout}");
    for (line, step) in lines.iter().zip((2..).step_by(2)) {
        assert!(line.starts_with(&format!("step {step}/20  loss ")), "{line}");
        for value in ["val ", "bits/byte ", "tok/s", "lr ", "grad ", "left"] {
            assert!(line.contains(value), "{value}: {line}");
        }
    }
    for part in [
        "0.01 M parameters",
        "15.0k for training, 4.1k held out",
        "20 steps of 2 × 16 tokens",
        "memory      about ",
        "▁",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

#[test]
fn every_step_is_measured_once_also_when_a_run_goes_on() {
    let harness = Harness::new("metrics");
    let settings = ["--log-interval", "1", "--eval-interval", "5", "--tensorboard"];
    // Stopped between two rows with a measurement on held-out text.
    succeed(harness.train(&settings).args(["--stop-after", "13", "--save-interval", "10"]));
    std::fs::remove_dir_all(harness.path("run/checkpoint-13")).unwrap();
    succeed(&mut harness.bare(&["--resume", "--out", "run"]));
    let rows = harness.metrics("run");
    let steps: Vec<_> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (0..=40).collect::<Vec<_>>());
    for row in &rows {
        let step = row["step"].as_u64().unwrap();
        assert_eq!(row["loss"].is_f64(), step > 0, "{row}");
        assert_eq!(row["bits_per_byte"].is_f64(), step % 5 == 0, "{row}");
        if step > 0 {
            assert_eq!(row["tokens"], step * 32);
        }
        assert!(row.get("seconds").is_none() && row.get("tokens_per_second").is_none(), "{row}");
    }
    let curve = harness.text("run/loss.svg");
    assert!(curve.starts_with("<svg ") && curve.ends_with("</svg>\n"));
    let names = std::fs::read_dir(harness.path("run")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("events.out.tfevents.")).count(), 2);
}
