//! Processes that cannot train together.

use std::process::Command;

use crate::harness::{fail, succeed};
use crate::{SMALL, harness, launcher, mpirun};

/// A job whose second process has other arguments.
fn unequal(command: &Command, more: &[&str]) -> Command {
    let program: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let mut job = launcher();
    job.current_dir(command.get_current_dir().unwrap()).args(["-n", "1"]).args(&program);
    job.args([":", "-n", "1"]).args(&program).args(more);
    job
}

#[test]
fn other_flags_are_refused() {
    let harness = harness("flags");
    let command = harness.train(&["--grad-accum", "2"]);
    for (more, expected) in [
        (&["--lr", "0.5"][..], "--lr is 0.5, but 0.003 in rank 0 on "),
        (&["--seed", "1"][..], "--seed is 1, but 0 in rank 0 on "),
        (&["--out", "other"][..], "--out is \"other\", but \"run\" in rank 0 on "),
    ] {
        let error = fail(&mut unequal(&command, more), 1);
        assert_eq!(error.matches("error: ").count(), 1, "{error}");
        assert!(error.contains("rank 1 on ") && error.contains(expected), "{error}");
        assert!(!harness.path("run").exists(), "nothing is written");
    }
    succeed(&mut unequal(&command, &["--threads", "1"]));
}

#[test]
fn batches_that_cannot_be_shared_are_refused() {
    let harness = harness("shares");
    let error = fail(&mut mpirun(3, &harness.train(&["--grad-accum", "8"])), 2);
    let expected =
        "--grad-accum is 8, which 3 ranks cannot share, expected a multiple of 3: 6 or 9";
    assert!(error.contains(expected), "{error}");
    assert_eq!(error.matches("error: ").count(), 1, "{error}");
    let error = fail(&mut mpirun(3, &harness.train(&["--grad-accum", "2"])), 2);
    assert!(error.contains("expected a multiple of 3: 3, for example"), "{error}");
    succeed(harness.train(&SMALL).args(["--stop-after", "1"]));
    let error = fail(&mut mpirun(5, &harness.bare(&["--resume", "--out", "run"])), 2);
    assert!(
        error.contains("which 5 ranks cannot share: resume it on 1, 2, 3, 4, 6, 12"),
        "{error}"
    );
    let error = fail(&mut mpirun(2, &harness.train(&["--lr-find"])), 2);
    assert!(error.contains("--lr-find is for one process, but there are 2"), "{error}");
}
