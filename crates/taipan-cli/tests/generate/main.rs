//! `taipan generate` and `taipan eval`, as built and run, with models of a few thousand parameters.

mod eval;
mod flags;
mod harness;
#[cfg(target_os = "linux")]
mod interactive;
mod output;
mod states;
