//! Ctrl-C and other signals that end a program.

use crate::Failure;
use std::sync::atomic::{AtomicU8, Ordering};

/// There is nothing to save: a signal ends the program.
const IDLE: u8 = 0;
/// A signal requests a stop.
const RUNNING: u8 = 1;
/// A stop was requested: the next signal ends the program.
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// The exit code of a program that SIGINT ended, by the shell's convention.
pub const INTERRUPTED: i32 = 130;

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

/// From now on there is something to stop in order.
pub fn begin() {
    STATE.store(RUNNING, Ordering::SeqCst);
}

/// From now on a signal ends the program.
pub fn end() {
    STATE.store(IDLE, Ordering::SeqCst);
}

/// Whether what began is to stop.
pub fn requested() -> bool {
    STATE.load(Ordering::SeqCst) == STOPPING
}
