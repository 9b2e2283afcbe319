//! A small run in a directory of its own.
#![allow(dead_code)] // not every test uses all of it

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use taipan::optim::{Curve, Schedule};
use taipan::{DType, Device};
use taipan_lm::data::{Dataset, Sources, Split};
use taipan_lm::{Config, LanguageModel, LayerKind, Recipe, Ssm, StepReport, Tokenizer, Trainer};
use tempfile::TempDir;

pub struct Run {
    pub directory: TempDir,
    pub config: Config,
    pub dtype: DType,
    pub device: Device,
    pub recipe: Recipe,
}

impl Run {
    pub fn new() -> Run {
        let curve = Curve::Cosine;
        Run {
            directory: tempfile::tempdir().unwrap(),
            config: config(),
            dtype: DType::F32,
            device: Device::Cpu,
            recipe: Recipe {
                batch_size: 2,
                block_size: 16,
                schedule: Schedule { peak: 1e-2, min: 1e-3, warmup: 4, total: 40, curve },
                seed: 7,
                ..Recipe::default()
            },
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn data(&self, text: &str) -> Dataset {
        let split = Split { held_out: 0.2, min_bytes: 60, seed: 3 };
        let texts = [("a", text.to_owned()), ("b", text.replace('e', "a"))];
        let directory = self.path().join("data");
        Dataset::build(&directory, &Sources::texts(texts), &Tokenizer::bytes(), &split).unwrap()
    }

    pub fn model(&self) -> LanguageModel {
        LanguageModel::new(&self.config, self.dtype, 5, &self.device).unwrap()
    }

    pub fn begin(&self) -> Trainer {
        let (data, tokenizer) = (self.data(TEXT), Tokenizer::bytes());
        Trainer::new(self.model(), data, tokenizer, self.recipe.clone()).unwrap()
    }

    /// After a step, with its checkpoint; at most `count` are kept.
    pub fn one_step(&self, count: usize) -> Trainer {
        let mut trainer = self.begin();
        steps(&mut trainer, 1);
        trainer.save_blocking(self.path(), count).unwrap();
        trainer
    }

    pub fn resume(&self) -> taipan_lm::Result<Trainer> {
        let data = Dataset::open(self.path().join("data"))?;
        Trainer::resume(self.path(), data, &self.device, |_| {})
    }

    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path().join(format!("checkpoint-{step}"))
    }

    /// The names in the run's directory that do not belong to the data.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != "data").collect();
        names.sort();
        names
    }
}

/// Names and contents of the files of a directory.
pub fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    paths
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect()
}

pub fn config() -> Config {
    Config {
        vocab_size: 256,
        hidden_size: 16,
        layers: vec![LayerKind::Ssm; 2],
        state_size: 4,
        ssm: Ssm::mamba(1),
        ..Config::default()
    }
}

pub fn steps(trainer: &mut Trainer, count: usize) -> Vec<StepReport> {
    (0..count).map(|_| pollster::block_on(trainer.step()).unwrap()).collect()
}

pub const TEXT: &str = "The wind was a torrent of darkness among the gusty trees, the moon was a \
    ghostly galleon tossed upon cloudy seas, the road was a ribbon of moonlight over the purple \
    moor, and the highwayman came riding, riding, riding, the highwayman came riding, up \
    to the old inn door.";
