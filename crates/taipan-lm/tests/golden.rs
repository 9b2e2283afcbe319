//! Whole models against transformers, and adapters against PEFT: golden/make.py made the files and
//! the values.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use taipan::check::devices;
use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{DType, Device, Tensor};
use taipan_lm::safetensors::Safetensors;
use taipan_lm::{Activations, AdapterFiles, Batch, Config, LanguageModel, ModelFiles, Role};

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&std::fs::read_to_string(path(name)).unwrap()).unwrap()
}

/// A model that transformers saved, or one with an adapter that PEFT saved.
fn model(name: &str, dtype: DType, device: &Device) -> LanguageModel {
    if !AdapterFiles::exists(&path(name)) {
        return LanguageModel::from_pretrained(path(name), Some(dtype), device).unwrap();
    }
    let adapter = AdapterFiles::open(path(name)).unwrap();
    let base = ModelFiles::open(path(adapter.base().unwrap())).unwrap();
    base.load_adapted(&adapter, dtype, device).unwrap()
}

/// Rows of `length + 1` ids: each but the last, and each but the first to predict.
fn batch(batch_size: usize, length: usize, ids: &[u32]) -> Batch {
    let rows_of = |from: usize| {
        ids.chunks(length + 1).flat_map(|row| row[from..from + length].to_vec()).collect()
    };
    Batch {
        batch_size,
        block_size: length,
        ids: rows_of(0),
        targets: rows_of(1),
        seq_start: vec![0; batch_size * length],
    }
}

fn close(found: f64, expected: f64, tolerance: f64, what: &str) {
    let error = (found - expected).abs();
    assert!(error <= tolerance * expected.abs().max(1e-3), "{what}: {found}, expected {expected}");
}

/// The element types of a device, with the relative error that is allowed in each.
fn types(device: &Device, half: f64, single: f64, double: f64) -> Vec<(DType, f64)> {
    let mut types = vec![(DType::F32, single)];
    if device.supports(DType::F16) {
        types.push((DType::F16, half));
    }
    if *device == Device::Cpu {
        types.extend([(DType::BF16, 8.0 * half), (DType::F64, double)]);
    }
    types
}

