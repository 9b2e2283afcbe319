//! Ctrl-C and other signals that end a program.

use crate::Failure;
use std::sync::atomic::{AtomicU8, Ordering};

/// There is nothing to save yet: a signal ends the program.
const PREPARING: u8 = 0;
/// A signal requests a stop.
const RUNNING: u8 = 1;
/// A stop was requested: the next signal ends the program.
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(PREPARING);

/// The exit code of a program that SIGINT ended, by the shell's convention.
const INTERRUPTED: i32 = 130;

/// Handle signals from now on.
pub fn listen() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let before = STATE.compare_exchange(RUNNING, STOPPING, Ordering::SeqCst, Ordering::SeqCst);
        if before.is_err() {
            std::process::exit(INTERRUPTED);
        }
    })
    .map_err(|error| format!("signals: {error}").into())
}

/// From now on there is something to save.
pub fn begin() {
    STATE.store(RUNNING, Ordering::SeqCst);
}

/// Whether the run is to stop.
pub fn requested() -> bool {
    STATE.load(Ordering::SeqCst) == STOPPING
}
