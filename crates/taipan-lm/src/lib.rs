//! Mamba language models (Gu & Dao 2023) in Hugging Face's file formats: the model, training text,
//! and training that can be interrupted at any moment.
//!
//! - [`Config`], [`Preset`]: the shape of a model, from `config.json` or by name. [`LanguageModel`]: the
//!   model, to [train](LanguageModel::loss) and to run.
//! - [`Generation`]: text from a model, token by token, as a [`Sampler`] chooses. [`State`],
//!   [`Snapshot`]: what a model remembers, also in files; `PromptCache`: of prompts. [`Scorer`],
//!   [`WindowScorer`]: how well it predicts text.
//! - [`Inspection`]: what a model makes of a text: step sizes, memory, states, attention.
//! - [`Lora`], [`AdapterFiles`]: small changes of a frozen model, in PEFT's files.
//! - [`Tokenizer`]: text as tokens. `data`: tokens on disk, some of them held out, in a random
//!   order that follows from a seed.
//! - [`Ranks`]: processes that train one model together, by MPI if the feature `mpi` is enabled.
//! - `Trainer`: a run of a `Recipe`; its doc has a complete example. `LanguageModel::from_pretrained` and
//!   `LanguageModel::save_pretrained`: models in Hugging Face's layout. [`safetensors`]: files of tensors.
//!
//! On the web files are in memory: see [`filesystem`]. What needs threads or a disk is absent.

mod atomic;
mod batch;
#[cfg(doctest)]
mod book;
mod checkpoint;
mod checksum;
mod config;
#[cfg(not(target_family = "wasm"))]
mod convert;
pub mod data;
mod error;
mod evaluate;
pub mod filesystem;
#[cfg(not(target_family = "wasm"))]
mod free_memory;
mod generate;
mod inspect;
mod lora;
mod memory;
// Natively it is compared with the machine's file system.
#[cfg(any(test, target_family = "wasm"))]
#[cfg_attr(test, allow(dead_code))]
mod memory_files;
mod model;
mod model_files;
#[cfg(not(target_family = "wasm"))]
mod mounts;
#[cfg(feature = "mpi")]
pub mod mpi;
mod preset;
mod pretrained;
mod random;
mod ranks;
mod recipe;
pub mod safetensors;
mod tokenizer;
#[cfg(not(target_family = "wasm"))]
pub mod torch;
mod train;

pub use atomic::{is_unfinished, remove_unfinished, write_file};
pub use batch::{Batch, IGNORE};
pub use checkpoint::{
    CheckpointInfo, Evaluation, best_checkpoint, checkpoint_step, checkpoints, is_checkpoint_file,
    verify_checkpoint,
};
pub use checksum::checksum;
pub use config::{
    AttentionConfig, Config, Family, Initialization, LayerKind, Layout, Mamba2Norm, Mamba3Config,
    MlpConfig, Multipliers, Ssm, TensorSpec, TimeStepInit,
};
pub use error::{Error, InvalidValue, Result};
pub use evaluate::{Score, Scorer, WindowScorer};
pub use generate::{
    Completion, CompletionOptions, FinishReason, Generation, LogProbs, Sampler, Snapshot, TextUntil,
};
pub use inspect::{
    Attention, AttentionInspection, HALF_LIFE_EDGES, Inspection, LayerInspection, ScanInspection,
};
pub use lora::{AdapterFiles, Lora};
pub use memory::Memory;
pub use model::{Activations, LanguageModel, Parameter, Role, State};
pub use model_files::ModelFiles;
pub use preset::Preset;
pub use pretrained::is_model_file;
pub use ranks::{Ranks, Traffic, check_same, gather};
pub use recipe::Recipe;
pub use tokenizer::{TextStream, Tokenizer};
pub use train::{SaveReport, StepReport, Trainer};
#[cfg(not(target_family = "wasm"))]
pub use {
    convert::Conversion,
    free_memory::free_memory,
    generate::{CacheHit, PromptCache},
    mounts::local_locks,
};
