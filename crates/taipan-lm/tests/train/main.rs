//! Training, and the files it leaves.

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../taipan/tests/harness/devices.rs"]
mod devices;
mod harness;
mod pretrained;
mod resume;
mod training;
