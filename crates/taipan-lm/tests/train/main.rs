//! Training, and the files it leaves.

mod checkpoint;
mod harness;
mod pretrained;
mod resume;
mod training;
