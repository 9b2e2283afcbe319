//! Mamba language models (Gu & Dao 2023) in Hugging Face's file formats: the model, training text,
//! and training that can be interrupted at any moment.
//!
//! - [`Config`], [`Preset`]: the shape of a model, from `config.json` or by name. [`Mamba`]: the
//!   model, to [train](Mamba::loss) and to run.
//! - [`Generation`]: text from a model, token by token, as a [`Sampler`] chooses. [`State`],
//!   [`Snapshot`]: what a model remembers, also in files; `PromptCache`: of prompts. [`Scorer`],
//!   [`WindowScorer`]: how well it predicts text.
//! - [`Inspection`]: what a model makes of a text: step sizes, memory, states, hidden attention.
//! - [`Tokenizer`]: text as tokens. `data`: tokens on disk, some of them held out, in a random
//!   order that follows from a seed.
//! - `Trainer`: a run of a `Recipe`; its doc has a complete example. `Mamba::from_pretrained` and
//!   `Mamba::save_pretrained`: models in Hugging Face's layout. [`safetensors`]: files of tensors.
//!
//! What needs a file system is absent on the web.

#[cfg(not(target_family = "wasm"))]
mod atomic;
mod batch;
#[cfg(not(target_family = "wasm"))]
mod checkpoint;
#[cfg(not(target_family = "wasm"))]
mod checksum;
mod config;
#[cfg(not(target_family = "wasm"))]
mod convert;
#[cfg(not(target_family = "wasm"))]
pub mod data;
mod error;
mod evaluate;
#[cfg(not(target_family = "wasm"))]
mod free_memory;
mod generate;
mod inspect;
#[cfg(not(target_family = "wasm"))]
mod memory;
mod model;
#[cfg(not(target_family = "wasm"))]
mod model_files;
#[cfg(not(target_family = "wasm"))]
mod mounts;
mod preset;
#[cfg(not(target_family = "wasm"))]
mod pretrained;
mod random;
#[cfg(not(target_family = "wasm"))]
mod recipe;
pub mod safetensors;
mod tokenizer;
#[cfg(not(target_family = "wasm"))]
pub mod torch;
#[cfg(not(target_family = "wasm"))]
mod train;

pub use batch::{Batch, IGNORE};
pub use config::{Config, Initialization, Layout, TensorSpec, TimeStepInit};
pub use error::{Error, InvalidValue, Result};
pub use evaluate::{Score, Scorer, WindowScorer};
pub use generate::{
    Completion, CompletionOptions, FinishReason, Generation, LogProbs, Sampler, Snapshot, TextUntil,
};
pub use inspect::{Attention, HALF_LIFE_EDGES, Inspection, LayerInspection};
pub use model::{Activations, Mamba, Parameter, Role, State};
pub use preset::Preset;
pub use tokenizer::{TextStream, Tokenizer};
#[cfg(not(target_family = "wasm"))]
pub use {
    atomic::{is_unfinished, remove_unfinished, write_file},
    checkpoint::{CheckpointInfo, Evaluation, best_checkpoint, checkpoints, verify_checkpoint},
    checksum::checksum,
    convert::Conversion,
    free_memory::free_memory,
    generate::{CacheHit, PromptCache},
    memory::Memory,
    model_files::ModelFiles,
    mounts::local_locks,
    recipe::Recipe,
    train::{SaveReport, StepReport, Trainer},
};
