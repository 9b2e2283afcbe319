//! `taipan train`, as built and run, with models of a few thousand parameters.

#[path = "../../../taipan-lm/tests/common/empty.rs"]
mod empty;
mod errors;
mod families;
mod flags;
mod harness;
mod lr_find;
mod output;
mod resume;
#[cfg(unix)]
mod signals;
mod surroundings;
#[cfg(target_os = "linux")]
mod terminal;
mod text;
// Not every function of it is of use here.
#[allow(dead_code)]
#[path = "../crash/tree.rs"]
mod tree;
