//! Whether a device computes what it should. `taipan doctor` and the page show what is found:
//!
//! - [`Row`]: an op in a type against f64, value and gradient, and its bits in other runs;
//! - [`builtins`]: `exp2` and `tanh` of an adapter, which WGSL leaves to it;
//! - [`training`]: twenty steps against the losses they should have.
//!
//! Everything but a comparison on the CPU is `async`, because a browser cannot wait.

mod builtins;
mod ops;
mod training;
#[cfg(target_family = "wasm")]
mod web;

use serde::Serialize;

pub use builtins::builtins;
pub use ops::{Row, Target, determinism, memory};
pub use training::training;

/// Something besides the ops.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub passed: bool,
    /// What is the case, in words.
    pub found: String,
}

impl Check {
    /// An error is found too.
    fn new<E: ToString>(name: &'static str, found: Result<(bool, String), E>) -> Check {
        let (passed, found) = found.unwrap_or_else(|error| (false, error.to_string()));
        Check { name, passed, found }
    }
}

/// Whether all of these passed, and a line that says so.
pub fn verdict(rows: &[Row], checks: &[Check]) -> (bool, String) {
    let results = rows.iter().map(|row| row.passed).chain(checks.iter().map(|check| check.passed));
    let (all, failed) = (results.clone().count(), results.filter(|passed| !passed).count());
    let verdict = match failed {
        0 => format!("all {all} checks passed"),
        failed => format!("{failed} of {all} checks failed"),
    };
    (failed == 0, verdict)
}