#[derive(Deserialize)]
struct Curve {
    options: Options,
    rows: usize,
    length: usize,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Options {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    max_norm: f64,
}

#[derive(Deserialize)]
struct Step {
    ids: Vec<u32>,
    lr: f64,
    loss: f64,
    norm: f64,
}

/// Train for as long as transformers did, comparing loss and gradient norm at every step.
fn follow(curve: &Curve, mut model: LanguageModel, tolerance: f64) {
    let Options { beta1, beta2, eps, weight_decay, max_norm } = curve.options;
    let options =
        AdamWOptions { beta1, beta2, eps, max_norm: Some(max_norm), ..Default::default() };
    let group = |role| match role {
        Role::Matrix => Group { weight_decay, ..Group::default() },
        Role::Vector | Role::Recurrence => Group::without_decay(),
    };
    let groups: Vec<_> = model.parameters().iter().map(|p| (p.tensor, group(p.role))).collect();
    let mut adamw = AdamW::new(options, &groups).unwrap();
    for (i, step) in curve.steps.iter().enumerate() {
        let loss = model.loss(&batch(curve.rows, curve.length, &step.ids)).unwrap();
        close(loss.item().unwrap(), step.loss, tolerance, &format!("loss of step {i}"));
        let grads = loss.backward_from(adamw.loss_scale()).unwrap();
        let mut parameters: Vec<_> =
            model.parameters_mut().into_iter().map(|(_, parameter)| parameter).collect();
        adamw.step(step.lr, &mut parameters, &grads).unwrap();
        let norm = adamw.status_blocking().unwrap().norm;
        // A norm is less smooth than a loss; and it is reported in f32.
        close(norm, step.norm, 30.0 * tolerance + 1e-6, &format!("gradient norm of step {i}"));
    }
}

#[test]
fn steps_follow_pytorch() {
    for (name, steps, learned) in
        [("curve", 50, 0.9), ("curve-mamba2", 20, 0.99), ("curve-hybrid", 20, 0.99)]
    {
        let curve: Curve = json(&format!("{name}.json"));
        assert_eq!(curve.steps.len(), steps);
        assert!(curve.steps[steps - 1].loss < learned * curve.steps[0].loss, "{name}");
        for device in devices() {
            follow(&curve, model(name, DType::F32, &device), 1e-4);
        }
        if devices().contains(&Device::Cpu) {
            follow(&curve, model(name, DType::F64, &Device::Cpu), 1e-9);
        }
    }
}

#[test]
fn steps_that_recompute_activations_follow_pytorch() {
    for name in ["curve", "curve-mamba2", "curve-hybrid"] {
        let mut curve: Curve = json(&format!("{name}.json"));
        curve.steps.truncate(10);
        for device in devices() {
            let model = model(name, DType::F32, &device).with_activations(Activations::Recomputed);
            follow(&curve, model, 1e-4);
        }
    }
}

#[derive(Deserialize)]
struct Values {
    rows: usize,
    length: usize,
    ids: Vec<u32>,
    loss: f64,
    /// `[rows, length, vocab_size]`
    logits: Vec<f64>,
    /// Of the gradients.
    norms: BTreeMap<String, f64>,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to(&Device::Cpu).unwrap().cast(DType::F64).unwrap().read_blocking().unwrap()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Models of transformers with different options, one as the paper's code saves it, adapters; and
/// from golden/original.py what transformers does not have: Mamba-3, and Mamba-2 with an MLP.
const MODELS: [&str; 21] = [
    "options",
    "biased",
    "states",
    "odd",
    "falcon",
    "mamba2",
    "mamba2-groups",
    "granite",
    "granite-rope",
    "falcon-h1",
    "falcon-h1-gate-first",
    "falcon-h1-norm-first",
    "original",
    "lora",
    "lora-tied",
    "lora-hybrid",
    "mamba3",
    "mamba3-groups",
    "mamba3-mimo",
    "mamba3-mimo-groups",
    "mamba2-mlp",
];

/// For each model, device and type: its name, the model, what is expected of it, and the relative
/// error that is allowed.
fn for_each(mut check: impl FnMut(&str, &LanguageModel, &Values, f64)) {
    for name in MODELS {
        let golden: Values = json(&format!("{name}/values.json"));
        for device in devices() {
            // The angles of Mamba-3 are sums over all steps of what half precision rounds.
            let half = if name.starts_with("mamba3") { 4e-2 } else { 1e-2 };
            for (dtype, tolerance) in types(&device, half, 2e-5, 1e-12) {
                let model = model(name, dtype, &device);
                let what = format!("{name}, {dtype} on {}", device.name());
                check(&what, &model, &golden, tolerance);
            }
        }
    }
}

fn assert_logits(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    let scale = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs() / scale;
        assert!(error < tolerance, "a logit of {what}: {found}, expected {expected}");
    }
}

#[test]
fn logits_and_losses_are_those_of_transformers() {
    for_each(|what, model, golden, tolerance| {
        let batch = batch(golden.rows, golden.length, &golden.ids);
        let loss = model.loss(&batch).unwrap().item().unwrap();
        close(loss, golden.loss, tolerance, &format!("loss of {what}"));
        let v = model.config().vocab_size;
        let (mut state, mut stepped) = (None, vec![0.0; golden.logits.len()]);
        // The logits of every token, step by step, and those of the last of all at once.
        for t in 0..golden.length {
            let ids: Vec<u32> =
                (0..golden.rows).map(|row| batch.ids[row * golden.length + t]).collect();
            let ids = Tensor::new(&ids, &[golden.rows, 1], model.device()).unwrap();
            let (logits, next) = model.next(&ids, state).unwrap();
            for (row, logits) in read(&logits).chunks(v).enumerate() {
                stepped[(row * golden.length + t) * v..][..v].copy_from_slice(logits);
            }
            state = Some(next);
        }
        assert_logits(&stepped, &golden.logits, tolerance, what);
        let shape = [golden.rows, golden.length];
        let ids = Tensor::new(&batch.ids, &shape, model.device()).unwrap();
        let last: Vec<f64> = golden
            .logits
            .chunks(golden.length * v)
            .flat_map(|row| row[(golden.length - 1) * v..].to_vec())
            .collect();
        let at_once = read(&model.next(&ids, None).unwrap().0);
        assert_logits(&at_once, &last, tolerance, what);
    });
}

#[test]
fn gradients_are_those_of_transformers() {
    for_each(|what, model, golden, tolerance| {
        let name = what.split(',').next().unwrap();
        let file = Safetensors::open(&path(name).join("gradients.safetensors")).unwrap();
        let loss = model.loss(&batch(golden.rows, golden.length, &golden.ids)).unwrap();
        // Small gradients would be lost in f16; training scales the loss too.
        let scale = if model.dtype() == DType::F16 { 1024.0 } else { 1.0 };
        let upstream = Tensor::full(&[], scale, loss.dtype(), model.device()).unwrap();
        let grads = loss.backward_from(&upstream).unwrap();
        let mut stored = BTreeMap::<_, Vec<f64>>::new();
        for parameter in model.parameters().into_iter().filter(|p| p.is_tracked()) {
            // Stored as [v, r], so that ids choose rows.
            let grad = match parameter.name.ends_with("lora_embedding_A") {
                true => &grads.of(&parameter).unwrap().transpose(0, 1).unwrap(),
                false => grads.of(&parameter).unwrap(),
            };
            let values = read(grad).into_iter().map(|x| x / scale);
            stored.entry(parameter.stored.clone()).or_default().extend(values);
        }
        assert!(stored.keys().eq(golden.norms.keys()), "the names of {what}");
        // In half precision the values are products of rounded ones.
        let half = matches!(model.dtype(), DType::F16 | DType::BF16);
        let tolerance = if half { 5.0 * tolerance } else { tolerance };
        for (name, found) in &stored {
            let expected = golden.norms[name];
            close(norm(found), expected, tolerance, &format!("{name} of {what}"));
            let view = file.view(name).unwrap();
            let error: Vec<f64> =
                found.iter().zip(read(&view.tensor().unwrap())).map(|(a, b)| a - b).collect();
            // The file is in f32.
            let (error, most) = (norm(&error) / expected, tolerance.max(1e-7));
            assert!(error < most, "gradient {name} of {what}: off by {error:e}");
        }
    });
}

/// 2e-5 of the goldens is not what f32 gives for every Mamba-3: where a head has few channels and a
/// norm, gradients are ill-conditioned. `golden/original.py single` computes them step by step in f32,
/// for ten models of the shape of mamba3-groups: off by 4.1e-6 in the geometric mean over tensors,
/// and by 5e-5 in one. Ours are to be as accurate; on AVX2 and AVX-512 they were 0.98 of that error,
/// over 780 tensors of 30 such models, 1.11 on the baseline.
#[test]
fn f32_is_as_accurate_as_the_recurrence_step_by_step() {
    const STEP_BY_STEP: f64 = 4.1e-6;
    let config = Config::from_file(path("mamba3-groups/config.json")).unwrap();
    let gradients = |seed: u64, dtype: DType, device: &Device| -> Vec<Vec<f64>> {
        let mut tensor = 1000 * seed;
        let model = LanguageModel::load(&config, dtype, device, |name, shape| {
            tensor += 1;
            let random = Tensor::randn(shape, tensor, DType::F32, &Device::Cpu)?;
            Ok(match shape {
                _ if name.contains("norm") => {
                    random.scale(0.3)?.add(&Tensor::full(shape, 1.0, DType::F32, &Device::Cpu)?)?
                }
                [_] => random.scale(0.3)?,
                [.., k] => random.scale(0.3 * (*k as f64).powf(-0.25))?,
                [] => random,
            })
        });
        let (model, v) = (model.unwrap(), config.vocab_size as u64);
        let ids: Vec<u32> = (0..3 * 18).map(|i| ((i * i * 7 + i * seed + 3) % v) as u32).collect();
        let grads = model.loss(&batch(3, 17, &ids)).unwrap().backward().unwrap();
        model.parameters().iter().map(|parameter| read(grads.of(parameter).unwrap())).collect()
    };
    for device in devices() {
        let mut logarithms = Vec::new();
        for seed in 1..=10 {
            let exact = gradients(seed, DType::F64, &Device::Cpu);
            for (found, exact) in gradients(seed, DType::F32, &device).iter().zip(&exact) {
                let error: Vec<f64> = found.iter().zip(exact).map(|(a, b)| a - b).collect();
                logarithms.push((norm(&error) / norm(exact)).ln());
            }
        }
        let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
        let most = 1.5 * STEP_BY_STEP;
        assert!(mean < most, "off by {mean:.2e} on {}, expected {most:.2e}", device.name());
    }
}

#[test]
fn greedy_decoding_gives_the_tokens_of_transformers() {
    for_each(|what, model, golden, _| {
        // Half precision may choose another token where two are almost as likely.
        if matches!(model.dtype(), DType::F16 | DType::BF16) {
            return;
        }
        let (mut ids, mut state, mut tokens) = (golden.prompt.clone(), None, Vec::new());
        for _ in 0..golden.greedy.len() {
            let input = Tensor::new(&ids, &[1, ids.len()], model.device()).unwrap();
            let (logits, next) = model.next(&input, state).unwrap();
            let token = logits.argmax(1).unwrap().item().unwrap() as u32;
            tokens.push(token);
            (ids, state) = (vec![token], Some(next));
        }
        assert_eq!(tokens, golden.greedy, "{what}");
        assert_eq!(tokens.len(), 32);
    });
}
