//! Ctrl-C, and what a system sends to end a program.

use crate::Failure;
use std::sync::atomic::{AtomicU8, Ordering};

/// Nothing to save yet: a signal ends the program.
const PREPARING: u8 = 0;
/// A signal is noted.
const RUNNING: u8 = 1;
/// It was: the next one ends the program.
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(PREPARING);

/// What a shell gives a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Take care of signals from now on.
pub fn listen() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let noted =
            STATE.compare_exchange(RUNNING, STOPPING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !noted {
            std::process::exit(INTERRUPTED);
        }
    })
    .map_err(|error| format!("signals: {error}").into())
}

/// From now on there is something to save.
pub fn begin() {
    STATE.store(RUNNING, Ordering::SeqCst);
}

/// Whether the user wants the run to end.
pub fn wanted() -> bool {
    STATE.load(Ordering::SeqCst) == STOPPING
}
