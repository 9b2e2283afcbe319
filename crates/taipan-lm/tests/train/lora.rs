//! Adapters: trained, resumed, saved, merged, refused.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use taipan::{DType, Device, Tensor};
use taipan_lm::data::Dataset;
use taipan_lm::safetensors::Safetensors;
use taipan_lm::{
    AdapterFiles, Config, Conversion, LanguageModel, LayerKind, Lora, Memory, ModelFiles, Preset,
    Recipe, Tokenizer, Trainer,
};

use crate::harness::{Run, TEXT, files, steps};

/// A run that trains adapters with dropout.
fn lora_run() -> Run {
    let mut run = Run::new();
    run.recipe.grad_accum = 2;
    run.recipe.lora = Some(Lora {
        rank: 3,
        dropout: 0.3,
        targets: ["in_proj", "x_proj", "out_proj", "embeddings"].map(String::from).into(),
        base: "somewhere".into(),
        ..Lora::new(&run.config)
    });
    run
}

fn resume(run: &Run, base: LanguageModel) -> taipan_lm::Result<Trainer> {
    let data = Dataset::open(run.path().join("data"))?;
    Trainer::resume_adapters(run.path(), data, base, |_| {})
}

fn logits(model: &LanguageModel) -> Vec<f64> {
    let ids = Tensor::new(&[3u32, 100, 41, 7], &[1, 4], &Device::Cpu).unwrap();
    let (logits, _) = model.next(&ids, None).unwrap();
    logits.cast(DType::F64).unwrap().read_blocking().unwrap()
}

fn most_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

#[test]
fn a_resumed_run_of_adapters_is_the_same() {
    let [whole, stopped] = [lora_run(), lora_run()];
    let mut trainer = whole.begin();
    assert_eq!(logits(trainer.model()), logits(&whole.model()), "no change at first");
    let frozen = |name: &String| !name.contains("lora_");
    let untracked = |model: &LanguageModel| -> Vec<String> {
        let all = model.parameters().into_iter().filter(|p| !p.is_tracked());
        all.map(|parameter| parameter.name).collect()
    };
    let names = untracked(trainer.model());
    assert!(!names.is_empty() && names.iter().all(frozen));
    let expected = steps(&mut trainer, 4);
    trainer.save_blocking(whole.path(), 9).unwrap();
    assert!(expected[3].loss < expected[0].loss, "{expected:?}");

    let mut trainer = stopped.begin();
    let mut found = steps(&mut trainer, 2);
    trainer.save_blocking(stopped.path(), 9).unwrap();
    let mut trainer = resume(&stopped, stopped.model()).unwrap();
    found.extend(steps(&mut trainer, 2));
    trainer.save_blocking(stopped.path(), 9).unwrap();
    assert_eq!(found, expected);
    assert_eq!(files(&whole.checkpoint(4)), files(&stopped.checkpoint(4)));

    let mut other = stopped.config.clone();
    other.tie_word_embeddings = false;
    let other = LanguageModel::new(&other, DType::F32, 6, &Device::Cpu).unwrap();
    let error = resume(&stopped, other).err().unwrap().to_string();
    assert!(error.starts_with("base model: the fingerprint is "), "{error}");
    let trainer_json = fs::read_to_string(stopped.checkpoint(4).join("trainer.json")).unwrap();
    let has = |name: &str| stopped.checkpoint(4).join(name).exists();
    assert!(has("adapter_model.safetensors") && !has("model.safetensors"), "{trainer_json}");
}

/// A base model with its tokenizer on disk, and an adapter after some steps.
fn trained() -> (Run, LanguageModel) {
    let run = lora_run();
    run.model().save_pretrained(run.path().join("base"), &Tokenizer::bytes()).unwrap();
    let mut trainer = run.begin();
    steps(&mut trainer, 3);
    let adapter = run.path().join("adapter");
    fs::create_dir(&adapter).unwrap();
    trainer.export_blocking(&adapter).unwrap();
    (run, trainer.model().clone())
}

