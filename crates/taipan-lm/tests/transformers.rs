//! Models of transformers here, and ours there, with the same logits. Needs Python with torch and
//! transformers, `TAIPAN_PYTHON` or `python3`; without it the test says so and passes, and the
//! values of `golden.rs` are what is left.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use taipan::nn::Module;
use taipan::{DType, Device, Tensor};
use taipan_lm::{
    AttentionConfig, Config, Conversion, Family, LanguageModel, LayerKind, Layout, Mamba2Norm,
    MlpConfig, ModelFiles, Multipliers, Preset, Ssm, Tokenizer,
};

/// Of each sequence, the logits of its last token are compared.
const SEQUENCES: [[u32; 12]; 2] =
    [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]];

/// Says so if there is none.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("TAIPAN_PYTHON").map_or("python3".into(), PathBuf::from);
    let check = Command::new(&python).args(["-c", "import torch, transformers"]).output();
    let found = check.is_ok_and(|output| output.status.success()).then_some(python);
    if found.is_none() {
        eprintln!("skipped: no Python with torch and transformers; TAIPAN_PYTHON names another");
    }
    found
}

/// The logits by directory.
fn logits_there(python: &Path, command: &str, directories: &[PathBuf]) -> Value {
    there(python, [command, &serde_json::to_string(&SEQUENCES).unwrap()], directories)
}

/// What `with_transformers.py` prints.
fn there(python: &Path, arguments: [&str; 2], directories: &[PathBuf]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/with_transformers.py");
    let output =
        Command::new(python).arg(script).args(arguments).args(directories).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn logits_here(model: &LanguageModel) -> Vec<f64> {
    let ids = Tensor::new(SEQUENCES.as_flattened(), &[2, 12], model.device()).unwrap();
    let logits = model.next(&ids, None).unwrap().0;
    logits.cast(DType::F64).unwrap().read_blocking().unwrap()
}

fn assert_close(found: &[f64], expected: &Value, what: &Path) {
    let expected: Vec<f64> = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(found.len(), expected.len(), "{}", what.display());
    let scale = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let error = (found - expected).abs() / scale;
        assert!(error < 2e-5, "{}: {found}, expected {expected}", what.display());
    }
}

/// Texts of several lengths, padded to one, are continued as each of them alone.
#[test]
fn models_of_bytes_generate_in_batches_there() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let config =
        Config { hidden_size: 24, layers: vec![LayerKind::Ssm; 2], ..Preset::Tiny.config(256) };
    let mut model = LanguageModel::new(&config, DType::F32, 3, &Device::Cpu).unwrap();
    for (name, tensor) in model.parameters_mut() {
        // Large enough that one token is far more likely than the others.
        if name.contains("embeddings") {
            *tensor = tensor.scale(40.0).unwrap().detached();
        }
    }
    model.save_pretrained(directory.path(), &Tokenizer::bytes()).unwrap();
    let texts = ["a", "a longer one, né Ā", "two"];
    let arguments = ["generate", &serde_json::to_string(&texts).unwrap()];
    let found = there(&python, arguments, &[directory.path().to_owned()]);
    assert_eq!(found["batched"], found["alone"]);
    for (text, ids) in texts.iter().zip(found["batched"].as_array().unwrap()) {
        let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
        assert!(ids.len() > text.len(), "{text}: {ids:?}");
        assert_eq!(ids[..text.len()], Tokenizer::bytes().encode(text).unwrap(), "{text}");
    }
}

