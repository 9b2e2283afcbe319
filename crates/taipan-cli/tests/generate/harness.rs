//! What the tests share: a directory with a model, and the program.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use taipan::nn::Module;
use taipan::{DType, Device};
use taipan_lm::{Config, LanguageModel, LayerKind, Preset, Tokenizer};

use crate::empty;

/// A directory of one test, with a model of bytes in `model`.
pub struct Harness(PathBuf);

/// A small model with random weights, large enough that its predictions differ.
pub fn model(vocab_size: usize, seed: u64) -> LanguageModel {
    let config = Config {
        hidden_size: 16,
        layers: vec![LayerKind::Ssm; 2],
        state_size: 4,
        tie_word_embeddings: false,
        ..Preset::Tiny.config(vocab_size)
    };
    let mut model = LanguageModel::new(&config, DType::F32, seed, &Device::Cpu).unwrap();
    for (name, parameter) in model.parameters_mut() {
        if name == "lm_head.weight" {
            *parameter = parameter.scale(40.0).unwrap().detached();
        }
    }
    model
}

impl Harness {
    pub fn new(test: &str) -> Harness {
        let harness = Harness(empty::directory("generate", test));
        // More rows than bytes: those are padding.
        harness.save("model", &model(300, 1));
        harness
    }

    pub fn save(&self, name: &str, model: &LanguageModel) {
        model.save_pretrained(self.path(name), &Tokenizer::bytes()).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    /// `taipan` here, with a standard input that is empty.
    pub fn taipan(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
        command.current_dir(&self.0).args(arguments).stdin(Stdio::null());
        command.env_remove("TAIPAN_LIMITS").env_remove("TAIPAN_ADAPTER");
        command.env("RAYON_NUM_THREADS", "1");
        command
    }

    /// `taipan generate model`, with these arguments as well.
    pub fn generate(&self, arguments: &[&str]) -> Command {
        self.taipan(&[&["generate", "model"], arguments].concat())
    }

    /// The JSON objects that it prints.
    pub fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let text = succeed(&mut self.generate(&[arguments, &["--json"]].concat()));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The tokens of the one text that it generates.
    pub fn ids(&self, arguments: &[&str]) -> Vec<u64> {
        let texts = self.json(arguments);
        assert_eq!(texts.len(), 1);
        numbers(&texts[0]["ids"])
    }
}

pub fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// Run it, and expect success: its standard output and standard error.
pub fn run(command: &mut Command) -> (Vec<u8>, String) {
    let output = command.output().expect("the program was built");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{command:?}: {stderr}");
    (output.stdout, stderr)
}

/// The same, for output that is text.
pub fn succeed(command: &mut Command) -> String {
    String::from_utf8(run(command).0).unwrap()
}

/// Run it, expect a failure with this code, and return its standard error.
pub fn fail(command: &mut Command, code: i32) -> String {
    let output = command.output().expect("the program was built");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    stderr
}

/// Run it with this on its standard input.
pub fn feed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}
