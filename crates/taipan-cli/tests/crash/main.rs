//! `taipan train` under attack: killed, failed by its disk, disturbed by its twin, its clock and
//! its user, at every moment at which it changes a file. Whatever happens, nothing that was saved
//! is lost, and a run that is resumed ends with the bytes of one that was left in peace.
// The shim replaces functions of glibc.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod attack;
mod clocks;
mod durable;
#[path = "../../../taipan-lm/tests/common/empty.rs"]
mod empty;
mod failing;
// Not every function of it is of use here.
#[allow(dead_code)]
#[path = "../train/harness.rs"]
mod harness;
mod killed;
mod shim;
mod signals;
mod together;
mod tree;
mod vanished;