#[test]
fn models_are_the_same_on_both_sides() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);

    // Theirs, saved in every way, are read.
    let theirs =
        ["hf", "sharded", "untied", "bin", "bin-sharded", "original", "original-half"].map(at);
    let expected = logits_there(&python, "make", &theirs);
    for path in &theirs {
        let model = LanguageModel::from_pretrained(path, Some(DType::F32), &Device::Cpu).unwrap();
        assert_close(&logits_here(&model), &expected[path.to_str().unwrap()], path);
    }

    // Ours, saved and converted, are read there.
    let plain = Config {
        vocab_size: 256,
        hidden_size: 24,
        layers: vec![LayerKind::Ssm; 2],
        ssm: Ssm::mamba(3),
        ..Config::default()
    };
    let odd = Config {
        intermediate_size: Some(41),
        use_bias: true,
        use_conv_bias: false,
        tie_word_embeddings: false,
        state_size: 7,
        ..plain.clone()
    };
    let (mut ours, mut found) = (Vec::new(), Vec::new());
    let heads = Config {
        family: Family::Mamba2,
        ssm: Ssm::Mamba2 {
            head_dim: 6,
            // Versions of transformers differ in how several groups are normed.
            n_groups: 1,
            norm: Some(Mamba2Norm::gate_first(1)),
            time_step_limit: [0.01, 0.05],
            chunk_size: 4,
        },
        state_size: 7,
        ..plain.clone()
    };
    let mlp = Some(MlpConfig { size: 20, use_bias: false });
    let granite = Config {
        family: Family::Granite,
        layers: vec![LayerKind::Ssm, LayerKind::Attention],
        ssm: Ssm::mamba2(8),
        attention: Some(AttentionConfig { scale: 0.3, ..AttentionConfig::new(4, 2, 10) }),
        mlp,
        multipliers: Multipliers {
            embedding: 3.0,
            logits: 1.0 / 7.0,
            ssm_out: 0.4,
            attention_out: 0.4,
            mlp_out: 0.4,
            ..Multipliers::default()
        },
        ..plain.clone()
    };
    let rope = AttentionConfig { rope_theta: Some(700.0), ..AttentionConfig::new(6, 3, 4) };
    let falcon_h1 = Config {
        family: Family::FalconH1,
        layers: vec![LayerKind::Both; 2],
        intermediate_size: Some(40),
        out_proj_bias: Some(true),
        attention: Some(AttentionConfig { use_bias: true, ..rope }),
        multipliers: Multipliers {
            ssm: [0.5, 1.5, 2.0, 0.75, 1.25],
            key: 0.7,
            ..Multipliers::default()
        },
        tie_word_embeddings: false,
        ..granite.clone()
    };
    let rotary = Config { attention: Some(rope), ..granite.clone() };
    for (name, config) in [
        ("plain", &plain),
        ("odd", &odd),
        ("heads", &heads),
        ("granite", &granite),
        ("rotary", &rotary),
        ("falcon-h1", &falcon_h1),
    ] {
        let model = LanguageModel::new(config, DType::F32, 3, &Device::Cpu).unwrap();
        let saved = at(name);
        model.save_pretrained(&saved, &Tokenizer::bytes()).unwrap();
        let files = ModelFiles::open(&saved).unwrap();
        let conversions = [
            ("shards", Conversion { max_shard_size: Some(9000), ..Conversion::default() }),
            ("original", Conversion { layout: Layout::Original, ..Conversion::default() }),
            ("bf16", Conversion { dtype: Some(DType::BF16), ..Conversion::default() }),
        ];
        // Which transformers does not read, and the original code has no hybrids.
        let skipped = |how: &str| !["plain", "odd"].contains(&name) && how == "original";
        ours.push(saved.clone());
        for (how, conversion) in conversions.into_iter().filter(|(how, _)| !skipped(how)) {
            let out = at(&format!("{name}-{how}"));
            files.convert(&out, &conversion).unwrap();
            ours.push(out);
        }
    }
    for path in &ours {
        // Rounded to bf16, and computed in f32 on both sides.
        let model = LanguageModel::from_pretrained(path, Some(DType::F32), &Device::Cpu).unwrap();
        found.push(logits_here(&model));
    }
    let expected = logits_there(&python, "read", &ours);
    for (path, found) in ours.iter().zip(&found) {
        assert_close(found, &expected[path.to_str().unwrap()], path);
    }
}
