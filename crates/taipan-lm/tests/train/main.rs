//! Training, and the files it leaves.

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod harness;
mod pretrained;
mod resume;
mod training;
