//! Training, and the files it leaves.

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod harness;
mod lora;
mod pretrained;
mod ranks;
mod resume;
mod training;
