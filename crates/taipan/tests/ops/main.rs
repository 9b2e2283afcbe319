//! Every op: one [`Case`](taipan::check::Case) per shape and variant.

// A browser calls the tests itself.
#![cfg_attr(target_family = "wasm", feature(custom_test_frameworks, test))]
#![cfg_attr(target_family = "wasm", test_runner(web::list))]
#![cfg_attr(target_family = "wasm", reexport_test_harness_main = "start")]

#[cfg(target_family = "wasm")]
#[path = "../harness/web.rs"]
mod web;

/// Naive references.
#[path = "../harness/mamba3.rs"]
mod mamba3;

mod attention;
mod binary;
mod cast;
mod conv1d;
mod cross_entropy;
mod custom;
mod dropout;
mod embedding;
mod extremes;
mod gated;
mod gather;
mod int8;
mod layer_norm;
mod layout;
mod linear;
mod linear_cross_entropy;
mod list;
mod losses;
mod mamba3_block;
mod reduce;
mod rms_norm;
mod rope;
mod rotate;
mod sample;
mod scan;
mod select;
mod shapes;
mod softmax;
mod ssd;
mod topk;
mod unary;
mod zero_order_hold;

use taipan::check::naive;
