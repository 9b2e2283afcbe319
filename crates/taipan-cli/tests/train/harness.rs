//! What the tests share: a directory, a training text, and the program.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::empty;

/// A directory of one test, empty at first, with a training text.
pub struct Harness(PathBuf);

impl Harness {
    pub fn new(test: &str) -> Harness {
        let harness = Harness(empty::directory("train", test));
        let line = |i: u32| format!("{i} times {} is {}\n", i % 7, i * (i % 7));
        harness.write("text", (0..1000).map(line).collect::<String>());
        harness
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// `taipan train` here, with these arguments only.
    pub fn bare(&self, arguments: &[&str]) -> Command {
        self.program(&[&["train"], arguments].concat())
    }

    /// `taipan` here.
    pub fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
        command.current_dir(&self.0).args(arguments);
        command.env_remove("TAIPAN_LIMITS").env_remove("TAIPAN_ADAPTER");
        command
    }

    /// Trains a small model on the text in the directory `run`; the arguments override its
    /// settings.
    pub fn train(&self, arguments: &[&str]) -> Command {
        let config = "files = ['text']\nout = 'run'\nd-model = 16\nn-layer = 1\nd-state = 4\n\
                      steps = 40\nbatch-size = 2\nblock-size = 16\neval-tokens = 256\n\
                      sample-tokens = 0\nthreads = 1\ndevice = 'cpu'\n";
        self.write("small.toml", config);
        let mut command = self.bare(&["--config", "small.toml"]);
        command.args(arguments);
        command
    }

    /// The rows of a run's metrics.
    pub fn metrics(&self, run: &str) -> Vec<Value> {
        let text = self.text(&format!("{run}/metrics.jsonl"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Both runs have left the same model, the same last checkpoint and the same metrics, to the
    /// bit.
    pub fn assert_same(&self, one: &str, other: &str, step: u64) {
        let checkpoint = format!("checkpoint-{step}");
        let files = ["model.safetensors", "trainer.safetensors", "trainer.json", "config.json"];
        let files = files.iter().map(|file| format!("{checkpoint}/{file}"));
        let others = ["model.safetensors", "tokenizer.json", "metrics.jsonl"].map(String::from);
        for file in files.chain(others) {
            let same = self.read(&format!("{one}/{file}")) == self.read(&format!("{other}/{file}"));
            assert!(same, "{file} of {one} and {other}");
        }
    }
}

/// Run it to its end.
pub fn run(command: &mut Command) -> Output {
    command.output().expect("the program was built")
}

/// Run it, and expect success.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Run it, expect a failure with this code, and return its standard error.
pub fn fail(command: &mut Command, code: i32) -> String {
    let output = run(command);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    stderr
}
