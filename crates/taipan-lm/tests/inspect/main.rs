//! What the views of a text show, against the whole model in plain loops.

#![cfg(not(target_family = "wasm"))]

mod naive;

use pollster::block_on;
use taipan::check::devices;
use taipan::nn::DecayActivation;
use taipan::{DType, Device, GateOrder, Tensor};
use taipan_lm::{
    AttentionConfig, Config, Family, HALF_LIFE_EDGES, Inspection, LanguageModel, LayerKind,
    Mamba2Norm, Mamba3Config, MlpConfig, Multipliers, Ssm,
};

use self::naive::{Heads, Memory, Naive, Nudge, Run, Scan};

const VOCABULARY: u32 = 11;

/// Mamba with odd sizes, and every optional tensor.
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

/// Two layers of six channels, in three heads.
fn heads(family: Family, ssm: Ssm) -> Config {
    let layers = vec![LayerKind::Ssm; 2];
    Config { family, ssm, layers, intermediate_size: Some(6), use_bias: false, ..config() }
}

fn mamba2(norm: Option<Mamba2Norm>, n_groups: usize) -> Ssm {
    Ssm::Mamba2 { head_dim: 2, n_groups, norm, time_step_limit: [0.2, 2.5], chunk_size: 256 }
}

/// A model of every kind of mixer and layer, with every factor.
fn every_family() -> Vec<(&'static str, Config)> {
    let mamba3 = |own| Config { state_size: 4, ..heads(Family::Mamba3, Ssm::Mamba3(own)) };
    let own = Mamba3Config::new(2);
    let norm_first = Mamba2Norm { groups: 3, order: GateOrder::NormFirst };
    let mlp = Some(MlpConfig { size: 4, use_bias: false });
    let attention = AttentionConfig::new(4, 2, 2);
    let granite = Config {
        layers: vec![LayerKind::Ssm, LayerKind::Attention, LayerKind::Ssm],
        // Large: norms of two channels would be too steep for differences.
        layer_norm_epsilon: 0.05,
        attention: Some(AttentionConfig { scale: 0.9, ..attention }),
        mlp,
        multipliers: Multipliers {
            embedding: 1.5,
            logits: 0.7,
            ssm_out: 0.6,
            attention_out: 0.6,
            mlp_out: 0.6,
            ..Multipliers::default()
        },
        ..heads(Family::Granite, mamba2(Some(Mamba2Norm::gate_first(1)), 1))
    };
    let falcon_h1 = Config {
        family: Family::FalconH1,
        layers: vec![LayerKind::Both; 2],
        attention: Some(AttentionConfig { rope_theta: Some(100.0), ..attention }),
        multipliers: Multipliers {
            embedding: 1.5,
            logits: 0.7,
            ssm_in: 1.2,
            ssm: [0.8, 1.1, 0.9, 1.3, 0.7],
            ssm_out: 0.9,
            attention_in: 1.4,
            key: 0.8,
            attention_out: 1.1,
            mlp_gate: 0.9,
            mlp_out: 0.5,
        },
        ..granite.clone()
    };
    let falcon_mamba = Config {
        family: Family::FalconMamba,
        ssm: Ssm::Mamba { time_step_rank: 2, norm_eps: Some(1e-6) },
        ..config()
    };
    vec![
        ("Mamba", config()),
        ("Falcon-Mamba", falcon_mamba),
        ("Mamba-2", heads(Family::Mamba2, mamba2(Some(Mamba2Norm::gate_first(1)), 3))),
        ("Mamba-3", Config { mlp, ..mamba3(Mamba3Config { n_groups: 3, ..own }) }),
        (
            "Mamba-3 of two ranks",
            mamba3(Mamba3Config {
                mimo_rank: Some(2),
                rope_fraction: 1.0,
                a_activation: DecayActivation::Softplus,
                out_norm: true,
                ..own
            }),
        ),
        ("Granite", granite),
        ("Falcon-H1", Config { ssm: mamba2(None, 1), ..falcon_h1.clone() }),
        ("Falcon-H1, norm first", Config { ssm: mamba2(Some(norm_first), 3), ..falcon_h1 }),
    ]
}

/// Weights without a pattern, and large enough that all of them matter.
fn model_of(config: &Config, dtype: DType, device: &Device) -> LanguageModel {
    let mut seed = 0;
    LanguageModel::load(config, dtype, device, |name, shape| {
        seed += 1;
        let scale = if name.ends_with("D") || name.contains("dt_proj") { 1.0 } else { 0.6 };
        Ok(Tensor::randn(shape, seed, DType::F64, &Device::Cpu)?.scale(scale)?)
    })
    .unwrap()
}

