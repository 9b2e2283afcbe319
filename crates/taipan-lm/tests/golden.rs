//! Whole models against transformers' MambaForCausalLM: golden/make.py made the files and the
//! values.

use std::path::Path;

use serde::Deserialize;
use taipan::check::devices;
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{DType, Device, Tensor};
use taipan_lm::safetensors::Safetensors;
use taipan_lm::{Activations, Batch, Config, Mamba, Role};

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&std::fs::read_to_string(path(name)).unwrap()).unwrap()
}

/// A model that transformers saved.
fn model(name: &str, dtype: DType, device: &Device) -> Mamba {
    let config = std::fs::read_to_string(path(name).join("config.json")).unwrap();
    let config = Config::from_json(&config).unwrap();
    let bytes = std::fs::read(path(name).join("model.safetensors")).unwrap();
    let file = Safetensors::parse(name, bytes).unwrap();
    Mamba::load(&config, dtype, device, |name, shape| file.tensor(name, shape)).unwrap()
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
fn follow(curve: &Curve, mut model: Mamba, tolerance: f64) {
    let Options { beta1, beta2, eps, weight_decay, max_norm } = curve.options;
    let options =
        AdamWOptions { beta1, beta2, eps, max_norm: Some(max_norm), ..Default::default() };
    let group = |role| match role {
        Role::Matrix => Group { weight_decay, ..Group::default() },
        Role::Vector | Role::Recurrence => Group::without_decay(),
    };
    let groups: Vec<_> = model.parameters().iter().map(|p| (&p.tensor, group(p.role))).collect();
    let mut adamw = AdamW::new(options, &groups).unwrap();
    for (i, step) in curve.steps.iter().enumerate() {
        let loss = model.loss(&batch(curve.rows, curve.length, &step.ids)).unwrap();
        close(loss.item().unwrap(), step.loss, tolerance, &format!("loss of step {i}"));
        let grads = loss.backward_from(adamw.loss_scale()).unwrap();
        let mut parameters: Vec<_> =
            model.parameters_mut().into_iter().map(|p| &mut p.tensor).collect();
        adamw.step(step.lr, &mut parameters, &grads).unwrap();
        let norm = adamw.status_blocking().unwrap().norm;
        // A norm is less smooth than a loss; and it is reported in f32.
        close(norm, step.norm, 30.0 * tolerance + 1e-6, &format!("gradient norm of step {i}"));
    }
}

#[test]
fn fifty_steps_follow_pytorch() {
    let curve: Curve = json("curve.json");
    assert!(curve.steps.len() == 50 && curve.steps[49].loss < 0.9 * curve.steps[0].loss);
    for device in devices() {
        follow(&curve, model("curve", DType::F32, &device), 1e-4);
    }
    if devices().contains(&Device::Cpu) {
        follow(&curve, model("curve", DType::F64, &Device::Cpu), 1e-9);
    }
}

#[test]
fn steps_that_recompute_activations_follow_pytorch() {
    let mut curve: Curve = json("curve.json");
    curve.steps.truncate(10);
    for device in devices() {
        let model = model("curve", DType::F32, &device).with_activations(Activations::Recomputed);
        follow(&curve, model, 1e-4);
    }
}

#[derive(Deserialize)]
struct Values {
    rows: usize,
    length: usize,
    ids: Vec<u32>,
    loss: f64,
    last_logits: Vec<f64>,
    gradients: std::collections::BTreeMap<String, Vec<f64>>,
    norms: std::collections::BTreeMap<String, f64>,
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to(&Device::Cpu).unwrap().cast(DType::F64).unwrap().read_blocking().unwrap()
}

#[test]
fn every_option_gives_the_values_and_gradients_of_transformers() {
    let golden: Values = json("options.json");
    let batch = batch(golden.rows, golden.length, &golden.ids);
    for device in devices() {
        for (dtype, tolerance) in types(&device, 1e-2, 1e-5, 1e-12) {
            let model = model("options", dtype, &device);
            let loss = model.loss(&batch).unwrap();
            let what = format!("{dtype} on {}", device.name());
            close(loss.item().unwrap(), golden.loss, tolerance, &format!("loss, {what}"));

            let ids =
                Tensor::new(&batch.ids, &[batch.batch_size, batch.block_size], &device).unwrap();
            let logits = read(&model.next(&ids, None).unwrap().0);
            let scale = golden.last_logits.iter().fold(0f64, |most, x| most.max(x.abs()));
            for (found, expected) in logits.iter().zip(&golden.last_logits) {
                let error = (found - expected).abs() / scale;
                assert!(error < 2.0 * tolerance, "a logit, {what}: {found}, expected {expected}");
            }

            let grads = loss.backward().unwrap();
            let mut stored = std::collections::BTreeMap::<_, Vec<f64>>::new();
            for parameter in model.parameters() {
                let values = read(grads.of(parameter).unwrap());
                stored.entry(parameter.stored.clone()).or_default().extend(values);
            }
            assert!(stored.keys().eq(golden.norms.keys()), "the names of {what}");
            for (name, found) in &stored {
                let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
                let expected = golden.norms[name];
                close(norm(found), expected, 5.0 * tolerance, &format!("{name}, {what}"));
                let Some(golden) = golden.gradients.get(name) else { continue };
                let error: Vec<f64> = found.iter().zip(golden).map(|(a, b)| a - b).collect();
                let error = norm(&error) / expected;
                assert!(error < 5.0 * tolerance, "gradient of {name}, {what}: off by {error:e}");
            }
        }
    }
}
