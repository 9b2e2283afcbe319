//! The readers of files from elsewhere, each as a function of bytes that must end without a panic,
//! whatever the bytes. The tests and the fuzz targets (`fuzz/`) run the same ones.

use std::sync::OnceLock;

use taipan::{DType, Device};
use taipan_lm::safetensors::Safetensors;
use taipan_lm::torch::TorchFile;
use taipan_lm::{
    CheckpointInfo, Config, Generation, LanguageModel, LayerKind, Preset, Sampler, Snapshot,
    Tokenizer,
};

/// A reader.
pub type Target = fn(&[u8]);

/// By name, which is that of the fuzz target and of its corpus.
pub const TARGETS: [(&str, Target); 6] = [
    ("safetensors", safetensors),
    ("torch", torch),
    ("config", config),
    ("tokenizer", tokenizer),
    ("trainer_json", trainer_json),
    ("state", state),
];

/// A file that is accepted can be read.
fn safetensors(bytes: &[u8]) {
    if let Ok(file) = Safetensors::parse("file", bytes) {
        for name in file.names() {
            file.view(name).unwrap().tensor().unwrap();
        }
    }
}

fn torch(bytes: &[u8]) {
    if let Ok(file) = TorchFile::parse("file", bytes) {
        // Many tensors may have the same bytes.
        for name in file.names().take(20) {
            // A tensor without elements may have a size that overflows with others.
            let (count, tensor) = (file.spec(name).unwrap().1, file.view(name).unwrap().tensor());
            assert!(tensor.is_ok() || count.contains(&0));
        }
        let _ = file.verify();
    }
}

/// A config that is accepted is the same when it is written and read.
fn config(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(config) = Config::from_json(text) {
        config.parameters();
        assert_eq!(Config::from_json(&config.to_json(DType::F32, None)).unwrap(), config);
        if let Ok(original) = config.to_original_json() {
            let mut expected = config;
            expected.init.initializer_range = 0.02;
            assert_eq!(Config::from_json(&original).unwrap(), expected);
        }
    }
}

fn tokenizer(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(tokenizer) = Tokenizer::from_json(text) else { return };
    if let Ok(ids) = tokenizer.encode("the cat, né 12") {
        let _ = tokenizer.decode(&ids);
    }
}

fn trainer_json(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let _ = CheckpointInfo::from_json(text);
}

/// A state that is accepted can be continued, and written and read.
fn state(bytes: &[u8]) {
    let model = model();
    let Ok(snapshot) = Snapshot::parse("file", bytes, model, FINGERPRINT) else { return };
    let mut written = Vec::new();
    let write = snapshot.write(model, FINGERPRINT, |chunk| {
        written.extend_from_slice(chunk);
        Ok(())
    });
    pollster::block_on(write).unwrap();
    Snapshot::parse("file", written, model, FINGERPRINT).unwrap();
    // The tokens of the file may be outside the vocabulary, which only a penalty reads.
    for repetition_penalty in [1.0, 1.5] {
        let sampler = Sampler { repetition_penalty, ..Sampler::default() };
        let generation = Generation::resume(model, sampler, snapshot.clone());
        let _ = generation.and_then(|mut generation| generation.step_blocking());
    }
}

/// The model that states are read for.
pub fn model() -> &'static LanguageModel {
    static MODEL: OnceLock<LanguageModel> = OnceLock::new();
    MODEL.get_or_init(small_model)
}

/// What the states of the corpus say of their model, and the model.
pub const FINGERPRINT: &str = "a model";

pub fn small_model() -> LanguageModel {
    let config = Config {
        hidden_size: 4,
        layers: vec![LayerKind::Ssm; 1],
        state_size: 2,
        conv_kernel: 2,
        ..Preset::Tiny.config(5)
    };
    LanguageModel::new(&config, DType::F32, 1, &Device::Cpu).unwrap()
}
