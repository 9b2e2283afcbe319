//! What the views of a text show, against the whole model in plain loops.

#![cfg(not(target_family = "wasm"))]

mod naive;

use pollster::block_on;
use taipan::check::devices;
use taipan::{DType, Device, Tensor};
use taipan_lm::{Config, HALF_LIFE_EDGES, Inspection, LanguageModel, LayerKind, Ssm};

use self::naive::{Layer, Naive, Nudge, Run};

const VOCABULARY: u32 = 11;

/// Odd sizes, and every optional tensor.
fn config() -> Config {
    Config {
        vocab_size: VOCABULARY as usize,
        hidden_size: 5,
        intermediate_size: Some(7),
        layers: vec![LayerKind::Ssm; 3],
        state_size: 3,
        ssm: Ssm::mamba(2),
        conv_kernel: 3,
        use_bias: true,
        tie_word_embeddings: false,
        ..Config::default()
    }
}

/// Weights without a pattern, and large enough that all of them matter.
fn model(dtype: DType, device: &Device) -> LanguageModel {
    let mut seed = 0;
    LanguageModel::load(&config(), dtype, device, |name, shape| {
        seed += 1;
        let scale = if name.ends_with("D") || name.contains("dt_proj") { 1.0 } else { 0.6 };
        Ok(Tensor::randn(shape, seed, DType::F64, &Device::Cpu)?.scale(scale)?)
    })
    .unwrap()
}

/// Tokens without a pattern.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 7 + i * 3 + 1) % VOCABULARY).collect()
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to(&Device::Cpu).unwrap().cast(DType::F64).unwrap().read_blocking().unwrap()
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// All within `tolerance` times the largest expected value.
fn assert_close(view: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{view}");
    let largest = expected.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    assert!(largest > 1e-6, "{view}: nothing to see");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / largest;
        assert!(error <= tolerance, "{view} at {i}: {found}, expected {expected}");
    }
}

/// Half-lives per bin, by their definition.
fn half_lives(layer: &Layer) -> Vec<u64> {
    let last = HALF_LIFE_EDGES.len() - 2;
    let mut counts = vec![0; last + 1];
    for delta in &layer.delta {
        for (delta, a) in delta.iter().zip(&layer.a) {
            for a in a {
                let tokens = std::f64::consts::LN_2 / (delta * a.abs());
                let above = HALF_LIFE_EDGES.iter().filter(|edge| **edge <= tokens).count();
                counts[above.saturating_sub(1).min(last)] += 1;
            }
        }
    }
    counts
}

/// `‖∂loss/∂h‖` at a layer and a token, by differences of fourth order: with this step both their
/// errors, of truncation and of rounding, are below 1e-11.
fn reach(naive: &Naive, ids: &[u32], layer: usize, token: usize) -> f64 {
    const STEP: f64 = 2e-3;
    let loss = |element, steps: f64| {
        let nudge = Nudge { layer, token, element, by: steps * STEP };
        naive.run(ids, Some(nudge)).loss
    };
    let channels = config().inner_size();
    let elements = (0..channels).flat_map(|d| (0..config().state_size).map(move |n| (d, n)));
    norm(elements.map(|at| {
        let (near, far) = (loss(at, 1.0) - loss(at, -1.0), loss(at, 2.0) - loss(at, -2.0));
        (8.0 * near - far) / (12.0 * STEP)
    }))
}

/// The mean of `|M|` over channels, `[l, l]`.
fn attention(layer: &Layer) -> Vec<f64> {
    let channels: Vec<_> = (0..layer.a.len()).map(|d| layer.attention(d)).collect();
    let l = layer.delta.len();
    let at = |i: usize| channels.iter().map(|m| m[i / l][i % l].abs()).sum::<f64>();
    (0..l * l).map(|i| at(i) / channels.len() as f64).collect()
}

fn check(found: &Inspection, naive: &Naive, expected: &Run, tolerance: f64) {
    let ids = &found.ids;
    assert_close("loss", &[found.loss], &[expected.loss], tolerance);
    assert_eq!(found.layers.len(), expected.layers.len());
    for (i, (found, expected)) in found.layers.iter().zip(&expected.layers).enumerate() {
        let view = |name: &str| format!("{name} of layer {i}");
        let means: Vec<f64> = expected.delta.iter().map(|delta| mean(delta)).collect();
        assert_close(&view("delta"), &found.delta, &expected.delta.concat(), tolerance);
        assert_close(&view("mean delta"), &found.mean_delta, &means, tolerance);
        let norms: Vec<f64> = expected.h.iter().map(|h| norm(h.concat())).collect();
        assert_close(&view("state norm"), &found.state_norm, &norms, tolerance);
        assert_close(
            &view("attention"),
            &found.attention().values,
            &attention(expected),
            tolerance,
        );
        // Some tokens: the first and the last, around a chunk of the scan, and the one that predicts.
        let some = [0, 1, 15, 16, ids.len() - 2, ids.len() - 1];
        let reaches = some.map(|t| reach(naive, ids, i, t));
        let found_reaches = some.map(|t| found.gradient_reach[t]);
        assert_close(&view("gradient"), &found_reaches, &reaches, tolerance.max(1e-10));
        assert_eq!(found.gradient_reach[ids.len() - 1], 0.0, "nothing follows the last token");
    }
}