#[test]
fn files_have_the_names_of_peft() {
    let (run, model) = trained();
    let adapter = run.path().join("adapter");
    let config: Value =
        serde_json::from_slice(&fs::read(adapter.join("adapter_config.json")).unwrap()).unwrap();
    let targets = json!(["embeddings", "in_proj", "out_proj", "x_proj"]);
    assert_eq!((&config["target_modules"], &config["r"]), (&targets, &json!(3)));
    let file = Safetensors::open(&adapter.join("adapter_model.safetensors")).unwrap();
    let shape = |name: &str| file.view(&format!("base_model.model.{name}")).unwrap().shape.to_vec();
    assert_eq!(shape("backbone.layers.1.mixer.in_proj.lora_A.weight"), [3, 16]);
    assert_eq!(shape("backbone.layers.1.mixer.in_proj.lora_B.weight"), [64, 3]);
    assert_eq!(shape("backbone.embeddings.lora_embedding_A"), [3, 256]);
    assert_eq!(shape("backbone.embeddings.lora_embedding_B"), [16, 3]);
    assert_eq!(file.names().count(), 2 * (1 + 2 * 3));

    let base = ModelFiles::open(run.path().join("base")).unwrap();
    let files = AdapterFiles::open(&adapter).unwrap();
    assert_eq!(files.base(), Some("somewhere"));
    let loaded = base.load_adapted(&files, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(logits(&loaded), logits(&model));
    assert!(most_difference(&logits(&loaded), &logits(&run.model())) > 1e-3);
    let error = loaded.save_pretrained(run.path().join("no"), &Tokenizer::bytes()).unwrap_err();
    assert!(error.to_string().starts_with("model: it has adapters"), "{error}");
    assert!(logits(&loaded.quantized().unwrap()).iter().all(|logit| logit.is_finite()));
}

#[test]
fn a_merged_model_computes_the_same() {
    let (run, model) = trained();
    let base = ModelFiles::open(run.path().join("base")).unwrap();
    let files = AdapterFiles::open(run.path().join("adapter")).unwrap();
    let out = run.path().join("merged");
    let conversion = Conversion { merge: Some(&files), ..Conversion::default() };
    base.convert(&out, &conversion).unwrap();
    let merged = LanguageModel::from_pretrained(&out, None, &Device::Cpu).unwrap();
    // The embedding was adapted, the head is as before.
    assert!(base.config().tie_word_embeddings && !merged.config().tie_word_embeddings);
    let error = most_difference(&logits(&merged), &logits(&model));
    assert!(error < 1e-5, "{error}");
    assert!(most_difference(&logits(&merged), &logits(&run.model())) > 1e-3);
}

/// Change the files of an adapter, and why it is refused then.
fn refusal(run: &Run, change: impl FnOnce(&mut Value)) -> String {
    let adapter = run.path().join("adapter");
    let path = adapter.join("adapter_config.json");
    let before = fs::read(&path).unwrap();
    let mut config: Value = serde_json::from_slice(&before).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    let base = ModelFiles::open(run.path().join("base")).unwrap();
    let error = AdapterFiles::open(&adapter)
        .and_then(|files| base.load_adapted(&files, DType::F32, &Device::Cpu))
        .err();
    fs::write(&path, before).unwrap();
    shown(run.path(), &error.expect("refused").to_string())
}

fn shown(path: &Path, error: &str) -> String {
    error.replace(&path.display().to_string(), "RUN")
}

#[test]
fn what_is_not_supported_is_refused_by_its_key() {
    let (run, _) = trained();
    for (key, value, expected) in [
        ("use_dora", json!(true), "use_dora is true, expected false: it is not supported"),
        ("bias", json!("all"), "bias is \"all\", expected \"none\": it is not supported"),
        ("fan_in_fan_out", json!(true), "fan_in_fan_out is true, expected false"),
        ("modules_to_save", json!(["norm_f"]), "modules_to_save is [\"norm_f\"], expected null"),
        ("lora_bias", json!(true), "lora_bias is true, expected false"),
        ("target_parameters", json!(["A_log"]), "target_parameters is [\"A_log\"], expected null"),
        ("peft_type", json!("LOHA"), "peft_type is \"LOHA\", expected \"LORA\""),
        ("alpha_pattern", json!({"in_.*": 3}), "alpha_pattern has \"in_.*\": 3, expected names"),
    ] {
        let error = refusal(&run, |config| config[key] = value);
        assert!(error.contains(&format!("adapter_config.json: {expected}")), "{error}");
    }
    // Of another model.
    let wider = Config { hidden_size: 20, ..run.config.clone() };
    let wider = LanguageModel::new(&wider, DType::F32, 1, &Device::Cpu).unwrap();
    let files = AdapterFiles::open(run.path().join("adapter")).unwrap();
    let error = wider.with_adapter(&files).unwrap_err();
    assert_eq!(
        shown(run.path(), &error.to_string()),
        "RUN/adapter: backbone.embeddings: rank 3 of a matrix [256, 16], but the model's is [256, 20]"
    );
    let shorter = Config { layers: vec![LayerKind::Ssm; 1], ..run.config.clone() };
    let shorter = LanguageModel::new(&shorter, DType::F32, 1, &Device::Cpu).unwrap();
    let error = shorter.with_adapter(&files).unwrap_err();
    assert_eq!(
        shown(run.path(), &error.to_string()),
        "RUN/adapter: an adapter of backbone.layers.1.mixer.in_proj, which the model does not have"
    );
}

#[test]
fn targets_without_an_effect_are_refused_by_name() {
    let run = Run::new();
    let refused = |target: &str| {
        let lora = Lora { targets: vec![target.into()], ..Lora::new(&run.config) };
        run.model().with_lora(&lora, 1).unwrap_err().to_string()
    };
    let dt_proj = refused("dt_proj");
    let why = "dt_proj cannot be adapted: transformers uses its weight directly";
    assert!(dt_proj.contains(why), "{dt_proj}");
    for target in ["conv1d", "A_log", "D", "q_proj", "roj", "lm_head"] {
        let expected = format!("lora: {target} is no linear layer, expected some of ");
        assert!(refused(target).starts_with(&expected), "{}", refused(target));
    }
    let rank = Lora { rank: 0, ..Lora::new(&run.config) };
    let error = run.model().with_lora(&rank, 1).unwrap_err().to_string();
    assert_eq!(error, "lora: rank is 0, expected 1 to 65536");
}

#[test]
fn only_what_matches_is_trained() {
    let mut run = Run::new();
    run.recipe.train_only = vec!["*.x_proj.weight".into(), "*.dt_proj.*".into()];
    run.recipe.freeze = vec!["*.dt_proj.bias".into()];
    let mut trainer = run.begin();
    let before = trainer.model().clone();
    steps(&mut trainer, 2);
    for (old, new) in before.parameters().iter().zip(trainer.model().parameters()) {
        let read = |tensor: &Tensor| tensor.read_blocking::<f32>().unwrap();
        let trained = ["x_proj.weight", "dt_proj.weight"].iter().any(|end| new.name.ends_with(end));
        assert_eq!(read(old) != read(&new), trained, "{}", new.name);
    }
    run.recipe.train_only = vec!["nothing".into()];
    let error = Trainer::new(run.model(), run.data(TEXT), Tokenizer::bytes(), run.recipe.clone());
    assert!(error.err().unwrap().to_string().contains("\"nothing\" matches no parameter"));
}

#[test]
fn frozen_weights_take_no_memory_of_the_optimiser() {
    let config = Preset::M130.config(50280);
    let full = Memory::of_training(&config, DType::F32, &Recipe::default());
    let lora = Some(Lora::new(&config));
    let recipe = Recipe { lora, ..Recipe::default() };
    let adapted = Memory::of_training(&config, DType::F32, &recipe);
    // in_proj [3072, 768] and x_proj [80, 1536].
    let parameters = 24 * 8 * (3072 + 768 + 80 + 1536);
    assert_eq!(adapted.weights, full.weights + 4 * parameters);
    assert_eq!((adapted.gradients, adapted.optimizer), (4 * parameters, 8 * parameters));
    let train_only = vec!["*x_proj.weight".into()];
    let some = Recipe { train_only, ..Recipe::default() };
    let some = Memory::of_training(&config, DType::F32, &some);
    assert_eq!((some.weights, some.gradients), (full.weights, 4 * 24 * 80 * 1536));
}
