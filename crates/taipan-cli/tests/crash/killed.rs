//! Killed at any moment.

use std::os::unix::process::ExitStatusExt;

use crate::attack::{Attack, Start, end, outcome, random};
use crate::shim::{Action, Fault};

#[test]
fn a_run_that_is_killed_at_any_call_and_resumed_ends_as_one_that_is_not() {
    let attack = Attack::new("killed");
    let calls = attack.all_calls(Start::Nothing, "").len();
    // After a call is before the next one, except for the last.
    let last = Fault::once(Action::KillAfter, calls);
    let kills = (1..=calls).map(|at| Fault::once(Action::Kill, at));
    attack.sweep(Start::Nothing, kills.chain([last]));
}

#[test]
fn a_resumed_run_that_is_killed_at_any_call_ends_as_one_that_is_not() {
    let attack = Attack::new("killed-again");
    let calls = attack.all_calls(Start::HalfWay, "").len();
    attack.sweep(Start::HalfWay, (1..=calls).map(|at| Fault::once(Action::Kill, at)));
}

#[test]
fn a_run_that_never_lives_long_comes_to_its_end() {
    for seed in [0x2545_f491_4f6c_dd1d, 0x9e37_79b9_7f4a_7c15, 0x1234_5678_9abc_def1] {
        let attack = Attack::new(&format!("short-lives-{seed:x}"));
        let mut random = random(seed);
        let mut lives = 0;
        loop {
            lives += 1;
            assert!(lives < 100, "not at its end after {lives} lives");
            let mut command = match attack.harness.path("run/train.toml").exists() {
                true => attack.resume(),
                false => attack.begin(),
            };
            // The first checkpoint takes 60 calls, and a resumed program 35 for its first.
            let fault = Fault::once(Action::Kill, 1 + random(90));
            let output = end(fault.befall(attack.count(&mut command)));
            attack.expect_checkpoints(0).unwrap();
            if output.status.code() == Some(0) {
                break;
            }
            assert_eq!(output.status.signal(), Some(9), "life {lives}: {}", outcome(&output));
        }
        assert!(lives > 4, "{lives} lives");
        attack.expect_complete().unwrap();
    }
}
