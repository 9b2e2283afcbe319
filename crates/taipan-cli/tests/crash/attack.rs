//! A short run, what it has to come to, and programs that work on it.

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::harness::Harness;
use crate::shim::{Action, Fault, preload};
use crate::tree::Tree;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a program starts that meets a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// There is no run yet.
    Nothing,
    /// With the checkpoint of step 6.
    HalfWay,
}

/// A run of 12 steps in the directory `run`.
pub struct Attack {
    pub harness: Harness,
    /// How many checkpoints it keeps.
    keep: &'static str,
    /// What it comes to if nothing happens.
    whole: Tree,
    /// All checkpoints that it writes, also those that it removes later.
    checkpoints: Tree,
    /// What it is after 6 steps.
    half: Tree,
}

/// One of [`Attack`]'s runs, with another number of steps.
pub fn settings(steps: &'static str, keep: &'static str) -> [&'static str; 10] {
    let intervals = ["--save-interval", "3", "--eval-interval", "4", "--log-interval", "2"];
    let [a, b, c, d, e, f] = intervals;
    ["--steps", steps, "--keep", keep, a, b, c, d, e, f]
}

impl Attack {
    pub fn new(test: &str) -> Attack {
        Attack::with_keep(test, "2")
    }

    pub fn with_keep(test: &str, keep: &'static str) -> Attack {
        let harness = Harness::new(&format!("crash-{test}"));
        let attack = Attack {
            harness,
            keep,
            whole: Tree::default(),
            checkpoints: Tree::default(),
            half: Tree::default(),
        };
        let run = |command: &mut Command| {
            expect_success(&end(preload(command))).unwrap();
            let tree = Tree::read(&attack.harness.path("run"));
            std::fs::remove_dir_all(attack.harness.path("run")).unwrap();
            tree
        };
        let checkpoints = run(&mut attack.harness.train(&settings("12", "99")));
        let half = run(attack.begin().args(["--stop-after", "6"]));
        let whole = run(&mut attack.begin()).of_the_run_alone();
        Attack { whole, checkpoints, half, ..attack }
    }

    /// Begin the run.
    pub fn begin(&self) -> Command {
        self.harness.train(&settings("12", self.keep))
    }

    pub fn resume(&self) -> Command {
        self.harness.bare(&["--resume", "--out", "run", "--threads", "1"])
    }

    /// Bring the directory to where a program starts, and give that program. Its calls are counted.
    pub fn start(&self, start: Start) -> Command {
        let run = self.harness.path("run");
        if run.exists() {
            std::fs::remove_dir_all(&run).unwrap();
        }
        let mut command = match start {
            Start::Nothing => self.begin(),
            Start::HalfWay => {
                self.half.write(&run);
                self.resume()
            }
        };
        self.count(&mut command);
        command
    }

