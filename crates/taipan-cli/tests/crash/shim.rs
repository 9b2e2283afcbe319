//! `shim.c`, which makes the program's calls fail, and what it is to do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The shim as a library, built once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/shim.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shim.so");
        // Another process of the tests may do the same.
        let built = library.with_extension(std::process::id().to_string());
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&built).arg(source);
        assert!(compiler.status().expect("Rust links with cc").success(), "{compiler:?}");
        std::fs::rename(built, &library).unwrap();
        library
    })
}

/// Have the program started under the shim.
pub fn preload(command: &mut Command) -> &mut Command {
    command.env("LD_PRELOAD", library())
}

pub const EINTR: i32 = 4;
pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;
pub const EDQUOT: i32 = 122;

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The program ends before it.
    Kill,
    /// The program ends after it.
    KillAfter,
    /// Half of what is to be written is.
    Short,
    /// The disk has no more room from within the call on.
    Full,
    /// It waits until the file of this name in the harness is gone.
    Wait(&'static str),
    Fail(i32),
}

impl Action {
    fn name(self) -> String {
        match self {
            Action::Kill => "kill".into(),
            Action::KillAfter => "killed".into(),
            Action::Short => "short".into(),
            Action::Full => "full".into(),
            Action::Wait(_) => "wait".into(),
            Action::Fail(errno) => errno.to_string(),
        }
    }
}

/// An action, and the calls that meet it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub action: Action,
    /// The number of the first call, from 1.
    pub at: usize,
    /// The number of the last one.
    pub until: usize,
    /// How many calls there are from one to the next.
    pub every: usize,
    /// The kinds of calls that are counted; all if this is empty.
    pub only: &'static str,
}

impl Fault {
    pub fn once(action: Action, at: usize) -> Fault {
        Fault { action, at, until: at, every: 1, only: "" }
    }

    pub fn from_then_on(action: Action, at: usize) -> Fault {
        Fault { until: usize::MAX >> 1, ..Fault::once(action, at) }
    }

    /// Let it befall a program.
    pub fn befall(self, command: &mut Command) -> &mut Command {
        if let Action::Wait(file) = self.action {
            command.env("SHIM_WHILE", file);
        }
        preload(command)
            .env("SHIM_DO", self.action.name())
            .env("SHIM_AT", self.at.to_string())
            .env("SHIM_UNTIL", self.until.to_string())
            .env("SHIM_EVERY", self.every.to_string())
            .env("SHIM_ONLY", self.only)
    }
}
