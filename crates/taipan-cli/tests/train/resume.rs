//! A run that was stopped, in whatever way, resumes as if it had not been.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Harness, fail, succeed};

/// Two halves are a whole.
fn halves(test: &str, device: fn(&mut Command) -> &mut Command) {
    let harness = Harness::new(test);
    let settings = ["--steps", "40", "--save-interval", "10", "--keep", "1"];
    succeed(device(harness.train(&settings).args(["--out", "whole"])));
    succeed(device(harness.train(&settings).args(["--out", "halves", "--stop-after", "20"])));
    assert!(harness.path("halves/checkpoint-20").exists());
    succeed(device(&mut harness.bare(&["--resume", "--out", "halves"])));
    harness.assert_same("whole", "halves", 40);
}

#[test]
fn two_halves_are_a_whole_on_the_cpu() {
    halves("halves-cpu", |command| command);
}

#[test]
fn two_halves_are_a_whole_on_a_gpu() {
    if std::env::var("TAIPAN_TEST_GPU").is_ok_and(|value| value == "skip") {
        eprintln!("skipped: TAIPAN_TEST_GPU=skip");
        return;
    }
    halves("halves-gpu", |command| {
        let adapter = std::env::var("TAIPAN_ADAPTER").unwrap_or("llvmpipe".into());
        command.env("TAIPAN_ADAPTER", adapter).args(["--device", "gpu"])
    });
}

/// The random state, and the state of f16's loss scale, are part of a checkpoint.
#[test]
fn two_halves_are_a_whole_in_f16_with_batches_that_are_accumulated() {
    halves("halves-f16", |command| match command.get_args().any(|arg| arg == "--resume") {
        true => command,
        false => command.args(["--dtype", "f16", "--grad-accum", "2", "--schedule", "wsd"]),
    });
}

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program was built")
}

/// The step of the last checkpoint.
fn newest(harness: &Harness, run: &str) -> Option<u64> {
    let entries = std::fs::read_dir(harness.path(run)).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).max()
}

#[test]
fn a_run_that_is_killed_twenty_times_ends_as_one_that_is_not() {
    let harness = Harness::new("killed");
    let settings = ["--steps", "2000", "--eval-interval", "500"];
    succeed(harness.train(&settings).args(["--out", "whole", "--save-interval", "2000"]));
    let mut kills = 0;
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for round in 0..20 {
        let mut command = match harness.path("killed/train.toml").exists() {
            true => harness.bare(&["--resume", "--out", "killed"]),
            false => {
                let begun = harness.path("killed");
                if begun.exists() {
                    std::fs::remove_dir_all(begun).unwrap();
                }
                let mut command = harness.train(&settings);
                command.args(["--out", "killed", "--save-interval", "1"]);
                command
            }
        };
        // xorshift, Marsaglia 2003
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let before = newest(&harness, "killed");
        let mut child = spawn(&mut command);
        // Every other time it is to have come further, so that it is killed while it steps and
        // saves.
        while round % 2 == 1
            && newest(&harness, "killed") == before
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random % 100_000));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        // It was killed, or had come to its end; nothing else may end it.
        let fine = output.status.code().is_none_or(|code| code == 0);
        assert!(fine, "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        kills += usize::from(output.status.code().is_none());
    }
    assert!(kills >= 10, "killed only {kills} times before the end");
    assert!(newest(&harness, "killed").is_some(), "no checkpoint in {kills} lives");
    succeed(&mut harness.bare(&["--resume", "--out", "killed", "--save-interval", "2000"]));
    harness.assert_same("whole", "killed", 2000);
    let steps: Vec<_> = harness.metrics("killed").iter().map(|row| row["step"].as_u64()).collect();
    let whole: Vec<_> = harness.metrics("whole").iter().map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps, whole, "every step is measured once");
    let names = std::fs::read_dir(harness.path("killed")).unwrap();
    let names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.contains(".tmp-")), "{names:?}");
}

#[test]
fn a_kill_after_a_checkpoint_loses_only_what_came_after_it() {
    let harness = Harness::new("kill-20");
    let slow = ["--d-model", "64", "--n-layer", "2", "--batch-size", "8", "--block-size", "128"];
    let settings = ["--save-interval", "20", "--eval-interval", "40"];
    succeed(harness.train(&slow).args(settings).args(["--out", "whole"]));
    let mut child = spawn(harness.train(&slow).args(settings).args(["--out", "killed"]));
    while !harness.path("killed/checkpoint-20").exists() {
        assert!(child.try_wait().unwrap().is_none(), "{:?}", child.wait_with_output());
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!harness.path("killed/checkpoint-40").exists(), "killed too late to tell");
    succeed(&mut harness.bare(&["--resume", "--out", "killed"]));
    harness.assert_same("whole", "killed", 40);
}

#[test]
#[cfg(unix)]
fn a_full_disk_is_an_error_that_leaves_the_checkpoint() {
    let harness = Harness::new("full");
    succeed(harness.train(&["--out", "whole"]).args(["--eval-interval", "20"]));
    let settings = ["--out", "full", "--stop-after", "15", "--eval-interval", "20"];
    succeed(&mut harness.train(&settings));
    // No file may have more than 8 blocks of 512 or 1024 bytes: the system refuses to write, as it
    // does where there is no room.
    let mut limited = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_taipan");
    limited.current_dir(harness.path("")).args([
        "-c",
        "trap '' XFSZ; ulimit -f 8; exec \"$@\"",
        "sh",
    ]);
    let error = fail(limited.args([program, "train", "--resume", "--out", "full"]), 1);
    assert!(error.contains("full/checkpoint-16"), "{error}");
    assert!(error.contains("File too large"), "{error}");
    let way =
        "full/checkpoint-15 is complete; to resume from it: taipan train --resume --out full\n";
    assert!(error.contains(way), "{error}");
    succeed(&mut harness.bare(&["--resume", "--out", "full"]));
    harness.assert_same("whole", "full", 40);
}

#[test]
fn a_run_can_be_made_longer_and_a_finished_one_only_written_again() {
    let harness = Harness::new("longer");
    succeed(&mut harness.train(&["--steps", "4"]));
    std::fs::remove_file(harness.path("run/model.safetensors")).unwrap();
    succeed(&mut harness.bare(&["--resume", "--out", "run"]));
    assert_eq!(
        harness.read("run/model.safetensors"),
        harness.read("run/checkpoint-4/model.safetensors")
    );
    succeed(&mut harness.bare(&["--resume", "--out", "run", "--steps", "6"]));
    assert!(harness.path("run/checkpoint-6").exists());
    assert!(harness.text("run/train.toml").contains("\nsteps = 6\n"));
    // A schedule of 4 steps would have ended: with the lowest rate, a tenth of the highest.
    let rows = harness.metrics("run");
    let lr = |step: u64| rows.iter().find(|row| row["step"] == step).unwrap()["lr"].as_f64();
    assert!(lr(5) > lr(6) && lr(6) > Some(3.1e-4), "{:?} {:?}", lr(5), lr(6));
}
