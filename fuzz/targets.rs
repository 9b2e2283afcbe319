//! The functions that are fuzzed: those of the tests.

#[path = "../crates/taipan-lm/tests/hostile/targets.rs"]
mod shared;

/// Run the one of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = shared::TARGETS.iter().find(|(known, _)| *known == name).expect("its name");
    target(bytes);
}
