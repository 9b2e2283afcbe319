//! What a model computes, whatever way it computes it.

use taipan::check::devices;
use taipan::{DType, Device, Tensor};
use taipan_lm::{
    Activations, AttentionConfig, Batch, Config, Family, IGNORE, Initialization, LanguageModel,
    LayerKind, Mamba3Config, MlpConfig, Multipliers, Role, Ssm, TimeStepInit,
};

fn config() -> Config {
    Config {
        vocab_size: 23,
        hidden_size: 24,
        layers: vec![LayerKind::Ssm; 3],
        state_size: 5,
        ssm: Ssm::mamba(2),
        ..Config::default()
    }
}

/// One of every kind of mixer.
fn configs() -> [Config; 7] {
    let mamba2 = Config { family: Family::Mamba2, ssm: Ssm::mamba2(3), ..config() };
    let mamba3 = |mimo_rank| Config {
        family: Family::Mamba3,
        ssm: Ssm::Mamba3(Mamba3Config { mimo_rank, ..Mamba3Config::new(3) }),
        state_size: 6,
        ..config()
    };
    let mlp = Some(MlpConfig { size: 10, use_bias: false });
    let attention = AttentionConfig { rope_theta: Some(100.0), ..AttentionConfig::new(4, 2, 6) };
    let hybrid = Config {
        family: Family::Granite,
        layers: vec![LayerKind::Ssm, LayerKind::Attention, LayerKind::Ssm],
        attention: Some(attention),
        mlp,
        multipliers: Multipliers { logits: 0.5, embedding: 3.0, ..Multipliers::default() },
        ..mamba2.clone()
    };
    let side_by_side = Config {
        family: Family::FalconH1,
        layers: vec![LayerKind::Both; 2],
        multipliers: Multipliers { ssm: [0.5, 2.0, 1.5, 1.25, 0.75], ..Multipliers::default() },
        ..hybrid.clone()
    };
    let original = Config { mlp, ..mamba2.clone() };
    [config(), mamba2, mamba3(None), mamba3(Some(2)), hybrid, side_by_side, original]
}

/// Every kind of mixer on every device.
fn cases() -> impl Iterator<Item = (Config, Device)> {
    configs().into_iter().flat_map(|config| devices().into_iter().map(move |d| (config.clone(), d)))
}

/// Tokens without a pattern.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 7 + i * 3 + 1) % 23).collect()
}

fn batch(ids: &[u32], documents: &[usize]) -> Batch {
    let len = ids.len() - 1;
    Batch {
        batch_size: 1,
        block_size: len,
        ids: ids[..len].to_vec(),
        targets: ids[1..].to_vec(),
        seq_start: (0..len).map(|i| documents.contains(&i) as u32).collect(),
    }
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to(&Device::Cpu).unwrap().cast(DType::F64).unwrap().read_blocking().unwrap()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < tolerance, "{found}, expected {expected}");
    }
}