fn model(dtype: DType, device: &Device) -> LanguageModel {
    model_of(&config(), dtype, device)
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
fn half_lives(scan: &Scan) -> Vec<u64> {
    let last = HALF_LIFE_EDGES.len() - 2;
    let mut counts = vec![0; last + 1];
    for tokens in &scan.half_lives {
        let above = HALF_LIFE_EDGES.iter().filter(|edge| *edge <= tokens).count();
        counts[above.saturating_sub(1).min(last)] += 1;
    }
    counts
}

/// `‖∂loss/∂memory‖` at a layer and some tokens, by differences of fourth order: with this step both
/// their errors, of truncation and of rounding, are below 1e-11.
fn reaches(naive: &Naive, ids: &[u32], at: (usize, Memory), elements: usize) -> Vec<f64> {
    const STEP: f64 = 4e-4;
    let (layer, memory) = at;
    let reach = |token: usize| {
        norm((0..elements).map(|element| {
            let loss = |steps: f64| {
                let nudge = Nudge { layer, memory, token, element, by: steps * STEP };
                naive.run(ids, Some(nudge)).loss
            };
            (8.0 * (loss(1.0) - loss(-1.0)) - (loss(2.0) - loss(-2.0))) / (12.0 * STEP)
        }))
    };
    some_tokens(ids).map(reach).into()
}

/// The first and the last, around a chunk of the scan, and the one that predicts.
fn some_tokens(ids: &[u32]) -> [usize; 6] {
    [0, 1, 15, 16, ids.len() - 2, ids.len() - 1]
}

/// The mean of `|M|` over maps, `[l, l]`.
fn mean_map<'a>(maps: impl Iterator<Item = &'a Vec<Vec<f64>>>) -> Vec<f64> {
    let maps: Vec<Vec<f64>> = maps.map(|map| map.concat()).collect();
    let at = |i: usize| maps.iter().map(|map| map[i].abs()).sum::<f64>();
    (0..maps[0].len()).map(|i| at(i) / maps.len() as f64).collect()
}

fn hidden_attention(scan: &Scan) -> Vec<f64> {
    mean_map(scan.m.iter().flatten().flatten())
}

fn attention(heads: &Heads) -> Vec<f64> {
    mean_map(heads.weights.iter())
}

fn check(name: &str, found: &Inspection, naive: &Naive, expected: &Run, tolerance: f64) {
    let ids = &found.ids;
    assert_close(&format!("{name}: loss"), &[found.loss], &[expected.loss], tolerance);
    assert_eq!(found.layers.len(), expected.layers.len());
    for (i, (found, expected)) in found.layers.iter().zip(&expected.layers).enumerate() {
        let close = |view: &str, found: &[f64], expected: &[f64], tolerance| {
            assert_close(&format!("{name}: {view} of layer {i}"), found, expected, tolerance)
        };
        let check_reach = |found: &[f64], memory, elements| {
            let expected = reaches(naive, ids, (i, memory), elements);
            let some = some_tokens(ids).map(|t| found[t]);
            close("gradient", &some, &expected, tolerance.max(1e-10));
            assert_eq!(found[ids.len() - 1], 0.0, "nothing follows the last token");
        };
        assert_eq!(found.scan.is_some(), expected.scan.is_some(), "{name}: layer {i}");
        if let Some((found, expected)) = found.scan.as_ref().zip(expected.scan.as_ref()) {
            let means: Vec<f64> = expected.delta.iter().map(|delta| mean(delta)).collect();
            close("delta", &found.delta, &expected.delta.concat(), tolerance);
            close("mean delta", &found.mean_delta, &means, tolerance);
            assert_eq!(found.lanes(), expected.delta[0].len());
            let norms: Vec<f64> = expected.h.iter().map(|h| norm(h.iter().copied())).collect();
            close("state norm", &found.state_norm, &norms, tolerance);
            let map = found.hidden_attention();
            close("hidden attention", &map.values, &hidden_attention(expected), tolerance);
            check_reach(&found.gradient_reach, Memory::State, expected.h[0].len());
        }
        assert_eq!(found.attention.is_some(), expected.heads.is_some(), "{name}: layer {i}");
        if let Some((found, expected)) = found.attention.as_ref().zip(expected.heads.as_ref()) {
            let map = found.attention();
            close("attention", &map.values, &attention(expected), tolerance);
            check_reach(&found.gradient_reach, Memory::KeyAndValue, expected.memory);
        }
    }
}

#[test]
fn f64_equals_plain_loops() {
    let ids = tokens(19);
    for (name, config) in every_family() {
        let model = model_of(&config, DType::F64, &Device::Cpu);
        let naive = Naive::new(&model);
        let expected = naive.run(&ids, None);
        let found = block_on(model.inspect(&ids)).unwrap();
        assert_eq!(found.ids, ids);
        check(name, &found, &naive, &expected, 1e-10);
        for (found, expected) in found.layers.iter().zip(&expected.layers) {
            let counted = found.scan.as_ref().map(|scan| scan.half_lives.clone());
            assert_eq!(counted, expected.scan.as_ref().map(half_lives), "{name}");
        }
    }
}