    /// Have a program's calls counted that change files of the run.
    pub fn count<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let harness = self.harness.path("").canonicalize().unwrap();
        let log = harness.join("calls");
        let _ = std::fs::remove_file(&log);
        preload(command).env("SHIM_DIR", harness.join("run")).env("SHIM_LOG", log)
    }

    /// The calls of the program that was counted last, as `write checkpoint-3/config.json`.
    pub fn calls(&self) -> Vec<String> {
        let run = format!("{}/run", self.harness.path("").canonicalize().unwrap().display());
        let text = std::fs::read_to_string(self.harness.path("calls")).unwrap_or_default();
        text.lines().map(|line| line.replace(&run, "").replace(" /", " ")).collect()
    }

    /// The calls of a program that meets no fault.
    pub fn all_calls(&self, start: Start, only: &str) -> Vec<String> {
        expect_success(&end(self.start(start).env("SHIM_ONLY", only))).unwrap();
        self.calls()
    }

    /// Let each fault happen to a program, continue without it, and fail the test with what went
    /// wrong.
    pub fn sweep(&self, start: Start, faults: impl IntoIterator<Item = Fault>) {
        let (mut failures, mut count) = (String::new(), 0);
        for fault in faults {
            count += 1;
            if let Err(why) = self.meet(start, fault) {
                let calls = self.calls();
                let call = calls.get(fault.at - 1).map_or("no call", String::as_str);
                writeln!(failures, "{:?} at {}, {call}: {why}", fault.action, fault.at).unwrap();
            }
        }
        eprintln!("{count} faults");
        let failed = failures.lines().filter(|line| line.contains(" at ")).count();
        assert!(failures.is_empty(), "{failed} of {count} faults:\n{failures}");
    }

    fn meet(&self, start: Start, fault: Fault) -> Result<(), String> {
        let output = end(fault.befall(&mut self.start(start)));
        let newest = if start == Start::HalfWay { 6 } else { 0 };
        let met = match fault.action {
            Action::Kill | Action::KillAfter => match output.status.signal() {
                Some(9) => Ok(()),
                _ => Err(format!("not killed: {}", outcome(&output))),
            },
            Action::Short | Action::Fail(crate::shim::EINTR) | Action::Wait(_) => {
                expect_success(&output).and_then(|()| self.expect_complete())
            }
            Action::Full => self.expect_reason(&output, crate::shim::ENOSPC),
            Action::Fail(errno) => self.expect_reason(&output, errno),
        };
        met.and_then(|()| self.expect_checkpoints(newest)).and_then(|()| self.recover())
    }

    /// An error that tells what failed and why; or a warning of what the run could do without,
    /// which is put right when it is resumed; or neither, and then nothing is amiss.
    fn expect_reason(&self, output: &Output, errno: i32) -> Result<(), String> {
        let reason = std::io::Error::from_raw_os_error(errno).to_string();
        if output.status.code() == Some(0) {
            let warnings = std::fs::read_to_string(self.harness.path("run/warnings.log"));
            return match warnings {
                Ok(warnings) if warnings.contains(&reason) => Ok(()),
                _ => self.expect_complete().map_err(|why| format!("exit 0, but {why}")),
            };
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let mut lines = stderr.lines();
        let first = lines.next().unwrap_or_default();
        let told_well =
            first.starts_with("error: ") && first.contains("run") && first.contains(&reason);
        let way_back = |line: &str| {
            let rest = " is complete; to resume from it: taipan train --resume --out run";
            let checkpoint = line.strip_prefix("note: ").and_then(|line| line.strip_suffix(rest));
            checkpoint.is_some_and(|checkpoint| self.harness.path(checkpoint).exists())
        };
        match output.status.code() == Some(1) && told_well && lines.all(way_back) {
            true => Ok(()),
            false => Err(format!("expected a reason, found {}", outcome(output))),
        }
    }

    /// Every checkpoint is as it was written, and none is lost.
    pub fn expect_checkpoints(&self, newest: u64) -> Result<(), String> {
        let run = self.harness.path("run");
        let tree = if run.exists() { Tree::read(&run) } else { Tree::default() };
        for step in tree.checkpoints() {
            let name = format!("checkpoint-{step}");
            let compared = tree.below(&name).compare(&self.checkpoints.below(&name));
            compared.map_err(|why| format!("{name}: {why}"))?;
        }
        match tree.checkpoints().max().unwrap_or(0) {
            step if step < newest => Err(format!("the newest checkpoint is {step}, was {newest}")),
            _ => Ok(()),
        }
    }

    /// Go on as a user would, to the end.
    pub fn recover(&self) -> Result<(), String> {
        let mut output = end(preload(&mut self.resume()));
        let nothing = String::from_utf8_lossy(&output.stderr).contains("nothing to resume");
        if nothing {
            output = end(preload(&mut self.begin()));
        }
        let how = if nothing { "begun again" } else { "resumed" };
        let whole = expect_success(&output).and_then(|()| self.expect_complete());
        whole.map_err(|why| format!("{how}: {why}"))
    }

    /// The run has come to its end, and nobody can see that anything happened.
    pub fn expect_complete(&self) -> Result<(), String> {
        Tree::read(&self.harness.path("run")).of_the_run_alone().compare(&self.whole)
    }
}

pub fn spawn(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the program was built")
}

/// Run a program to its end.
pub fn end(command: &mut Command) -> Output {
    wait(spawn(command))
}

/// Wait for the end of a program.
pub fn wait(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("a program hangs: {}", outcome(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

/// Wait until something is so, while a program runs.
pub fn until(child: &mut Child, what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "the program has ended before {what}");
        assert!(began.elapsed() < LIMIT, "a program hangs before {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn expect_success(output: &Output) -> Result<(), String> {
    if output.status.code() == Some(0) { Ok(()) } else { Err(outcome(output)) }
}

/// How a program ended, and what it said.
pub fn outcome(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end())
}

/// Marsaglia's xorshift: numbers below a bound, the same in every run of the tests.
pub fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |bound| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % bound as u64) as usize
    }
}
