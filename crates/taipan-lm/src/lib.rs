//! Mamba language models (Gu & Dao 2023) in Hugging Face's file formats.
//!
//! This crate begins with [`Config`], the shape of a model as `config.json` describes it.

mod config;

pub use config::{Config, ConfigError};
