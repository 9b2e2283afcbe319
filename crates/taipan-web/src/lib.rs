//! taipan for browsers: a `Session` holds a model on a device, and everything is asked of it by
//! JavaScript, which is in `js/`. All values but bytes are passed as JSON.
//!
//! The crate is empty elsewhere than on the web. `scripts/web` builds the npm package.

#![cfg(target_family = "wasm")]

mod failure;
mod look;
mod session;
mod talk;
mod train;

pub use session::Session;
