//! `taipan convert` and `taipan info` on models of every kind.

#[path = "../../taipan-lm/tests/common/empty.rs"]
mod empty;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn golden(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../taipan-lm/tests/golden");
    directory.join(name).to_str().unwrap().to_owned()
}

/// An empty directory of one test.
fn directory(test: &str) -> PathBuf {
    empty::directory("convert", test)
}

fn taipan(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
    command.current_dir(directory).args(arguments).output().unwrap()
}

fn succeed(directory: &Path, arguments: &[&str]) -> String {
    let output = taipan(directory, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn fail(directory: &Path, arguments: &[&str], code: i32) -> String {
    let output = taipan(directory, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_model_is_shown_with_its_parameters_and_memory() {
    let here = directory("info");
    let text = succeed(&here, &["info", &golden("odd")]);
    // 3 layers of width 19, 45 channels, 7 states, 5 taps; a head of its own.
    let expected = "Mamba, 13497 parameters, 52.7 KiB in f32, Hugging Face's layout\n\
                    3 layers of width 19, 45 channels inside, state 7, Δ of rank 2, convolution \
                    kernel 5, without a bias of the convolution\nvocabulary 37, head untied\n\n";
    assert!(text.starts_with(expected), "{text}");
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let words = |name: &str| row(name).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        words("backbone.layers.*.mixer.in_proj.weight"),
        "backbone.layers.*.mixer.in_proj.weight 3 × [90, 19] f32 5130 20.0 KiB"
    );
    assert_eq!(words("lm_head.weight"), "lm_head.weight [37, 19] f32 703 2.7 KiB");
    assert!(
        text.contains("memory to run it: about ") && text.contains("memory to train it: about ")
    );
    assert!(
        text.contains("odd: 30 tensors with the expected names and shapes, all finite\n"),
        "{text}"
    );

    let original = succeed(&here, &["info", &golden("original/pytorch_model.bin")]);
    assert!(original.contains(" in f32, the original layout\n"), "{original}");
    assert!(original.contains("vocabulary 24, head tied"), "{original}");
    let config = succeed(&here, &["info", &golden("original/config.json")]);
    assert!(config.contains("vocabulary 24, head tied"), "{config}");
}

#[test]
fn a_model_is_converted_there_and_back() {
    let here = directory("round_trip");
    let text = succeed(&here, &["convert", &golden("original"), "hf"]);
    assert!(text.starts_with("hf: f32, ") && text.ends_with(" in 1 file\n"), "{text}");
    let sharded = ["convert", "hf", "sharded", "--max-shard-size", "4kB"];
    assert!(succeed(&here, &sharded).ends_with(" files\n"));
    succeed(&here, &["convert", "sharded", "original", "--layout", "original"]);
    succeed(&here, &["convert", "original/model.safetensors", "again"]);
    for file in ["model.safetensors", "config.json"] {
        let read = |name: &str| std::fs::read(here.join(name).join(file)).unwrap();
        assert!(read("hf") == read("again"), "{file}");
    }

    let text = succeed(&here, &["convert", "hf", "half", "--dtype", "bf16"]);
    assert!(text.starts_with("half: bf16, "), "{text}");
    let text = succeed(&here, &["info", "half"]);
    assert!(text.lines().next().unwrap().contains(" in bf16, "), "{text}");
    let row = text.lines().find(|line| line.contains("mixer.A_log")).unwrap();
    assert!(row.contains(" f32 "), "the recurrence stays in f32: {row}");
}

#[test]
fn what_cannot_be_converted_is_refused() {
    let here = directory("refused");
    succeed(&here, &["convert", &golden("odd"), "out"]);
    let error = fail(&here, &["convert", &golden("odd"), "out"], 1);
    assert_eq!(error, "error: out: not empty, expected a new or empty directory\n");
    let error = fail(&here, &["convert", "nothing", "other"], 1);
    assert!(error.starts_with("error: "), "{error}");
    let error = fail(&here, &["convert", &golden("options"), "other", "--layout", "original"], 1);
    assert!(error.contains("layer_norm_epsilon is 0.01, expected 1e-5"), "{error}");
    fail(&here, &["convert", "out", "other", "--max-shard-size", "2XB"], 2);
    fail(&here, &["convert", "out", "other", "--dtype", "int8"], 2);
    let entries = std::fs::read_dir(&here).unwrap().count();
    assert_eq!(entries, 1, "nothing is left behind");
}

#[test]
fn damage_is_an_error_after_the_rest_was_shown() {
    let here = directory("damage");
    succeed(&here, &["convert", &golden("odd"), "model"]);
    let path = here.join("model/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let mut changed = bytes.clone();
    let end = changed.len();
    changed[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, changed).unwrap();
    let output = taipan(&here, &["info", "model"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "error: model: 1 tensor is not finite: lm_head.weight (1)\n");
    assert!(String::from_utf8(output.stdout).unwrap().contains("vocabulary 37, head untied"));
    std::fs::write(&path, &bytes[..end - 1]).unwrap();
    let error = fail(&here, &["info", "model"], 1);
    assert!(error.starts_with("error: model/model.safetensors: "), "{error}");
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(here.join("model/tokenizer.json"), "{\"a\": \"\u{e9}").unwrap();
    let error = fail(&here, &["info", "model"], 1);
    assert!(error.starts_with("error: model/tokenizer.json: "), "{error}");

    // A byte of a file of torch that nothing reads, but its checksum.
    let [config, weights] = ["config.json", "pytorch_model.bin"]
        .map(|name| std::fs::read(Path::new(&golden("original")).join(name)).unwrap());
    let name = b"/version";
    let at = weights.windows(name.len()).position(|bytes| bytes == name).unwrap();
    let at = at + weights[at..].iter().position(|byte| *byte == b'3').unwrap();
    let mut changed = weights;
    changed[at] = b'4';
    std::fs::create_dir(here.join("torch")).unwrap();
    std::fs::write(here.join("torch/config.json"), config).unwrap();
    std::fs::write(here.join("torch/pytorch_model.bin"), changed).unwrap();
    let error = fail(&here, &["info", "torch"], 1);
    assert!(error.contains("/version is ") && error.contains(", expected "), "{error}");
}
