//! Generating text, states in files, and scoring text, with models of a few thousand parameters.

mod cache;
#[path = "../common/empty.rs"]
mod empty;
mod evaluate;
mod generation;
mod snapshot;
mod text;

use std::path::PathBuf;

use taipan::nn::Module;
use taipan::{DType, Device};
use taipan_lm::{Config, Generation, LanguageModel, Preset};

/// A model with random weights, large enough that its predictions differ.
fn model(dtype: DType, seed: u64, device: &Device) -> LanguageModel {
    let config = Config {
        hidden_size: 16,
        num_hidden_layers: 2,
        state_size: 4,
        tie_word_embeddings: false,
        ..Preset::Tiny.config(300)
    };
    let mut model = LanguageModel::new(&config, dtype, seed, device).unwrap();
    for (name, parameter) in model.parameters_mut() {
        if name == "lm_head.weight" {
            *parameter = parameter.scale(40.0).unwrap().detached();
        }
    }
    model
}

fn fingerprint(model: &LanguageModel) -> String {
    pollster::block_on(model.fingerprint()).unwrap()
}

/// A prompt in which nothing repeats.
fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| i.wrapping_mul(2654435761) >> 8).map(|i| i % 300).collect()
}

fn steps(generation: &mut Generation, count: usize) -> Vec<Vec<u32>> {
    (0..count).map(|_| generation.step_blocking().unwrap()).collect()
}

/// A directory of one test, empty at first.
fn directory(test: &str) -> PathBuf {
    empty::directory("generate", test)
}