#[test]
fn f64_equals_plain_loops() {
    let (model, ids) = (model(DType::F64, &Device::Cpu), tokens(19));
    let naive = Naive::new(&model);
    let expected = naive.run(&ids, None);
    let found = block_on(model.inspect(&ids)).unwrap();
    assert_eq!(found.ids, ids);
    check(&found, &naive, &expected, 1e-10);
    for (found, expected) in found.layers.iter().zip(&expected.layers) {
        assert_eq!(found.half_lives, half_lives(expected));
    }
}

/// Half precision rounds activations to 3 digits, and each layer adds its own errors.
#[test]
fn every_device_and_dtype_agrees() {
    let ids = tokens(19);
    let naive = Naive::new(&model(DType::F64, &Device::Cpu));
    let expected = naive.run(&ids, None);
    let tolerances = [(DType::F32, 2e-5), (DType::BF16, 0.1), (DType::F16, 0.02)];
    for device in devices() {
        for (dtype, tolerance) in tolerances.iter().filter(|(dtype, _)| device.supports(*dtype)) {
            let model = model(*dtype, &device);
            let found = block_on(model.inspect(&ids)).unwrap();
            check(&found, &naive, &expected, *tolerance);
            let again = block_on(model.inspect(&ids)).unwrap();
            assert_eq!(found, again, "the same bits");
        }
    }
}

/// `y_t = Σ_{s ≤ t} M[t, s]·u_s`: what the reference is worth that the attention is compared with.
#[test]
fn attention_is_what_the_scan_does() {
    let model = model(DType::F64, &Device::Cpu);
    let run = Naive::new(&model).run(&tokens(19), None);
    for layer in &run.layers {
        for d in 0..layer.a.len() {
            let m = layer.attention(d);
            for (t, row) in m.iter().enumerate() {
                let y: f64 = row.iter().zip(&layer.u).map(|(m, u)| m * u[d]).sum();
                assert!((y - layer.y[t][d]).abs() < 1e-12, "{y}, expected {}", layer.y[t][d]);
            }
        }
    }
}

#[test]
fn attention_is_of_the_last_128_tokens() {
    let (model, ids) = (model(DType::F64, &Device::Cpu), tokens(150));
    let expected = Naive::new(&model).run(&ids, None);
    let found = block_on(model.inspect(&ids)).unwrap();
    let (found, whole) = (found.layers[1].attention(), attention(&expected.layers[1]));
    assert_eq!((found.first, found.len), (22, 128));
    let rows = (22..150).flat_map(|t| &whole[t * 150 + 22..t * 150 + 150]);
    assert_close("attention", &found.values, &rows.copied().collect::<Vec<_>>(), 1e-10);
}

/// Decays whose product over the text is far below the smallest float.
#[test]
fn long_products_become_zero() {
    let model = LanguageModel::load(&config(), DType::F32, &Device::Cpu, |name, shape| {
        let value = if name.ends_with("A_log") { 4.0 } else { 0.5 };
        Ok(Tensor::full(shape, value, DType::F64, &Device::Cpu)?)
    });
    let found = block_on(model.unwrap().inspect(&tokens(100))).unwrap();
    let attention = found.layers[0].attention();
    assert_eq!(attention.values[99 * 100], 0.0, "from the last token to the first");
    assert!(attention.values[99 * 100 + 99] > 0.0);
    assert!(attention.values.iter().all(|x| x.is_finite()));
}

#[test]
fn a_model_that_is_trained_stays_as_it_is() {
    let model = model(DType::F32, &Device::Cpu);
    block_on(model.inspect(&tokens(5))).unwrap();
    assert!(model.parameters().iter().all(|parameter| parameter.is_tracked()));
}

#[test]
fn what_cannot_be_inspected_is_an_error() {
    let model = model(DType::F32, &Device::Cpu);
    let error =
        |model: &LanguageModel, ids: &[u32]| block_on(model.inspect(ids)).unwrap_err().to_string();
    assert_eq!(error(&model, &[]), "inspect: 0 tokens, expected 2 or more");
    assert_eq!(error(&model, &[3]), "inspect: 1 tokens, expected 2 or more");
    assert_eq!(error(&model, &[3, 11, 2]), "inspect: token 11, expected less than 11");
    let broken = LanguageModel::load(&config(), DType::F32, &Device::Cpu, |_, shape| {
        Ok(Tensor::full(shape, f64::NAN, DType::F32, &Device::Cpu)?)
    });
    let why = "inspect: layer 0 has values that are not finite numbers";
    assert_eq!(error(&broken.unwrap(), &[3, 1]), why);
    let why = "inspect: the weights are in 8 bits, expected floats: there is no gradient";
    assert_eq!(error(&model.quantized().unwrap(), &[3, 1]), why);
}
