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
use taipan_lm::{AttentionConfig, Config, Generation, LanguageModel, LayerKind, Preset};

/// A model with random weights, large enough that its predictions differ.
fn model(dtype: DType, seed: u64, device: &Device) -> LanguageModel {
    let config = Config {
        hidden_size: 16,
        layers: vec![LayerKind::Ssm; 2],
        state_size: 4,
        tie_word_embeddings: false,
        ..Preset::Tiny.config(300)
    };
    random(&config, dtype, seed, device)
}

/// The same of a model with attention, which knows of positions.
fn hybrid(dtype: DType, seed: u64, device: &Device) -> LanguageModel {
    let attention = AttentionConfig { rope_theta: Some(1e4), ..AttentionConfig::new(4, 2, 6) };
    let config = Config {
        hidden_size: 16,
        layers: vec![LayerKind::Attention, LayerKind::Ssm],
        attention: Some(attention),
        tie_word_embeddings: false,
        ..Preset::HybridTiny.config(300)
    };
    random(&config, dtype, seed, device)
}

fn random(config: &Config, dtype: DType, seed: u64, device: &Device) -> LanguageModel {
    let mut model = LanguageModel::new(config, dtype, seed, device).unwrap();
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
