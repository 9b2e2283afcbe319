//! `mpirun taipan train`, as built with the feature `mpi`, against one process without MPI: equal
//! bytes, and what happens when a process fails. `scripts/test` runs it where there is Open MPI; for
//! MPICH see CONTRIBUTING.md.
#![cfg(all(feature = "mpi", target_os = "linux"))]

mod bytes;
#[path = "../../../taipan-lm/tests/common/empty.rs"]
mod empty;
mod faults;
// Not every function of it is of use here.
#[allow(dead_code)]
#[path = "../train/harness.rs"]
mod harness;
mod nodes;
mod refusals;

use std::process::Command;
use std::sync::OnceLock;

use harness::Harness;

/// `mpirun` of some processes of a command.
fn mpirun(ranks: usize, command: &Command) -> Command {
    started(launcher(), ranks, command)
}

/// Add some processes of a command to a launcher.
fn started(mut launcher: Command, ranks: usize, command: &Command) -> Command {
    launcher.args(["-n", &ranks.to_string()]);
    launcher.arg(command.get_program()).args(command.get_args());
    launcher.current_dir(command.get_current_dir().expect("each test has a directory"));
    launcher
}

/// A library and its launcher.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Library {
    OpenMpi,
    Mpich,
}

/// `mpirun`, or what `TAIPAN_TEST_MPIRUN` names; it must be of the library that the program was
/// built with.
fn program() -> String {
    std::env::var("TAIPAN_TEST_MPIRUN").unwrap_or("mpirun".into())
}

/// Whose launcher it is.
fn library() -> Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let output = Command::new(program()).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", program()));
        let version = String::from_utf8_lossy(&output.stdout);
        match version.lines().next().unwrap_or_default() {
            line if line.contains("Open MPI") => Library::OpenMpi,
            line if line.contains("HYDRA") => Library::Mpich,
            other => panic!("{} is neither of Open MPI nor of MPICH: {other}", program()),
        }
    })
}

/// The launcher without processes, of which there may be more than cores, and by any user.
fn launcher() -> Command {
    let mut launcher = Command::new(program());
    launcher.env_remove("TAIPAN_LIMITS").env_remove("TAIPAN_ADAPTER");
    if library() == Library::OpenMpi {
        launcher.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // Of containers, whose processes may not trace each other.
        launcher.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        launcher.args(["--oversubscribe", "--bind-to", "none"]);
    }
    launcher
}

/// Two texts, between which nothing is predicted: batches have unequal numbers of targets.
fn harness(test: &str) -> Harness {
    let harness = Harness::new(&format!("mpi-{test}"));
    harness.write("more", "One line.\n".repeat(40));
    harness
}

/// A few steps of 12 small batches.
const SMALL: [&str; 14] = [
    "text",
    "more",
    "--grad-accum",
    "12",
    "--steps",
    "6",
    "--batch-size",
    "1",
    "--block-size",
    "12",
    "--save-interval",
    "2",
    "--eval-interval",
    "3",
];
