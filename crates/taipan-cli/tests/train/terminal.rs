//! A run whose output goes nowhere: a terminal that is closed, a pipe that nobody reads.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Harness, fail, succeed};

/// Both ends of a terminal: what a terminal program has, and what its shell has.
fn pty() -> (OwnedFd, OwnedFd) {
    let (mut master, mut slave) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the call writes two file descriptors to places that outlive it, and takes null for
    // the rest.
    let opened =
        unsafe { libc::openpty(&mut master, &mut slave, none, none as *const _, none as *const _) };
    assert_eq!(opened, 0);
    for end in [master, slave] {
        // SAFETY: a plain call on a file descriptor that is open. Programs that are started are not
        // to have it.
        assert_eq!(unsafe { libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    }
    // SAFETY: the two are open and nobody else's.
    unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
}

/// Wait until a file of the harness has some lines.
fn wait_for_lines(harness: &Harness, name: &str, lines: usize, child: &mut Child) {
    let count = || fs::read_to_string(harness.path(name)).unwrap_or_default().lines().count();
    while count() < lines {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Wait for the end, but not for ever.
fn wait(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if began.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A run long enough to do something to it.
fn long(harness: &Harness) -> Command {
    harness.train(&["--steps", "3000", "--log-interval", "1", "--eval-interval", "3000"])
}

#[test]
fn a_terminal_that_is_closed_does_not_end_a_run() {
    let harness = Harness::new("terminal");
    succeed(long(&harness).args(["--out", "whole"]));
    let (master, slave) = pty();
    let mut command = long(&harness);
    command.stdout(slave.try_clone().unwrap()).stderr(slave);
    let mut child = command.spawn().unwrap();
    drop(command);
    wait_for_lines(&harness, "run/metrics.jsonl", 5, &mut child);
    drop(master);
    assert_eq!(wait(&mut child), Some(0));
    harness.assert_same("whole", "run", 3000);
    let warnings = harness.text("run/warnings.log");
    let expected =
        "standard output: Input/output error (os error 5); the run continues without it\n";
    assert_eq!(warnings, expected, "said once");
}

#[test]
fn a_hang_up_saves_and_ends_the_run() {
    let harness = Harness::new("hang-up");
    let (master, slave) = pty();
    let mut command = harness.train(&["--steps", "1000000", "--log-interval", "1"]);
    let terminal = slave.as_raw_fd();
    // SAFETY: between fork and exec only these two calls are made, and both may be made there.
    unsafe {
        command.pre_exec(move || {
            // The leader of a session with this terminal is told when it goes.
            let led = libc::setsid() >= 0 && libc::ioctl(terminal, libc::TIOCSCTTY, 0) == 0;
            if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap());
    command.stderr(slave.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    drop((command, slave));
    wait_for_lines(&harness, "run/metrics.jsonl", 5, &mut child);
    drop(master);
    assert_eq!(wait(&mut child), Some(130));
    let step = harness.metrics("run").last().unwrap()["step"].as_u64().unwrap();
    assert!(harness.path(&format!("run/checkpoint-{step}")).exists(), "{step}");
    let next = (step + 1).to_string();
    succeed(&mut harness.bare(&["--resume", "--out", "run", "--stop-after", &next]));
}

#[test]
fn a_full_pipe_that_does_not_block_does_not_end_a_run() {
    let harness = Harness::new("full-pipe");
    succeed(long(&harness).args(["--out", "whole"]));
    let (_reader, writer) = full_pipe(true);
    let mut command = long(&harness);
    let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(wait(&mut child), Some(0));
    harness.assert_same("whole", "run", 3000);
    let warnings = harness.text("run/warnings.log");
    assert!(
        warnings.starts_with("standard output: ") && warnings.lines().count() <= 2,
        "{warnings}"
    );
}

#[test]
fn a_reader_that_does_not_read_does_not_stop_a_run() {
    let harness = Harness::new("unread-pipe");
    let (mut reader, writer) = full_pipe(false);
    let mut command = long(&harness);
    let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    drop(command);
    let began = Instant::now();
    while !harness.path("run/model.safetensors").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "it waits for its reader");
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What it has to say in the end, it says when somebody listens.
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert_eq!(wait(&mut child), Some(0));
    let text = String::from_utf8(text).unwrap();
    assert!(text.trim_start_matches('x').contains("\nto resume   taipan train --resume"), "{text}");
    let warning = "standard output: nobody reads it; the run continues without it\n";
    assert_eq!(harness.text("run/warnings.log"), warning);
}

/// A pipe that has no room left.
fn full_pipe(nonblocking: bool) -> (std::io::PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = |flags: libc::c_int| {
        // SAFETY: a plain call on a file descriptor that is open.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) }, 0);
    };
    flags(libc::O_NONBLOCK);
    let mut writer_file = File::from(OwnedFd::from(writer.try_clone().unwrap()));
    while match writer_file.write(&[b'x'; 512]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    } {}
    if !nonblocking {
        flags(0);
    }
    (reader, writer.into())
}

#[test]
fn a_log_on_a_full_disk_does_not_end_a_run() {
    let harness = Harness::new("full-log");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut child = long(&harness).stdout(full()).stderr(full()).spawn().unwrap();
    assert_eq!(wait(&mut child), Some(0));
    let warnings = harness.text("run/warnings.log");
    assert!(warnings.contains("No space left on device"), "{warnings}");
    // A failure of the program itself still is one.
    fail(&mut harness.bare(&["no-such-file"]), 1);
}