/// All views, against those of the same model in f64.
fn check_views(name: &str, found: &Inspection, expected: &Inspection, tolerance: f64) {
    let close = |view: &str, found: &[f64], expected: &[f64]| {
        assert_close(&format!("{name}: {view}"), found, expected, tolerance)
    };
    close("loss", &[found.loss], &[expected.loss]);
    for (i, (found, expected)) in found.layers.iter().zip(&expected.layers).enumerate() {
        let of_layer = |view: &str| format!("{view} of layer {i}");
        if let Some(expected) = &expected.scan {
            let found = found.scan.as_ref().expect(name);
            close(&of_layer("delta"), &found.delta, &expected.delta);
            close(&of_layer("mean delta"), &found.mean_delta, &expected.mean_delta);
            close(&of_layer("state norm"), &found.state_norm, &expected.state_norm);
            close(&of_layer("gradient"), &found.gradient_reach, &expected.gradient_reach);
            let [found, expected] = [found, expected].map(|scan| scan.hidden_attention().values);
            close(&of_layer("hidden attention"), &found, &expected);
        }
        if let Some(expected) = &expected.attention {
            let found = found.attention.as_ref().expect(name);
            close(&of_layer("gradient"), &found.gradient_reach, &expected.gradient_reach);
            let [found, expected] = [found, expected].map(|heads| heads.attention().values);
            close(&of_layer("attention"), &found, &expected);
        }
    }
}

/// Half precision rounds activations to 3 digits, and each layer adds its own errors.
#[test]
fn every_device_and_dtype_agrees() {
    let ids = tokens(19);
    for (name, config) in every_family() {
        let expected = block_on(model_of(&config, DType::F64, &Device::Cpu).inspect(&ids)).unwrap();
        let tolerances = [(DType::F32, 2e-5), (DType::BF16, 0.1), (DType::F16, 0.02)];
        for device in devices() {
            let supported = tolerances.iter().filter(|(dtype, _)| device.supports(*dtype));
            for (dtype, tolerance) in supported {
                let model = model_of(&config, *dtype, &device);
                let found = block_on(model.inspect(&ids)).unwrap();
                let what = format!("{name} in {dtype} on {}", device.name());
                check_views(&what, &found, &expected, *tolerance);
                let again = block_on(model.inspect(&ids)).unwrap();
                assert_eq!(found, again, "the same bits");
            }
        }
    }
}

/// `y_t = Σ_{s ≤ t} M[t, s]·x_s`: what the reference is worth that the attention is compared with.
#[test]
fn attention_is_what_the_scan_does() {
    for (name, config) in every_family() {
        let model = model_of(&config, DType::F64, &Device::Cpu);
        let run = Naive::new(&model).run(&tokens(19), None);
        for scan in run.layers.iter().filter_map(|layer| layer.scan.as_ref()) {
            for (lane, m) in scan.m.iter().enumerate() {
                for (t, y) in scan.y.iter().enumerate() {
                    for (to, y) in y[lane].iter().enumerate() {
                        for (p, y) in y.iter().enumerate() {
                            let of = |s: usize, (from, m): (usize, &Vec<Vec<f64>>)| {
                                m[t][s] * scan.x[s][lane][from][p]
                            };
                            let token = |s| m[to].iter().enumerate().map(|m| of(s, m)).sum::<f64>();
                            let found: f64 = (0..=t).map(token).sum();
                            assert!((found - y).abs() < 1e-12, "{name}: {found}, expected {y}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn attention_is_of_the_last_128_tokens() {
    let ids = tokens(150);
    for (name, config) in every_family() {
        let model = model_of(&config, DType::F64, &Device::Cpu);
        let expected = Naive::new(&model).run(&ids, None);
        let found = block_on(model.inspect(&ids)).unwrap();
        let (found, expected) = (&found.layers[1], &expected.layers[1]);
        let hidden = found.scan.as_ref().map(|scan| scan.hidden_attention());
        let of_heads = found.attention.as_ref().map(|heads| heads.attention());
        let wholes =
            [expected.scan.as_ref().map(hidden_attention), expected.heads.as_ref().map(attention)];
        for (found, whole) in [hidden, of_heads].into_iter().zip(wholes) {
            let (Some(found), Some(whole)) = (found, whole) else { continue };
            assert_eq!((found.first, found.len), (22, 128));
            let rows = (22..150).flat_map(|t| &whole[t * 150 + 22..t * 150 + 150]);
            assert_close(name, &found.values, &rows.copied().collect::<Vec<_>>(), 1e-10);
        }
    }
}

/// Decays whose product over the text is far below the smallest float.
#[test]
fn long_products_become_zero() {
    let model = LanguageModel::load(&config(), DType::F32, &Device::Cpu, |name, shape| {
        let value = if name.ends_with("A_log") { 4.0 } else { 0.5 };
        Ok(Tensor::full(shape, value, DType::F64, &Device::Cpu)?)
    });
    let found = block_on(model.unwrap().inspect(&tokens(100))).unwrap();
    let attention = found.layers[0].scan.as_ref().unwrap().hidden_attention();
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
