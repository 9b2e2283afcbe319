//! Every op: one [`Case`](harness::Case) per shape and variant.

#[path = "../harness/mod.rs"]
mod harness;

mod binary;
mod cast;
mod cross_entropy;
mod embedding;
mod extremes;
mod layout;
mod linear;
mod linear_cross_entropy;
mod reduce;
mod softmax;
mod unary;
