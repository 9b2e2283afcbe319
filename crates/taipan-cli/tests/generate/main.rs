//! `taipan generate`, `taipan eval` and `taipan look`, as built and run, with models of a few
//! thousand parameters.

#[path = "../../../taipan-lm/tests/common/empty.rs"]
mod empty;
mod eval;
mod flags;
mod harness;
#[cfg(target_os = "linux")]
mod interactive;
mod look;
mod output;
mod states;
// Not every function of it is of use here.
#[allow(dead_code)]
#[cfg(target_os = "linux")]
#[path = "../common/terminal.rs"]
mod terminal;
