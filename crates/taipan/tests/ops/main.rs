//! Every op: one [`Case`](harness::Case) per shape and variant.

#[path = "../harness/mod.rs"]
mod harness;

mod binary;
mod cast;
mod conv1d;
mod extremes;
mod gated;
mod layout;
mod linear;
mod reduce;
mod rms_norm;
mod softmax;
mod unary;
