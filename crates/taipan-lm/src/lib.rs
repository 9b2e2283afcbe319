//! Mamba language models (Gu & Dao 2023) in Hugging Face's file formats.
//!
//! This crate begins with [`Config`], the shape of a model as `config.json` describes it.

#[cfg(not(target_family = "wasm"))]
mod atomic;
mod batch;
mod config;
mod error;
mod model;
mod preset;
pub mod safetensors;

pub use batch::{Batch, IGNORE};
pub use config::{Config, ConfigError};
pub use error::{Error, Result};
pub use model::{Activations, Mamba, Parameter, Role, State};
pub use preset::Preset;
