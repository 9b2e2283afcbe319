//! Clocks that jump.

use std::process::Command;

use crate::attack::{end, expect_success};
use crate::harness::Harness;
use crate::shim::preload;
use crate::tree::Tree;

/// Rows are written where the run is stopped: each is the same then.
const SETTINGS: [&str; 9] = [
    "--steps",
    "12",
    "--save-interval",
    "3",
    "--eval-interval",
    "4",
    "--log-interval",
    "3",
    "--tensorboard",
];

#[test]
fn a_run_does_not_depend_on_clocks() {
    let harness = Harness::new("crash-clocks");
    let end = |command: &mut Command| expect_success(&end(preload(command)));
    let tree = || {
        let run = harness.path("run");
        let tree = Tree::read(&run).of_the_run_alone();
        std::fs::remove_dir_all(run).unwrap();
        tree
    };
    end(&mut harness.train(&SETTINGS)).unwrap();
    let expected = tree();
    let (mut failures, day) = (Vec::new(), 86400);
    for (clock, jump) in [
        ("SHIM_REALTIME", "frozen".to_owned()),
        ("SHIM_REALTIME", format!("{}", 1000 * day)),
        // To years before 1970.
        ("SHIM_REALTIME", format!("{}", -1000 * day)),
        ("SHIM_MONOTONIC", "frozen".to_owned()),
        ("SHIM_MONOTONIC", format!("{}", 1000 * day)),
        // To the end of what a clock can tell.
        ("SHIM_MONOTONIC", format!("{}", i64::MAX / 1000)),
    ] {
        let whole = end(harness.train(&SETTINGS).args(["--stop-after", "3"]).env(clock, &jump))
            .and_then(|()| {
                let resume = ["--resume", "--out", "run", "--stop-after", "6"];
                end(harness.bare(&resume).env(clock, &jump))
            })
            .and_then(|()| end(harness.bare(&["--resume", "--out", "run"]).env(clock, &jump)));
        if let Err(why) = whole.and(tree().compare(&expected)) {
            failures.push(format!("{clock} {jump}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
