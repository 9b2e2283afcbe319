//! Ctrl-C at moments at which it may get lost.

use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use crate::attack::{
    Attack, Start, end, expect_success, outcome, random, settings, spawn, until, wait,
};
use crate::harness::Harness;
use crate::shim::{Action, Fault, preload};
use crate::tree::Tree;

fn interrupt(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}

/// The program has ended in order, and says that it was a signal that ended it.
fn expect_interrupted(output: &Output) -> Result<(), String> {
    if output.status.code() == Some(130) { Ok(()) } else { Err(outcome(output)) }
}

/// The program has saved its last step, and resumes from there.
fn expect_saved(harness: &Harness) -> u64 {
    let step = harness.metrics("run").last().unwrap()["step"].as_u64().unwrap();
    assert_eq!(Tree::read(&harness.path("run")).checkpoints().max(), Some(step));
    let saved = harness.read(&format!("run/checkpoint-{step}/model.safetensors"));
    assert!(saved == harness.read("run/model.safetensors"), "the model of step {step}");
    let next = (step + 1).to_string();
    let resume = ["--resume", "--out", "run", "--stop-after", &next, "--threads", "1"];
    expect_success(&end(preload(&mut harness.bare(&resume)))).unwrap();
    assert!(harness.path(&format!("run/checkpoint-{next}")).exists());
    step
}

#[test]
fn a_signal_during_a_save_is_not_lost() {
    let attack = Attack::new("signal-save");
    let calls = attack.all_calls(Start::Nothing, "");
    for (begins, ends) in [
        ("fsync checkpoint-6", "/model.safetensors"),
        ("rename checkpoint-12", ""),
        ("rename loss.svg", ""),
        ("write metrics.jsonl", ""),
        // When later ones make it superfluous.
        ("unlink checkpoint-3", ""),
        ("rmdir checkpoint-3", ""),
    ] {
        let is_it = |call: &String| call.starts_with(begins) && call.ends_with(ends);
        let at = 1 + calls.iter().rposition(is_it).unwrap();
        let moment = &calls[at - 1];
        attack.harness.write("go", "");
        let _ = std::fs::remove_dir_all(attack.harness.path("run"));
        let mut command = attack.harness.train(&settings("1000000", "2"));
        let fault = Fault::once(Action::Wait("go"), at);
        let mut child = spawn(fault.befall(attack.count(&mut command)));
        until(&mut child, "the call", || attack.calls().len() >= at);
        interrupt(&child);
        // Nothing says when it was noted.
        std::thread::sleep(Duration::from_millis(20));
        std::fs::remove_file(attack.harness.path("go")).unwrap();
        let began = Instant::now();
        expect_interrupted(&wait(child)).unwrap_or_else(|why| panic!("{moment}: {why}"));
        assert!(began.elapsed() < Duration::from_secs(20), "{moment}: {:?}", began.elapsed());
        let step = expect_saved(&attack.harness);
        assert!(step < 1000, "{moment}: went on to step {step}");
    }
}

#[test]
fn a_signal_during_an_evaluation_is_not_lost() {
    let harness = Harness::new("crash-signal-evaluation");
    let mut random = random(0x2545_f491_4f6c_dd1d);
    for round in 0..6 {
        let _ = std::fs::remove_dir_all(harness.path("run"));
        // `small.toml` says how many tokens an evaluation has; here all of half of the text.
        let arguments =
            ["--val-fraction", "0.5", "--eval-tokens", "1000000", "--log-interval", "1"];
        let mut command = harness.train(&["--steps", "1000000", "--eval-interval", "1"]);
        let mut child = spawn(preload(command.args(arguments)));
        let has_rows = |count: usize| {
            let text = std::fs::read_to_string(harness.path("run/metrics.jsonl"));
            text.is_ok_and(|text| text.lines().count() >= count)
        };
        until(&mut child, "a row", || has_rows(2));
        std::thread::sleep(Duration::from_millis(random(100) as u64));
        interrupt(&child);
        let before = harness.metrics("run").last().unwrap()["step"].as_u64().unwrap();
        let began = Instant::now();
        expect_interrupted(&wait(child)).unwrap_or_else(|why| panic!("round {round}: {why}"));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let step = harness.metrics("run").last().unwrap()["step"].as_u64().unwrap();
        // That which was under way and some more: a busy machine may take its time to deliver it.
        assert!(step <= before + 50, "round {round}: interrupted at {before}, went on to {step}");
        expect_saved(&harness);
    }
}