#[test]
fn text_in_pieces_gives_the_logits_of_the_whole() {
    let ids = tokens(40);
    for (config, device) in cases() {
        let model = LanguageModel::new(&config, DType::F32, 1, &device).unwrap();
        let tensor = |ids: &[u32]| Tensor::new(ids, &[1, ids.len()], &device).unwrap();
        let whole = read(&model.next(&tensor(&ids), None).unwrap().0);
        for piece in [1, 2, 17, 39] {
            let (mut state, mut logits) = (None, None);
            for ids in ids.chunks(piece) {
                let (next, after) = model.next(&tensor(ids), state).unwrap();
                (logits, state) = (Some(next), Some(after));
            }
            assert_close(&read(&logits.unwrap()), &whole, 2e-6);
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_meet() {
    let (first, second) = (tokens(12), tokens(30)[12..24].to_vec());
    for (config, device) in cases() {
        let model = LanguageModel::new(&config, DType::F32, 1, &device).unwrap();
        let next = |ids: &[u32], batch_size: usize| {
            let ids = Tensor::new(ids, &[batch_size, 12], &device).unwrap();
            read(&model.next(&ids, None).unwrap().0)
        };
        let both = next(&[first.clone(), second.clone()].concat(), 2);
        assert_close(&both[..23], &next(&first, 1), 2e-6);
        assert_close(&both[23..], &next(&second, 1), 2e-6);
    }
}

#[test]
fn documents_in_a_row_learn_as_if_alone() {
    let ids = tokens(50);
    for (config, device) in cases() {
        let model = LanguageModel::new(&config, DType::F32, 1, &device).unwrap();
        let loss = |batch: &Batch| model.loss(batch).unwrap().item().unwrap();
        // One of 20 tokens and one of 29, the last of the one predicting nothing.
        let mut packed = batch(&ids, &[0, 20]);
        packed.targets[19] = IGNORE;
        let (first, second) = (loss(&batch(&ids[..20], &[])), loss(&batch(&ids[20..], &[])));
        let expected = (19.0 * first + 29.0 * second) / 48.0;
        assert_close(&[loss(&packed)], &[expected], 2e-6);
        let mut mixed = batch(&ids, &[0]);
        mixed.targets[19] = IGNORE;
        assert!((loss(&mixed) - expected).abs() > 1e-4, "without a start, they meet");
    }
}

#[test]
fn recomputed_activations_give_the_same_bits() {
    for (config, device, dtype) in cases().flat_map(|(config, device)| {
        let types = [DType::F32, DType::F16].into_iter().filter(|dtype| device.supports(*dtype));
        types.map(|dtype| (config.clone(), device.clone(), dtype)).collect::<Vec<_>>()
    }) {
        let kept = LanguageModel::new(&config, dtype, 1, &device).unwrap();
        let recomputed = kept.clone().with_activations(Activations::Recomputed);
        let batch = batch(&tokens(34), &[0, 9]);
        let gradients = |model: &LanguageModel| {
            let loss = model.loss(&batch).unwrap();
            let grads = loss.backward().unwrap();
            let of = |p: &taipan_lm::Parameter| read(grads.of(p).unwrap());
            (loss.item().unwrap(), model.parameters().iter().map(of).collect::<Vec<_>>())
        };
        assert_eq!(gradients(&kept), gradients(&recomputed), "{dtype} on {}", device.name());
    }
}

#[test]
fn weights_begin_as_in_the_paper() {
    let config =
        Config { layers: vec![LayerKind::Ssm; 4], hidden_size: 64, use_bias: true, ..config() };
    let model = LanguageModel::new(&config, DType::F64, 5, &Device::Cpu).unwrap();
    let inner = 128;
    let mut seen = 0;
    for parameter in model.parameters() {
        let values = read(&parameter);
        let within = |bound: f64| {
            let most = values.iter().fold(0f64, |most, x| most.max(x.abs()));
            assert!((0.8 * bound..=bound).contains(&most), "{}: {most}", parameter.name);
        };
        let name = parameter.stored.rsplit("mixer.").next().unwrap();
        let role = match name {
            "backbone.embeddings.weight" => {
                let mean_square = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
                assert!((mean_square.sqrt() - 0.02).abs() < 0.001, "{}", mean_square.sqrt());
                Role::Matrix
            }
            "in_proj.weight" => {
                within(1.0 / 8.0);
                Role::Matrix
            }
            "conv1d.weight" => {
                within(0.5);
                Role::Matrix
            }
            "conv1d.bias" => {
                within(0.5);
                Role::Vector
            }
            "x_proj.weight" => {
                within((inner as f64).powf(-0.5));
                Role::Matrix
            }
            "dt_proj.weight" => {
                within(2f64.powf(-0.5));
                Role::Matrix
            }
            "out_proj.weight" => {
                within((inner as f64).powf(-0.5) / 2.0);
                Role::Matrix
            }
            "dt_proj.bias" => {
                let mut steps: Vec<f64> = values.iter().map(|x| x.exp().ln_1p()).collect();
                steps.sort_by(f64::total_cmp);
                assert!(steps[0] >= 1e-3 && steps[inner - 1] <= 0.1, "{steps:?}");
                // Even by their logarithm: half of them below the geometric mean.
                assert!((0.006..0.016).contains(&steps[inner / 2]), "{}", steps[inner / 2]);
                Role::Recurrence
            }
            "A_log" => {
                let expected = (0..inner * 5).map(|i| ((i % 5 + 1) as f64).ln());
                assert_close(&values, &expected.collect::<Vec<_>>(), 1e-14);
                Role::Recurrence
            }
            "D" => {
                assert!(values.iter().all(|x| *x == 1.0));
                Role::Recurrence
            }
            "in_proj.bias" | "out_proj.bias" => {
                assert!(values.iter().all(|x| *x == 0.0));
                Role::Vector
            }
            _ => {
                assert!(name.ends_with("norm.weight") || name.ends_with("norm_f.weight"), "{name}");
                assert!(values.iter().all(|x| *x == 1.0));
                Role::Vector
            }
        };
        assert_eq!(parameter.role, role, "{name}");
        seen += parameter.len();
    }
    assert_eq!(seen, config.parameters());
}

#[test]
fn new_weights_follow_the_settings_of_the_config() {
    let init = Initialization {
        time_step_min: 0.01,
        time_step_max: 0.5,
        time_step_floor: 0.05,
        time_step_scale: 0.25,
        time_step_init_scheme: TimeStepInit::Constant,
        initializer_range: 0.3,
    };
    let config = Config { hidden_size: 64, tie_word_embeddings: false, init, ..config() };
    let model = LanguageModel::new(&config, DType::F64, 5, &Device::Cpu).unwrap();
    let values = |name: &str| {
        let all = model.parameters();
        read(all.iter().find(|parameter| parameter.stored.ends_with(name)).unwrap())
    };
    let mut steps: Vec<f64> = values("dt_proj.bias").iter().map(|x| x.exp().ln_1p()).collect();
    steps.sort_by(f64::total_cmp);
    // ln(0.05 / 0.01) / ln(0.5 / 0.01) of them, 0.41, are below the floor.
    let floor = steps.iter().filter(|step| (**step - 0.05).abs() < 1e-12).count();
    assert!((0.3..0.5).contains(&(floor as f64 / steps.len() as f64)), "{floor}");
    assert!(steps[0] > 0.05 - 1e-12 && (0.4..=0.5).contains(steps.last().unwrap()));
    let magnitude = 0.25 * 2f64.powf(-0.5);
    assert!(values("dt_proj.weight").iter().all(|x| *x == magnitude));
    for table in ["embeddings.weight", "lm_head.weight"] {
        let values = values(table);
        let mean_square = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
        assert!((mean_square.sqrt() - 0.3).abs() < 0.015, "{table}: {}", mean_square.sqrt());
    }
    let wrong = Initialization { time_step_floor: -1.0, ..init };
    let error = LanguageModel::new(&Config { init: wrong, ..config }, DType::F32, 1, &Device::Cpu);
    assert!(error.unwrap_err().to_string().starts_with("config: time_step_floor is -1, expected"));
}

#[test]
fn the_config_lists_the_tensors_of_the_model() {
    let options = [false, true];
    let options = options.into_iter().flat_map(|a| options.map(|b| (a, b, a != b)));
    for ((use_bias, use_conv_bias, tie_word_embeddings), base) in
        options.flat_map(|options| configs().map(|config| (options, config)))
    {
        let config = Config {
            use_bias: use_bias && base.family != Family::Mamba3,
            use_conv_bias,
            tie_word_embeddings,
            intermediate_size: Some(21),
            ..base
        };
        let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu).unwrap();
        let mut stored: Vec<(String, Vec<usize>, Role)> = Vec::new();
        for parameter in model.parameters() {
            match stored.last_mut() {
                Some((name, shape, _)) if *name == parameter.stored => {
                    shape[0] += parameter.stored_shape[0];
                }
                _ => stored.push((
                    parameter.stored.clone(),
                    parameter.stored_shape.clone(),
                    parameter.role,
                )),
            }
        }
        let listed = config.tensors().into_iter().map(|t| (t.name, t.shape, t.role));
        assert_eq!(listed.collect::<Vec<_>>(), stored);
    }
}

#[test]
fn models_begin_alike_everywhere() {
    let double = LanguageModel::new(&config(), DType::F64, 7, &Device::Cpu).unwrap();
    for device in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if !device.supports(dtype) {
                continue;
            }
            let model = LanguageModel::new(&config(), dtype, 7, &device).unwrap();
            for (own, double) in model.parameters().into_iter().zip(double.parameters()) {
                let dtype = own.role.dtype(dtype);
                assert_eq!(own.dtype(), dtype, "{}", own.name);
                assert_eq!(read(&own), read(&double.cast(dtype).unwrap()), "{}", own.name);
            }
        }
    }
    let other = LanguageModel::new(&config(), DType::F64, 8, &Device::Cpu).unwrap();
    assert_ne!(read(&other.parameters()[0]), read(&double.parameters()[0]));
    // No two parameters are alike, which share nothing but their shape.
    let layers: Vec<Vec<f64>> = double
        .parameters()
        .into_iter()
        .filter(|p| p.role == Role::Matrix)
        .map(|p| read(&p))
        .collect();
    for (i, one) in layers.iter().enumerate() {
        assert!(layers[..i].iter().all(|other| other[..8] != one[..8]), "matrix {i}");
    }
}

