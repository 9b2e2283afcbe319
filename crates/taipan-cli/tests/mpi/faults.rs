//! Processes that end before the others.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Harness, succeed};
use crate::{Library, harness, launcher, library, mpirun};

/// The processes of a run, by rank.
pub fn processes(out: &str) -> Vec<(usize, u32)> {
    let variable_of_rank = match library() {
        Library::OpenMpi => "OMPI_COMM_WORLD_RANK=",
        Library::Mpich => "PMI_RANK=",
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let (command, environment) = (read("cmdline"), read("environ"));
        let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let is_ours = program.ends_with(b"/taipan")
            && command.split(|byte| *byte == 0).any(|argument| argument == out.as_bytes());
        let rank = environment.split(|byte| *byte == 0).find_map(|variable| {
            let text = std::str::from_utf8(variable).ok()?;
            text.strip_prefix(variable_of_rank)?.parse().ok()
        });
        if let Some(rank) = rank.filter(|_| is_ours) {
            found.push((rank, id));
        }
    }
    found.sort_unstable();
    found
}

/// Its standard output is the file `stdout` of its directory.
pub fn spawn(mut command: Command) -> Child {
    let stdout = command.get_current_dir().expect("each test has a directory").join("stdout");
    command.stdout(fs::File::create(stdout).unwrap()).stderr(Stdio::piped());
    command.spawn().expect("mpirun is installed")
}

pub fn kill(signal: &str, id: u32) {
    assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
}

/// The step of the last checkpoint.
fn newest(harness: &Harness, run: &str) -> u64 {
    let Ok(entries) = fs::read_dir(harness.path(run)) else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let steps = names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Wait until it holds, or the process has ended.
pub fn wait_until(child: &mut Child, holds: impl Fn() -> bool) {
    while !holds() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ends within some seconds; its standard error.
pub fn ended(mut child: Child) -> (Option<i32>, String) {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "the job hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_killed_rank_ends_the_job_and_the_run_resumes_to_the_same_bytes() {
    let harness = harness("killed");
    let rounds = std::env::var("TAIPAN_TEST_KILLS").map_or(4, |count| count.parse().unwrap());
    // More than are done before the last kill.
    let steps = 6 * rounds;
    let count = steps.to_string();
    let mut settings = vec!["text", "more", "--grad-accum", "12", "--steps", &count];
    settings.extend(["--batch-size", "1", "--block-size", "8", "--eval-interval", "12"]);
    settings.extend(["--save-interval", "1"]);
    succeed(harness.train(&settings).args(["--out", "whole"]));
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let (mut ranks, mut kills) = (4, 0);
    for round in 0..rounds {
        let before = newest(&harness, "killed");
        let command = match before {
            0 => {
                let _ = fs::remove_dir_all(harness.path("killed"));
                let mut command = harness.train(&settings);
                command.args(["--out", "killed"]);
                command
            }
            _ => harness.bare(&["--resume", "--out", "killed"]),
        };
        // xorshift, Marsaglia 2003
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut child = spawn(mpirun(ranks, &command));
        wait_until(&mut child, || newest(&harness, "killed") > before);
        std::thread::sleep(Duration::from_micros(random % 50_000));
        let victims = processes("killed");
        if let Some((rank, id)) = victims.get(random as usize % victims.len().max(1)) {
            kill("-KILL", *id);
            let (code, stderr) = ended(child);
            if code != Some(0) {
                kills += 1;
                // MPICH's launcher says it elsewhere, and not of which rank: it may be one that the
                // launcher itself has killed after the first.
                let (shown, messages) = match library() {
                    Library::OpenMpi => (stderr, vec![format!("process rank {rank} with PID")]),
                    Library::Mpich => {
                        let ids = victims.iter().map(|(_, id)| format!("PID {id} RUNNING AT "));
                        (harness.text("stdout"), ids.collect())
                    }
                };
                let is_named = messages.iter().any(|message| shown.contains(message));
                assert!(is_named && shown.contains("signal 9"), "{shown}");
            }
        } else {
            assert_eq!(ended(child).0, Some(0), "it had come to its end");
        }
        // Also with one fewer.
        ranks = if round % 2 == 0 { 3 } else { 4 };
    }
    assert!(kills >= rounds / 2, "{kills} kills in {rounds} rounds");
    succeed(&mut mpirun(2, &harness.bare(&["--resume", "--out", "killed"])));
    harness.assert_same("whole", "killed", steps);
}

#[test]
fn an_interrupted_job_saves_first() {
    let harness = harness("interrupted");
    let mut command = harness.train(&["--steps", "1000000", "--grad-accum", "2"]);
    command.args([
        "--save-interval",
        "1000000",
        "--eval-interval",
        "1000000",
        "--log-interval",
        "1",
    ]);
    let mut job = mpirun(2, &command);
    // The seconds that mpirun waits before it asks its processes to end, and again before it kills
    // them.
    job.env("OMPI_MCA_odls_base_sigkill_timeout", "4");
    let mut child = spawn(job);
    let rows = || fs::read_to_string(harness.path("run/metrics.jsonl")).unwrap_or_default();
    wait_until(&mut child, || rows().lines().count() > 5);
    kill("-INT", child.id());
    let (code, stderr) = ended(child);
    // MPICH's launcher may or may not pass the code on.
    assert!(code != Some(0) || library() == Library::Mpich, "{stderr}");
    let step = newest(&harness, "run");
    assert!(step > 0, "a checkpoint: {stderr}");
    let saved = harness.read(&format!("run/checkpoint-{step}/model.safetensors"));
    assert_eq!(saved, harness.read("run/model.safetensors"));
    let next = (step + 1).to_string();
    succeed(&mut harness.bare(&["--resume", "--out", "run", "--stop-after", &next]));
}

/// One process in another directory, where there is no run.
#[test]
fn a_rank_that_fails_ends_the_job_with_one_message() {
    let harness = harness("elsewhere");
    fs::create_dir(harness.path("other")).unwrap();
    let command = harness.train(&["--grad-accum", "2", "--out", "run"]);
    fs::copy(harness.path("small.toml"), harness.path("other/small.toml")).unwrap();
    let program: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let mut job = launcher();
    job.current_dir(harness.path("")).args(["-n", "1"]).args(&program);
    job.args([":", "-n", "1", "-wdir"]).arg(harness.path("other")).args(&program);
    let (code, stderr) = ended(spawn(job));
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(error.starts_with("error: rank 1 on "), "{stderr}");
    assert!(error.contains("all ranks must see the directory of the run, run"), "{stderr}");
}
