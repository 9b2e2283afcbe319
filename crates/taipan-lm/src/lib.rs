//! Mamba language models (Gu & Dao 2023) in Hugging Face's file formats.
//!
//! This crate begins with [`Config`], the shape of a model as `config.json` describes it.

mod batch;
mod config;
#[cfg(not(target_family = "wasm"))]
pub mod data;
mod error;
mod tokenizer;

pub use batch::{Batch, IGNORE};
pub use config::{Config, ConfigError};
pub use error::{Error, Result};
pub use tokenizer::{TextStream, Tokenizer};
