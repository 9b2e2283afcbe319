//! Several programs in one directory.

use std::process::{Child, Command};
use std::time::Duration;

use crate::attack::{Attack, Start, end, expect_success, outcome, spawn, until, wait};
use crate::harness::Harness;
use crate::shim::{Action, Fault, preload};
use crate::tree::Tree;

const REFUSED: &str = "error: run: another taipan train is at work in it\n";

/// Long enough for others to disturb it, from the tokenizer on.
const LONG: [&str; 8] =
    ["--steps", "1500", "--save-interval", "300", "--train-tokenizer", "400", "--keep", "2"];

/// What the run comes to without others.
fn alone(harness: &Harness) -> Tree {
    expect_success(&end(preload(&mut harness.train(&LONG)))).unwrap();
    let run = harness.path("run");
    let tree = Tree::read(&run).of_the_run_alone();
    std::fs::remove_dir_all(run).unwrap();
    tree
}

#[test]
fn programs_that_come_later_are_refused_and_change_nothing() {
    let harness = Harness::new("crash-later");
    let alone = alone(&harness);
    // Made once, since that writes the file of settings which programs read.
    let (mut begin, mut resume) =
        (harness.train(&LONG), harness.bare(&["--resume", "--out", "run"]));
    let mut first = spawn(preload(&mut begin));
    until(&mut first, "it has a directory", || harness.path("run/.lock").exists());
    let (mut refused, mut wrong) = (0, Vec::new());
    while first.try_wait().unwrap().is_none() {
        let is_resumable = harness.path("run/train.toml").exists();
        let others = [spawn(&mut begin), spawn(preload(&mut resume)), spawn(&mut begin)];
        let outputs = others.map(wait);
        if harness.path("run/model.safetensors").exists() {
            // They may have come after its end.
            break;
        }
        for (number, output) in outputs.iter().enumerate() {
            let told_well = output.stderr == REFUSED.as_bytes();
            // Before its settings are there, there is nothing to resume.
            let too_early =
                number == 1 && !is_resumable && outcome(output).contains("nothing to resume");
            match output.status.code() == Some(1) && (told_well || too_early) {
                true => refused += 1,
                false => wrong.push(outcome(output)),
            }
        }
    }
    let first = expect_success(&wait(first));
    let whole = match harness.path("run").exists() {
        true => Tree::read(&harness.path("run")).of_the_run_alone().compare(&alone),
        false => Err("its directory is gone".into()),
    };
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "not refused: {wrong:#?}; the first: {first:?}, {whole:?}");
    assert!(refused > 3, "only {refused} others came before its end");
    first.and(whole).unwrap();
}

#[test]
fn of_programs_that_begin_at_once_one_runs() {
    let harness = Harness::new("crash-at-once");
    let alone = alone(&harness);
    let mut begin = harness.train(&LONG);
    for round in 0..3 {
        let programs = [(); 4].map(|()| {
            let child = spawn(preload(&mut begin));
            std::thread::sleep(Duration::from_millis(round * 10));
            child
        });
        let outputs = programs.map(wait);
        let all: Vec<_> = outputs.iter().map(outcome).collect();
        let winners = outputs.iter().filter(|output| output.status.code() == Some(0)).count();
        assert_eq!(winners, 1, "{all:#?}");
        let refused = outputs.iter().filter(|output| output.stderr == REFUSED.as_bytes()).count();
        assert_eq!(refused, 3, "{all:#?}");
        Tree::read(&harness.path("run")).of_the_run_alone().compare(&alone).unwrap();
        std::fs::remove_dir_all(harness.path("run")).unwrap();
    }
}

/// Start a program, and hold it at its first call that changes something, until `go` is removed.
fn hold(attack: &Attack, mut command: Command) -> Child {
    attack.harness.write("go", "");
    let pause = Fault::once(Action::Wait("go"), 1);
    let mut child = spawn(pause.befall(attack.count(&mut command)));
    until(&mut child, "its first call", || !attack.calls().is_empty());
    child
}

/// It has looked at the directory before the run was there: that is no reason to write to it.
#[test]
fn a_run_that_came_to_its_end_while_another_began_is_not_overwritten() {
    let attack = Attack::new("overtaken");
    let slow = hold(&attack, attack.begin());
    expect_success(&end(preload(&mut attack.begin()))).unwrap();
    std::fs::remove_file(attack.harness.path("go")).unwrap();
    let output = wait(slow);
    attack.expect_complete().unwrap_or_else(|why| panic!("{why}; {}", outcome(&output)));
    assert_ne!(output.status.code(), Some(0), "the run was there already");
}

/// It has found no checkpoint to resume from: that is no reason to start again.
#[test]
fn a_run_that_came_to_its_end_while_another_resumed_it_is_not_begun_again() {
    let attack = Attack::new("overtaken-resumed");
    let calls = attack.all_calls(Start::Nothing, "");
    let first_row = 1 + calls.iter().position(|call| call == "write metrics.jsonl").unwrap();
    end(Fault::once(Action::Kill, first_row).befall(&mut attack.start(Start::Nothing)));
    let slow = hold(&attack, attack.resume());
    expect_success(&end(preload(&mut attack.resume()))).unwrap();
    std::fs::remove_file(attack.harness.path("go")).unwrap();
    let output = wait(slow);
    attack.expect_complete().unwrap_or_else(|why| panic!("{why}; {}", outcome(&output)));
}
