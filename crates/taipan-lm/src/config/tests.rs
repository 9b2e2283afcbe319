//! `config.json` files, read and written.

use super::*;

#[test]
fn defaults_are_those_of_hugging_face() {
    let config = Config::from_json(r#"{"model_type": "mamba"}"#).unwrap();
    assert_eq!((config.hidden_size, config.layers.len()), (768, 32));
    assert_eq!((config.ssm, config.inner_size()), (Ssm::mamba(48), 1536));
    assert!(config.tie_word_embeddings && config.use_conv_bias && !config.use_bias);
}

#[test]
fn what_tools_write_is_read() {
    let json = r#"{"model_type": "mamba", "hidden_size": 40, "expand": 2,
        "intermediate_size": 120, "time_step_rank": "auto", "time_step_limit": [0.0, Infinity],
        "comment": "a \"NaN\" in a string", "tie_embeddings": false}"#;
    let config = Config::from_json(json).unwrap();
    assert_eq!(config.expand, 3, "intermediate_size wins over expand");
    assert_eq!(config.ssm, Ssm::mamba(3), "ceil(40 / 16)");
    assert!(!config.tie_word_embeddings);
}

#[test]
fn any_number_of_inner_channels_is_read() {
    let read = |keys: &str| {
        let json = format!(r#"{{"model_type": "mamba", "hidden_size": 20, {keys}}}"#);
        let config = Config::from_json(&json).unwrap();
        assert_eq!(Config::from_json(&config.to_json(DType::F32, None)).unwrap(), config);
        (config.inner_size(), config.expand, config.intermediate_size)
    };
    assert_eq!(read(r#""expand": 2, "intermediate_size": 50"#), (50, 2, Some(50)));
    assert_eq!(read(r#""expand": 3, "intermediate_size": 7"#), (7, 1, Some(7)));
    assert_eq!(read(r#""expand": 3, "intermediate_size": 40"#), (40, 2, None));
    assert_eq!(read(r#""expand": 2.5"#), (50, 2, Some(50)));
    assert_eq!(read(r#""expand": 3, "intermediate_size": null"#), (60, 3, None));
}

#[test]
fn settings_of_new_weights_are_read_and_written() {
    let json = r#"{"model_type": "mamba", "time_step_min": 0.01, "time_step_max": 0.2,
        "time_step_floor": 0.02, "time_step_scale": 0.5, "initializer_range": 0.3,
        "time_step_init_scheme": "constant"}"#;
    let init = Config::from_json(json).unwrap().init;
    let expected = Initialization {
        time_step_min: 0.01,
        time_step_max: 0.2,
        time_step_floor: 0.02,
        time_step_scale: 0.5,
        time_step_init_scheme: TimeStepInit::Constant,
        initializer_range: 0.3,
    };
    assert_eq!(init, expected);
    assert!(init.check().is_ok());
    let wrong = Initialization { time_step_max: 0.001, ..init };
    let error = wrong.check().unwrap_err().to_string();
    assert_eq!(error, "config: time_step_max is 0.001, expected 0.01 to 1000");
    assert!(Initialization { time_step_min: 0.0, ..init }.check().is_err());
    let plain = Config::from_json(r#"{"model_type": "mamba"}"#).unwrap().init;
    assert_eq!(plain.initializer_range, 0.1, "transformers' default");
}

#[test]
fn original_files_are_read() {
    let json = r#"{"d_model": 40, "n_layer": 3, "vocab_size": 50277, "rms_norm": true,
        "ssm_cfg": {"layer": "Mamba1", "d_state": 8, "d_conv": 3, "expand": 1.5, "dt_rank": 5,
        "dt_min": 0.01, "dt_max": 0.2, "dt_init": "constant", "dt_scale": 2,
        "dt_init_floor": 0.001, "conv_bias": false, "bias": true, "use_fast_path": false},
        "residual_in_fp32": false, "fused_add_norm": false, "pad_vocab_size_multiple": 16,
        "tie_embeddings": false, "d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {},
        "unknown": NaN}"#;
    let config = Config::from_json(json).unwrap();
    let expected = Config {
        family: Family::Mamba,
        vocab_size: 50288,
        hidden_size: 40,
        layers: vec![LayerKind::Ssm; 3],
        ssm: Ssm::mamba(5),
        state_size: 8,
        conv_kernel: 3,
        expand: 1,
        intermediate_size: Some(60),
        use_bias: true,
        use_conv_bias: false,
        out_proj_bias: None,
        attention: None,
        mlp: None,
        multipliers: Multipliers::default(),
        layer_norm_epsilon: 1e-5,
        residual_in_fp32: false,
        tie_word_embeddings: false,
        init: Initialization {
            time_step_min: 0.01,
            time_step_max: 0.2,
            time_step_floor: 0.001,
            time_step_scale: 2.0,
            time_step_init_scheme: TimeStepInit::Constant,
            initializer_range: 0.02,
        },
    };
    assert_eq!(config, expected);
    assert_eq!(Config::from_json(&config.to_original_json().unwrap()).unwrap(), config);
    let plain = Config::from_json(r#"{"d_model": 768}"#).unwrap();
    let published = Config { layers: vec![LayerKind::Ssm; 64], ..Config::default() };
    assert_eq!(plain, published, "the defaults of the original code");
    assert_eq!(Config::from_json(&plain.to_original_json().unwrap()).unwrap(), plain);
    let error = Config { layer_norm_epsilon: 1e-6, ..plain }.to_original_json().unwrap_err();
    assert_eq!(
        error.to_string(),
        "config: layer_norm_epsilon is 0.000001, expected 1e-5, as always in the original code"
    );
}

#[test]
fn inner_channels_survive_the_original_product() {
    for hidden_size in [3, 7, 20, 768, 1000] {
        for intermediate_size in (1..300).chain([1535, 1537]) {
            let (expand, intermediate_size) = Config::inner(hidden_size, intermediate_size);
            let config = Config {
                hidden_size,
                expand,
                intermediate_size,
                ssm: Ssm::mamba(1),
                ..Config::default()
            };
            let again = Config::from_json(&config.to_original_json().unwrap()).unwrap();
            assert_eq!(again, config);
        }
    }
}

#[test]
fn originals_of_another_kind_are_refused() {
    for (keys, expected) in [
        (r#""rms_norm": false"#, "rms_norm is false, expected true"),
        (r#""attn_layer_idx": [3]"#, "attn_layer_idx is [3], expected []"),
        (
            r#""ssm_cfg": {"layer": "Mamba4"}"#,
            "ssm_cfg.layer is \"Mamba4\", expected \"Mamba1\", \"Mamba2\" or \"Mamba3\"",
        ),
        (r#""ssm_cfg": {"layer": "Mamba2", "d_ssm": 64}"#, "d_ssm is 64, expected null"),
        (r#""ssm_cfg": {"layer": "Mamba2", "rmsnorm": false}"#, "rmsnorm is false, expected true"),
        (
            r#""ssm_cfg": {"layer": "Mamba2", "D_has_hdim": true}"#,
            "D_has_hdim is true, expected false",
        ),
        (r#""ssm_cfg": {"d_sate": 8}"#, "ssm_cfg has d_sate, which is not known"),
        (r#""ssm_cfg": {"d_state": NaN}"#, "d_state is \"NaN\", expected a whole number"),
        (r#""ssm_cfg": 3"#, "ssm_cfg is 3, expected an object"),
        (
            r#""ssm_cfg": {"dt_rank": "all"}"#,
            "dt_rank is \"all\", expected a whole number or \"auto\"",
        ),
        (
            r#""ssm_cfg": {"dt_init": "zero"}"#,
            "dt_init is \"zero\", expected \"random\" or \"constant\"",
        ),
        (r#""pad_vocab_size_multiple": 0"#, "pad_vocab_size_multiple is 0, expected 1 to 262144"),
        (r#""vocab_size": -1"#, "vocab_size is -1, expected a whole number"),
    ] {
        let json = format!(r#"{{"d_model": 768, {keys}}}"#);
        let error = Config::from_json(&json).unwrap_err().to_string();
        assert_eq!(error, format!("config: {expected}"));
    }
}

#[test]
fn mlps_of_the_original_code_are_read_and_written() {
    let json = r#"{"d_model": 24, "n_layer": 2, "vocab_size": 32, "d_intermediate": 130,
        "ssm_cfg": {"layer": "Mamba2", "headdim": 8}}"#;
    let config = Config::from_json(json).unwrap();
    // Rounded up to a multiple of 128.
    assert_eq!(config.mlp, Some(MlpConfig { size: 256, use_bias: false }));
    let plain = Config { mlp: None, ..config.clone() };
    assert_eq!(config.parameters() - plain.parameters(), 2 * (24 + 3 * 24 * 256));
    let tensors = config.tensors();
    let shape = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(shape("backbone.layers.1.norm2.weight").shape, [24]);
    assert_eq!(shape("backbone.layers.1.mlp.fc1.weight").shape, [512, 24]);
    assert_eq!(shape("backbone.layers.1.mlp.fc2.weight").shape, [24, 256]);
    assert_eq!(Config::from_json(&config.to_original_json().unwrap()).unwrap(), config);
    let saved = Config::from_json(&config.to_json(DType::F32, None)).unwrap();
    assert_eq!(saved.mlp, config.mlp, "a key of ours");
}

#[test]
fn what_files_of_a_family_cannot_say_is_refused() {
    let plain = Config::from_json(r#"{"model_type": "mamba2"}"#).unwrap();
    let error = |change: fn(&mut Config)| {
        let mut config = plain.clone();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(
        error(|c| c.multipliers.ssm_out = 0.5),
        "config: multipliers.ssm_out is 0.5, expected what files of Mamba-2 can say"
    );
    assert_eq!(
        error(|c| c.out_proj_bias = Some(true)),
        "config: out_proj_bias is true, expected what files of Mamba-2 can say"
    );
    assert_eq!(
        error(|c| c.layers[3] = LayerKind::Attention),
        "config: attention is missing, expected the heads of layer 3"
    );
    let attention = error(|c| {
        c.layers[3] = LayerKind::Attention;
        c.attention = Some(AttentionConfig::new(4, 2, 16));
    });
    assert_eq!(
        attention,
        "config: layers is ones with attention, expected what files of Mamba-2 can say"
    );
    assert!(error(|c| c.ssm = Ssm::mamba(3)).starts_with("config: ssm is Mamba"));
}

#[test]
fn tensors_add_up_to_the_published_number() {
    let config = Config { layers: vec![LayerKind::Ssm; 24], ..Config::default() };
    let count = |tensor: &TensorSpec| tensor.shape.iter().product::<usize>();
    assert_eq!(config.tensors().iter().map(count).sum::<usize>(), 129_135_360);
    assert_eq!(config.tensors().len(), 2 + 24 * 10);
}

#[test]
fn the_largest_model_can_be_counted() {
    let json = r#"{"model_type": "mamba", "hidden_size": 262144, "num_hidden_layers": 262144,
        "expand": 1, "state_size": 256, "conv_kernel": 8192, "vocab_size": 262144,
        "time_step_rank": 262144, "tie_embeddings": true, "tie_word_embeddings": false}"#;
    let config = Config::from_json(json).unwrap();
    assert!(config.parameters() > 1 << 53 && !config.tie_word_embeddings);
}

#[test]
fn biases_and_an_untied_head_count() {
    let plain = Config::from_json(r#"{"model_type": "mamba"}"#).unwrap();
    let biased = Config { use_bias: true, ..plain.clone() };
    let untied = Config { tie_word_embeddings: false, ..plain.clone() };
    assert_eq!(biased.parameters() - plain.parameters(), 32 * (2 * 1536 + 768));
    assert_eq!(untied.parameters() - plain.parameters(), 50280 * 768);
}

#[test]
fn what_is_written_is_read() {
    let changes: [fn(&mut Config); 5] = [
        |c| (c.layer_norm_epsilon, c.tie_word_embeddings) = (0.1 + 0.2, false),
        |c| (c.use_bias, c.use_conv_bias, c.residual_in_fp32) = (true, false, false),
        |c| (c.expand, c.ssm, c.state_size, c.conv_kernel) = (3, Ssm::mamba(5), 7, 2),
        |c| (c.init.time_step_scale, c.init.time_step_floor) = (0.1, 1.0 / 3.0),
        |c| {
            (c.vocab_size, c.hidden_size, c.layers, c.ssm) =
                (9, 8, vec![LayerKind::Ssm], Ssm::mamba(1))
        },
    ];
    for change in changes {
        let mut config = Config::default();
        change(&mut config);
        let json = config.to_json(DType::BF16, None);
        assert!(json.contains("\"rescale_prenorm_residual\": false"), "see there");
        assert_eq!(Config::from_json(&json).unwrap(), config);
    }
}

#[test]
fn invalid_values_are_refused() {
    let error = |json: &str| Config::from_json(json).unwrap_err().to_string();
    for (key, value, expected) in [
        ("hidden_size", "0", "1 to 262144"),
        ("intermediate_size", "262145", "1 to 262144"),
        ("intermediate_size", "\"NaN\"", "a whole number"),
        ("expand", "\"Infinity\"", "a number"),
        ("tie_word_embeddings", "1", "true or false"),
        ("time_step_rank", r#""big""#, "a whole number or \"auto\""),
        ("time_step_init_scheme", "3", "\"random\" or \"constant\""),
        ("state_size", "257", "1 to 256"),
    ] {
        let found = error(&format!(r#"{{"model_type": "mamba", "{key}": {value}}}"#));
        assert_eq!(found, format!("config: {key} is {value}, expected {expected}"));
    }
    let expected = "config: model_type is \"bert\", expected one of \"mamba\", \"falcon_mamba\", \
                    \"mamba2\", \"granitemoehybrid\", \"falcon_h1\"";
    assert_eq!(error(r#"{"model_type": "bert"}"#), expected);
    assert_eq!(error("{}"), expected.replace("\"bert\"", "missing"));
    let relu = error(r#"{"model_type": "mamba", "hidden_act": "relu"}"#);
    assert_eq!(relu, "config: hidden_act is \"relu\", expected \"silu\"");
    for epsilon in ["1e300", "-1e-5", "NaN", "-Infinity", "Infinity"] {
        let json = format!(r#"{{"model_type": "mamba", "layer_norm_epsilon": {epsilon}}}"#);
        assert!(Config::from_json(&json).is_err(), "{epsilon}");
    }
    assert!(error("{").starts_with("config: EOF while parsing"));
}

#[test]
fn norms_of_falcon_mamba_are_read_and_written() {
    // Of the published model, whose `expand` is wrong.
    let json = r#"{"model_type": "falcon_mamba", "hidden_size": 4096, "expand": 16,
        "intermediate_size": 8192, "num_hidden_layers": 64, "vocab_size": 65024,
        "tie_word_embeddings": false, "mixer_rms_eps": 1e-5}"#;
    let config = Config::from_json(json).unwrap();
    assert_eq!(config.family, Family::FalconMamba);
    assert_eq!(config.ssm, Ssm::Mamba { time_step_rank: 256, norm_eps: Some(1e-5) });
    assert_eq!(config.parameters(), 7_272_665_088);
    let written = config.to_json(DType::BF16, None);
    assert!(written.contains("\"FalconMambaForCausalLM\""), "{written}");
    assert_eq!(Config::from_json(&written).unwrap(), config);
    let plain = Config::from_json(r#"{"model_type": "falcon_mamba"}"#).unwrap();
    assert_eq!(plain.ssm, Ssm::Mamba { time_step_rank: 48, norm_eps: Some(1e-6) });
    assert_eq!(
        plain.to_original_json().unwrap_err().to_string(),
        "config: the mixers have norms, expected none: the original code has no such model"
    );
    let error = Config::from_json(r#"{"model_type": "falcon_mamba", "mixer_rms_eps": 2}"#);
    assert_eq!(error.unwrap_err().to_string(), "config: mixer_rms_eps is 2, expected 0 to 1");
}

#[test]
fn mamba2_is_read_and_written_in_both_layouts() {
    let json = r#"{"model_type": "mamba2", "hidden_size": 48, "num_heads": 9, "head_dim": 8,
        "expand": 1.5, "state_size": 12, "n_groups": 3, "time_step_limit": [0.01, Infinity],
        "norm_before_gate": true, "chunk_size": 32, "num_hidden_layers": 2, "vocab_size": 20}"#;
    let config = Config::from_json(json).unwrap();
    let ssm = Ssm::Mamba2 {
        head_dim: 8,
        n_groups: 3,
        norm: Some(Mamba2Norm::gate_first(1)),
        time_step_limit: [0.01, f64::INFINITY],
        chunk_size: 32,
    };
    assert_eq!((config.family, config.ssm, config.inner_size()), (Family::Mamba2, ssm, 72));
    assert!(!config.tie_word_embeddings);
    for limit in ["[0.01, {\"__float__\": \"Infinity\"}]", "[0.01, null]"] {
        let other = json.replace("[0.01, Infinity]", limit);
        assert_eq!(Config::from_json(&other).unwrap(), config);
    }
    assert_eq!(Config::from_json(&config.to_json(DType::F32, None)).unwrap(), config);
    let plain = Config { ssm: Ssm::mamba2(8), ..config.clone() };
    assert!(!plain.to_json(DType::F32, None).contains("time_step_limit"), "every version reads it");
    assert_eq!(
        config.to_original_json().unwrap_err().to_string(),
        "config: norm_groups is 1, expected n_groups, 3, as always in the original code"
    );

    let json = r#"{"d_model": 48, "n_layer": 2, "vocab_size": 20, "pad_vocab_size_multiple": 16,
        "ssm_cfg": {"layer": "Mamba2", "headdim": 8, "ngroups": 3, "expand": 1.5}}"#;
    let original = Config::from_json(json).unwrap();
    let ssm = Ssm::Mamba2 {
        head_dim: 8,
        n_groups: 3,
        norm: Some(Mamba2Norm::gate_first(3)),
        time_step_limit: [0.0, f64::INFINITY],
        chunk_size: 256,
    };
    assert_eq!((original.ssm, original.vocab_size, original.state_size), (ssm, 32, 128));
    assert!(original.tie_word_embeddings);
    assert_eq!(Config::from_json(&original.to_original_json().unwrap()).unwrap(), original);
    let saved = original.to_json(DType::F32, None);
    assert!(saved.contains("\"norm_groups\": 3"), "{saved}");
    // Without our key, what the version of transformers does that wrote the file.
    for (rest, expected) in [
        ("", 1),
        (r#", "transformers_version": "4.44.0.dev0""#, 1),
        (r#", "transformers_version": "5.22.2""#, 1),
        (r#", "transformers_version": "5.23.0""#, 4),
        (r#", "transformers_version": "5.100.1""#, 4),
        (r#", "transformers_version": "6.0""#, 4),
        (r#", "transformers_version": "5.23.0", "norm_groups": 2"#, 2),
    ] {
        for json in [
            format!(r#"{{"model_type": "mamba2", "n_groups": 4{rest}}}"#),
            format!(
                r#"{{"model_type": "granitemoehybrid", "num_local_experts": 0,
                "mamba_n_groups": 4{rest}}}"#
            ),
        ] {
            let Ssm::Mamba2 { norm: Some(norm), .. } = Config::from_json(&json).unwrap().ssm else {
                panic!("{json}")
            };
            assert_eq!(norm.groups, expected, "{json}");
        }
    }
    assert_eq!(
        Config::from_json(&saved).unwrap(),
        Config { init: Config::from_json(&saved).unwrap().init, ..original }
    );

    let error = |keys: &str| {
        let json = format!(r#"{{"model_type": "mamba2", {keys}}}"#);
        Config::from_json(&json).unwrap_err().to_string()
    };
    assert_eq!(
        error(r#""num_heads": 3, "hidden_size": 64"#),
        "config: num_heads·head_dim is 192, expected expand·hidden_size, 128"
    );
    assert_eq!(
        error(r#""n_groups": 3"#),
        "config: n_groups is 3, expected a divisor of the number of heads, 128"
    );
    assert_eq!(
        error(r#""time_step_limit": [1, 0]"#),
        "config: time_step_limit is [1, 0], expected two numbers, the lesser first"
    );
    // Mamba-Codestral-7B.
    let codestral = Config::from_json(r#"{"model_type": "mamba2"}"#).unwrap();
    assert_eq!(codestral.parameters(), 7_285_403_648);
}

/// Hugging Face's library has no such model: files are those of the original code.
#[test]
fn mamba3_is_read_and_written_as_the_original_code_does() {
    let json = |ssm: &str, more: &str| {
        format!(
            r#"{{"d_model": 64, "n_layer": 2, "vocab_size": 98{more},
                "ssm_cfg": {{"layer": "Mamba3", "headdim": 16{ssm}}}}}"#
        )
    };
    let plain = Config::from_json(&json("", "")).unwrap();
    let expected = Config {
        family: Family::Mamba3,
        vocab_size: 104,
        hidden_size: 64,
        layers: vec![LayerKind::Ssm; 2],
        ssm: Ssm::Mamba3(Mamba3Config::new(16)),
        state_size: 128,
        ..Config::default()
    };
    assert_eq!(plain, expected);
    let ssm = r#", "d_state": 10, "expand": 1.5, "ngroups": 3, "rope_fraction": 1.0, "A_floor": 0.5,
        "is_outproj_norm": true, "is_mimo": true, "mimo_rank": 2, "A_activation": "softplus""#;
    let odd = Config::from_json(&json(ssm, r#", "d_intermediate": 100"#)).unwrap();
    assert_eq!((odd.inner_size(), odd.mlp.unwrap().size), (96, 128));
    let names: Vec<String> = odd.tensors().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!((names.len(), &*names[0]), (1 + 2 * 16 + 1, "backbone.embedding.weight"));
    assert_eq!(odd.tensors()[2].shape, [2 * 96 + 2 * 2 * 3 * 10 + 3 * 6 + 5, 64]);
    for config in [plain, odd] {
        let text = config.to_json(DType::BF16, Some(0));
        assert_eq!(text, config.to_original_json().unwrap());
        assert_eq!(Config::read(&text).unwrap(), (config, Layout::Original));
    }
    for (ssm, why) in [
        (r#", "d_conv": 4"#, "ssm_cfg has d_conv, which is not known"),
        (r#", "rope_fraction": 0.3"#, "rope_fraction is 0.3, expected 0.5 or 1"),
        (r#", "A_activation": "relu""#, "expected \"heavy_tail\" or \"softplus\""),
        (r#", "is_mimo": true, "mimo_rank": 33"#, "mimo_rank is 33, expected 1 to 32"),
        (r#", "is_mimo": true, "d_state": 9"#, "state_size is 9, expected an even number"),
        (r#", "ngroups": 3"#, "n_groups is 3, expected a divisor of the number of heads, 8"),
        (r#", "d_state": 3"#, "state_size is 3, expected enough for a pair of states that turns"),
        (r#", "A_floor": -1"#, "A_floor is -1"),
    ] {
        let error = Config::from_json(&json(ssm, "")).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let error = Config::from_json(r#"{"model_type": "mamba3"}"#).unwrap_err().to_string();
    assert!(error.contains("expected the config.json of the original code"), "{error}");
}
