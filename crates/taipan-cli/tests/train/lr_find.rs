//! `--lr-find`.

use crate::harness::{Harness, fail, succeed};

#[test]
fn a_sweep_leaves_a_picture_and_nothing_else() {
    let harness = Harness::new("lr-find");
    let stdout = succeed(&mut harness.train(&["--lr-find", "--out", "a/run"]));
    let line = stdout.lines().last().unwrap();
    let lr = line.strip_prefix("suggested: --lr ").and_then(|rest| rest.split(' ').next());
    let lr: f64 = lr.unwrap().parse().unwrap();
    assert!((1e-4..=0.1).contains(&lr), "{line}");
    assert!(line.ends_with("; the losses are in a/run-lr.svg"), "{line}");
    let entries = std::fs::read_dir(harness.path("a")).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["run-lr.svg"]);
    let picture = harness.text("a/run-lr.svg");
    for part in ["<svg ", ">1e-5<", ">learning rate<", ">suggested<", "</svg>"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    succeed(&mut harness.train(&["--out", "a/run", "--steps", "2"]));
    let refused = fail(&mut harness.train(&["--lr-find", "--out", "a/run"]), 2);
    assert!(refused.contains("a/run is not empty"), "{refused}");
    assert!(harness.path("a/run/checkpoint-2").exists());
}