#[test]
fn wrong_input_is_an_error() {
    let model = LanguageModel::new(&config(), DType::F32, 1, &Device::Cpu).unwrap();
    let error = |ids: &[u32], shape: &[usize]| {
        let ids = Tensor::new(ids, shape, &Device::Cpu).unwrap();
        model.next(&ids, None).unwrap_err().to_string()
    };
    assert_eq!(error(&[1, 2], &[2]), "next: ids are [2], expected [b, l]");
    assert_eq!(error(&[], &[1, 0]), "next: ids are [b, 0], expected at least one token");
    assert_eq!(error(&[1, 23], &[1, 2]), "embedding: id 23 at position 1, expected less than 23");
    let deeper = Config { layers: vec![LayerKind::Ssm; config().layers.len() + 1], ..config() };
    let deeper = LanguageModel::new(&deeper, DType::F32, 1, &Device::Cpu).unwrap();
    let ids = Tensor::new(&[1u32], &[1, 1], &Device::Cpu).unwrap();
    let (_, state) = deeper.next(&ids, None).unwrap();
    let error = model.next(&ids, Some(state)).unwrap_err().to_string();
    let layers = config().layers.len();
    let expected = format!("next: a state of {} layers, expected {layers}", layers + 1);
    assert_eq!(error, expected);
    let short = Batch { ids: vec![1, 2, 3], ..batch(&tokens(9), &[]) };
    let error = model.loss(&short).unwrap_err().to_string();
    assert_eq!(error, "tensor: 3 values found, expected 8 for [1, 8]");
    let error = LanguageModel::new(&config(), DType::U32, 1, &Device::Cpu).unwrap_err().to_string();
    assert_eq!(error, "model: the dtype is u32, expected a float");
}
