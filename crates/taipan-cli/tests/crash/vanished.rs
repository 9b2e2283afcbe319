//! A directory that is taken away from the program that works in it.

use crate::attack::{Attack, Start, outcome, random, spawn, until, wait};
use crate::shim::{Action, Fault};

/// Take the directory away before a call, and let the program end.
fn vanish(attack: &Attack, at: usize, take_away: fn(&Attack)) -> Result<(), String> {
    attack.harness.write("go", "");
    let fault = Fault::once(Action::Wait("go"), at);
    let mut child = spawn(fault.befall(&mut attack.start(Start::Nothing)));
    until(&mut child, "the call", || attack.calls().len() >= at);
    take_away(attack);
    std::fs::remove_file(attack.harness.path("go")).unwrap();
    let output = wait(child);
    let outcome = outcome(&output);
    if attack.harness.path("run").exists() {
        return Err(format!("the directory is back: {outcome}"));
    }
    // No checkpoint is offered that cannot be found.
    let is_clear = outcome.contains("error: run") && !outcome.contains(" is complete");
    match output.status.code() == Some(1) && is_clear {
        true => Ok(()),
        false => Err(outcome),
    }
}

/// Moments between the first file of the run and the last one.
fn moments(attack: &Attack, seed: u64, count: usize) -> Vec<(usize, String)> {
    let calls = attack.all_calls(Start::Nothing, "");
    let settings = |call: &String| call.contains(" train.toml");
    let first = calls.iter().rposition(settings).unwrap() + 1;
    // Of the model; what follows it does not need the directory's name.
    let last = calls.iter().rposition(|call| call.starts_with("rename ")).unwrap();
    let mut random = random(seed);
    // As many of each part of the run.
    let part = (last - first) / count;
    let places = (0..count).map(|i| first + i * part + random(part));
    places.map(|place| (place + 1, calls[place].clone())).collect()
}

#[test]
fn a_directory_that_is_removed_ends_the_run_and_stays_away() {
    let attack = Attack::new("removed");
    let mut failures = Vec::new();
    for (at, call) in moments(&attack, 0x2545_f491_4f6c_dd1d, 40) {
        let remove = |attack: &Attack| std::fs::remove_dir_all(attack.harness.path("run")).unwrap();
        if let Err(why) = vanish(&attack, at, remove) {
            failures.push(format!("at {at}, {call}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_directory_that_is_renamed_ends_the_run_and_can_be_resumed() {
    let attack = Attack::new("renamed");
    let mut failures = Vec::new();
    for (at, call) in moments(&attack, 0x9e37_79b9_7f4a_7c15, 40) {
        let path = |name| attack.harness.path(name);
        let vanished = vanish(&attack, at, |attack| {
            std::fs::rename(attack.harness.path("run"), attack.harness.path("away")).unwrap();
        });
        // Its name is drawn in the curve.
        let recovered = || {
            std::fs::rename(path("away"), path("run")).unwrap();
            attack.expect_checkpoints(0).and_then(|()| attack.recover())
        };
        if let Err(why) = vanished.and_then(|()| recovered()) {
            failures.push(format!("at {at}, {call}: {why}"));
        }
        let _ = std::fs::remove_dir_all(path("away"));
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

/// Another directory takes its place while the model trains: it is not this run's to write to.
#[test]
fn a_directory_that_is_replaced_is_left_alone() {
    let attack = Attack::new("replaced");
    let calls = attack.all_calls(Start::Nothing, "");
    let rows = (1..).zip(&calls).filter(|(_, call)| *call == "write metrics.jsonl");
    // And when only the model is left to be written.
    let curve = calls.iter().rposition(|call| call.starts_with("rename loss.svg")).unwrap();
    for at in rows.map(|(at, _)| at).chain([curve + 1]).collect::<Vec<_>>() {
        attack.harness.write("go", "");
        let fault = Fault::once(Action::Wait("go"), at);
        let mut child = spawn(fault.befall(&mut attack.start(Start::Nothing)));
        until(&mut child, "the call", || attack.calls().len() >= at);
        std::fs::rename(attack.harness.path("run"), attack.harness.path("away")).unwrap();
        std::fs::create_dir(attack.harness.path("run")).unwrap();
        attack.harness.write("run/notes", "of somebody else");
        std::fs::remove_file(attack.harness.path("go")).unwrap();
        let output = wait(child);
        let outcome = outcome(&output);
        assert!(outcome.contains("error: run: was removed, moved or replaced"), "{outcome}");
        assert_eq!(output.status.code(), Some(1));
        let names = std::fs::read_dir(attack.harness.path("run")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["notes"], "{at}");
        std::fs::remove_dir_all(attack.harness.path("run")).unwrap();
        std::fs::rename(attack.harness.path("away"), attack.harness.path("run")).unwrap();
        attack.recover().unwrap();
    }
}
