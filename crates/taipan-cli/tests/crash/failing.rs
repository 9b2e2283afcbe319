//! A disk that is full, over its quota or broken, and calls that do less than they were asked for.

use crate::attack::{Attack, Start};
use crate::shim::{Action, EDQUOT, EINTR, EIO, ENOSPC, Fault};

/// What needs room on a disk.
const GROWING: &str = "open write mkdir rename";

#[test]
fn a_call_that_fails_once_is_told_and_costs_nothing() {
    let attack = Attack::new("fails-once");
    let calls = attack.all_calls(Start::Nothing, "").len();
    let error = |at| [ENOSPC, EIO, EDQUOT][at % 3];
    let faults = (1..=calls).map(|at| Fault::once(Action::Fail(error(at)), at));
    attack.sweep(Start::Nothing, faults);
}

#[test]
fn a_disk_that_breaks_is_told_and_costs_nothing() {
    let attack = Attack::new("breaks");
    let calls = attack.all_calls(Start::Nothing, "").len();
    let faults = (1..=calls).map(|at| Fault::from_then_on(Action::Fail(EIO), at));
    attack.sweep(Start::Nothing, faults);
}

#[test]
fn a_disk_that_becomes_full_is_told_and_costs_nothing() {
    let attack = Attack::new("becomes-full");
    let calls = attack.all_calls(Start::Nothing, GROWING).len();
    let full = |at| Fault { only: GROWING, ..Fault::from_then_on(Action::Full, at) };
    attack.sweep(Start::Nothing, (1..=calls).map(full));
}

#[test]
fn a_resumed_run_on_a_failing_disk_keeps_its_checkpoints() {
    let attack = Attack::with_keep("fails-again", "1");
    let calls = attack.all_calls(Start::HalfWay, "").len();
    let fault = |at| match at % 4 {
        0 => Fault::once(Action::Fail(ENOSPC), at),
        1 => Fault::from_then_on(Action::Fail(EIO), at),
        2 => Fault::once(Action::Fail(EIO), at),
        _ => Fault::from_then_on(Action::Fail(EDQUOT), at),
    };
    attack.sweep(Start::HalfWay, (1..=calls).map(fault));
}

#[test]
fn interrupted_calls_and_short_writes_cannot_be_seen() {
    let attack = Attack::new("interrupted");
    // A call that was interrupted is made again: every other one is.
    let interrupted =
        Fault { every: 2, only: "open write fsync", ..Fault::from_then_on(Action::Fail(EINTR), 1) };
    let short = Fault { only: "write", ..Fault::from_then_on(Action::Short, 1) };
    for start in [Start::Nothing, Start::HalfWay] {
        attack.sweep(start, [interrupted, short]);
    }
}
