//! `mpirun taipan train`, as built with the feature `mpi`, against one process without MPI: equal
//! bytes, and what happens when a process fails. `scripts/test` runs it where there is Open MPI.
#![cfg(all(feature = "mpi", target_os = "linux"))]

mod bytes;
#[path = "../../../taipan-lm/tests/common/empty.rs"]
mod empty;
mod faults;
// Not every function of it is of use here.
#[allow(dead_code)]
#[path = "../train/harness.rs"]
mod harness;
mod refusals;

use std::process::Command;

use harness::Harness;

/// `mpirun` of some processes of a command; more than cores, and by any user.
fn mpirun(ranks: usize, command: &Command) -> Command {
    let mut mpirun = launcher();
    mpirun.args(["-n", &ranks.to_string()]);
    mpirun.arg(command.get_program()).args(command.get_args());
    mpirun.current_dir(command.get_current_dir().expect("each test has a directory"));
    mpirun.env_remove("TAIPAN_LIMITS").env_remove("TAIPAN_ADAPTER");
    mpirun
}

/// `mpirun` without processes.
fn launcher() -> Command {
    let mut mpirun = Command::new("mpirun");
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Of containers, whose processes may not trace each other.
    mpirun.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    mpirun.args(["--oversubscribe", "--bind-to", "none"]);
    mpirun
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
