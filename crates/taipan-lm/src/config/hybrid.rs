//! Keys that hybrids of Mamba-2 and attention have in common.

use serde_json::{Value, json};

use super::family::Names;
use super::keys::{Keys, invalid};
use super::{Config, Initialization, Mamba2Norm, OWNER, Ssm, mamba, mamba2};
use crate::Result;
use crate::error::ensure;

/// What both families call the parts of a model; the rest is each one's own.
pub(super) const NAMES: Names = Names {
    embeddings: "model.embed_tokens",
    layers: "model.layers",
    norm: "input_layernorm",
    ssm: "mamba",
    attention: "self_attn",
    ..mamba::NAMES
};

/// The sizes of a model.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) layers: usize,
    initializer_range: f64,
}

impl Sizes {
    pub(super) fn read(keys: &mut Keys, vocab_size: usize) -> Result<Sizes> {
        keys.expect("hidden_act", &["\"silu\"", "\"swish\""])?;
        Ok(Sizes {
            vocab_size: keys.get_or("vocab_size", vocab_size)?,
            hidden_size: keys.get_or("hidden_size", 4096)?,
            layers: keys.get_or("num_hidden_layers", 32)?,
            initializer_range: keys.get_or("initializer_range", 0.02)?,
        })
    }

    /// The number of attention heads, and the channels of each.
    pub(super) fn heads(self, keys: &mut Keys) -> Result<(usize, usize)> {
        let heads = keys.get_or("num_attention_heads", 32)?;
        let equal = self.hidden_size.checked_div(heads).unwrap_or(0);
        Ok((heads, keys.get_or("head_dim", equal)?))
    }
}

/// The channels that `mamba_expand` stands for.
pub(super) fn expanded(keys: &mut Keys, hidden_size: usize) -> Result<usize> {
    Ok((keys.get_or("mamba_expand", 2.0)? * hidden_size as f64) as usize)
}

/// The state-space mixers.
pub(super) struct Mamba {
    inner: usize,
    head_dim: usize,
    pub(super) groups: usize,
    state_size: usize,
    conv_kernel: usize,
    chunk_size: usize,
    time_step_limit: [f64; 2],
    use_bias: bool,
    use_conv_bias: bool,
}

impl Mamba {
    /// Those with so many channels.
    pub(super) fn read(keys: &mut Keys, inner: usize) -> Result<Mamba> {
        let heads = keys.get_or("mamba_n_heads", 128usize)?;
        let head_dim = match keys.raw("mamba_d_head") {
            None | Some("\"auto\"") => inner.checked_div(heads).unwrap_or(0),
            Some(text) => serde_json::from_str(text)
                .map_err(|_| invalid("mamba_d_head", text, "a whole number or \"auto\""))?,
        };
        let product = heads.saturating_mul(head_dim);
        ensure!(
            product == inner,
            OWNER,
            "mamba_n_heads·mamba_d_head is {product}, expected the number of channels, {inner}"
        );
        Ok(Mamba {
            inner,
            head_dim,
            groups: keys.get_or("mamba_n_groups", 1)?,
            state_size: keys.get_or("mamba_d_state", 256)?,
            conv_kernel: keys.get_or("mamba_d_conv", 4)?,
            chunk_size: keys.get_or("mamba_chunk_size", 256)?,
            time_step_limit: mamba2::limit(keys, "time_step_limit")?,
            use_bias: keys.get_or("mamba_proj_bias", false)?,
            use_conv_bias: keys.get_or("mamba_conv_bias", true)?,
        })
    }

    /// A config of these mixers and sizes.
    pub(super) fn config(self, sizes: Sizes, norm: Option<Mamba2Norm>) -> Config {
        let (expand, intermediate_size) = Config::inner(sizes.hidden_size, self.inner);
        Config {
            vocab_size: sizes.vocab_size,
            hidden_size: sizes.hidden_size,
            ssm: Ssm::Mamba2 {
                head_dim: self.head_dim,
                n_groups: self.groups,
                norm,
                time_step_limit: self.time_step_limit,
                chunk_size: self.chunk_size,
            },
            state_size: self.state_size,
            conv_kernel: self.conv_kernel,
            expand,
            intermediate_size,
            use_bias: self.use_bias,
            use_conv_bias: self.use_conv_bias,
            init: Initialization {
                initializer_range: sizes.initializer_range,
                ..Initialization::default()
            },
            ..Config::default()
        }
    }
}

/// The base of rotary positions: in `rope_parameters` (transformers 5), or beside it.
pub(super) fn rope_theta(keys: &mut Keys) -> Result<f64> {
    keys.expect("partial_rotary_factor", &["1", "1.0"])?;
    let outer = keys.get_or("rope_theta", 10_000.0)?;
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(text) = keys.raw(name) else { continue };
        let Ok(mut own) = Keys::parse(text) else {
            return Err(invalid(name, text, "an object").into());
        };
        own.expect("rope_type", &["\"default\""])?;
        own.expect("type", &["\"default\""])?;
        own.expect("partial_rotary_factor", &["1", "1.0"])?;
        if let Some(theta) = own.get("rope_theta")? {
            return Ok(theta);
        }
    }
    Ok(outer)
}

/// The keys of both families.
pub(super) fn write(config: &Config, keys: &mut Value) {
    let Ssm::Mamba2 { head_dim, n_groups, chunk_size, .. } = config.ssm else { return };
    keys["hidden_act"] = json!("silu");
    keys["initializer_range"] = json!(config.init.initializer_range);
    keys["mamba_chunk_size"] = json!(chunk_size);
    keys["mamba_conv_bias"] = json!(config.use_conv_bias);
    keys["mamba_d_conv"] = json!(config.conv_kernel);
    keys["mamba_d_head"] = json!(head_dim);
    keys["mamba_d_state"] = json!(config.state_size);
    keys["mamba_n_groups"] = json!(n_groups);
    keys["mamba_n_heads"] = json!(config.inner_size() / head_dim.max(1));
    keys["mamba_proj_bias"] = json!(config.use_bias);
    keys["rms_norm_eps"] = json!(config.layer_norm_epsilon);
    mamba2::write_limit(config, keys);
    if let Some(attention) = config.attention {
        keys["attention_bias"] = json!(attention.use_bias);
        keys["head_dim"] = json!(attention.head_dim);
        keys["num_attention_heads"] = json!(attention.num_heads);
        keys["num_key_value_heads"] = json!(attention.num_key_value_heads);
        if let Some(theta) = attention.rope_theta {
            // The first for transformers 4, the second for 5.
            keys["rope_theta"] = json!(theta);
            keys["rope_parameters"] = json!({ "rope_theta": theta, "rope_type": "default" });
        }
    }
}

/// `1/factor`, in the shortest form whose reciprocal is the factor.
pub(super) fn reciprocal(factor: f64) -> f64 {
    let exact = 1.0 / factor;
    // Not by `str::parse`, whose tables would be a fiftieth of what a page loads.
    let short = serde_json::from_str(&format!("{exact:.12e}")).unwrap_or(exact);
    if 1.0 / short == factor { short } else { exact }
}

#[cfg(test)]
mod tests {
    use taipan::{DType, GateOrder};

    use super::*;
    use crate::config::{AttentionConfig, Family, LayerKind, MlpConfig, Multipliers};

    /// The sizes of ibm-granite/granite-4.0-h-350m.
    const GRANITE: &str = r#"{"model_type": "granitemoehybrid", "hidden_size": 768,
        "num_hidden_layers": 32, "num_local_experts": 0, "shared_intermediate_size": 2048,
        "num_attention_heads": 12, "num_key_value_heads": 4, "attention_multiplier": 0.015625,
        "mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128, "vocab_size": 100352,
        "embedding_multiplier": 12, "residual_multiplier": 0.246, "logits_scaling": 3,
        "position_embedding_type": "nope", "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        "rope_theta": 10000, "intermediate_size": 2048, "layer_types": TYPES}"#;

    fn granite(attention: &[usize], names: [&str; 2]) -> String {
        let names = (0..32).map(|i| names[usize::from(attention.contains(&i))]);
        GRANITE.replace("TYPES", &serde_json::to_string(&names.collect::<Vec<_>>()).unwrap())
    }

    fn error(json: &str) -> String {
        Config::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn granite_is_read_and_written() {
        let attention = [10, 13, 17, 27];
        let json = granite(&attention, ["mamba", "attention"]);
        let config = Config::from_json(&json).unwrap();
        assert_eq!((config.family, config.parameters()), (Family::Granite, 340_332_224));
        let at = |i: usize| config.layers[i].has_attention();
        assert!((0..32).all(|i| at(i) == attention.contains(&i)));
        let found = config.attention.unwrap();
        assert_eq!(
            found,
            AttentionConfig { scale: 0.015625, ..AttentionConfig::new(12, 4, 64) },
            "without positions"
        );
        let Multipliers { embedding, logits, ssm_out, attention_out, mlp_out, .. } =
            config.multipliers;
        assert_eq!([embedding, logits], [12.0, 1.0 / 3.0]);
        assert_eq!([ssm_out, attention_out, mlp_out], [0.246; 3]);
        let written = config.to_json(DType::BF16, None);
        assert!(written.contains("\"attention\",") && written.contains("\"mamba\","));
        assert!(written.contains("\"logits_scaling\": 3.0"), "{written}");
        assert_eq!(Config::from_json(&written).unwrap(), config);
        // As transformers 5 writes it, and an older name of the key.
        let new = granite(&attention, ["linear_attention", "full_attention"]);
        assert_eq!(Config::from_json(&new).unwrap(), config);
        let old = json.replace("layer_types", "layers_block_type");
        assert_eq!(Config::from_json(&old).unwrap(), config);
        let rope = json.replace("\"nope\"", "\"rope\"");
        let rope = rope.replace(
            "\"rope_theta\": 10000",
            r#""rope_parameters": {"rope_theta": 500, "rope_type": "default"}"#,
        );
        let rope = Config::from_json(&rope).unwrap();
        assert_eq!(rope.attention.unwrap().rope_theta, Some(500.0));
        assert_eq!(Config::from_json(&rope.to_json(DType::F32, None)).unwrap(), rope);
    }

    #[test]
    fn other_sizes_of_granite_have_as_many_parameters_as_is_stated() {
        let types = (0..40).map(|i| if i % 10 == 5 { "attention" } else { "mamba" });
        let mut json: Value = serde_json::from_str(&granite(&[], ["mamba"; 2])).unwrap();
        json["layer_types"] = types.collect();
        json["num_hidden_layers"] = json!(40);
        json["mamba_d_head"] = json!(64);
        for (d, heads, [hq, hk], size, parameters) in [
            (1536, 48, [12, 4], 4096, 1_461_538_368usize),
            (2048, 64, [32, 8], 8192, 3_191_396_096),
        ] {
            json["hidden_size"] = json!(d);
            json["mamba_n_heads"] = json!(heads);
            json["num_attention_heads"] = json!(hq);
            json["num_key_value_heads"] = json!(hk);
            json["shared_intermediate_size"] = json!(size);
            let config = Config::from_json(&json.to_string()).unwrap();
            assert_eq!(config.parameters(), parameters);
        }
    }

    #[test]
    fn keys_that_granite_may_lack_have_its_defaults() {
        let json = r#"{"model_type": "granitemoehybrid", "num_local_experts": 0,
            "num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}"#;
        let config = Config::from_json(json).unwrap();
        assert_eq!((config.hidden_size, config.vocab_size, config.state_size), (4096, 32000, 256));
        assert_eq!(
            config.attention,
            Some(AttentionConfig { scale: 1.0, ..AttentionConfig::new(32, 32, 128) })
        );
        assert_eq!(config.mlp, Some(MlpConfig { size: 1024, use_bias: false }));
        assert_eq!((config.layer_norm_epsilon, config.tie_word_embeddings), (1e-6, false));
        assert_eq!(config.multipliers, Multipliers::default());
        assert!(matches!(config.ssm, Ssm::Mamba2 { head_dim: 64, n_groups: 1, .. }));
    }

    #[test]
    fn granites_of_another_kind_are_refused() {
        let base = granite(&[3], ["mamba", "attention"]);
        for (from, to, expected) in [
            (
                "\"num_local_experts\": 0",
                "\"num_local_experts\": 8",
                "num_local_experts is 8, expected 0: no experts",
            ),
            ("\"num_local_experts\": 0, ", "", "num_local_experts is 8, expected 0: no experts"),
            (
                "\"attention\"",
                "\"moe\"",
                "layer_types is \"moe\", expected \"mamba\" or \"attention\"",
            ),
            (
                "\"num_hidden_layers\": 32",
                "\"num_hidden_layers\": 31",
                "layer_types has 32 layers, expected 31",
            ),
            (
                "\"nope\"",
                "\"alibi\"",
                "position_embedding_type is \"alibi\", expected \"nope\" or \"rope\"",
            ),
            (
                "\"num_key_value_heads\": 4",
                "\"num_key_value_heads\": 5",
                "num_key_value_heads is 5, expected a divisor of the number of attention heads, 12",
            ),
            (
                "\"mamba_d_head\": 32",
                "\"mamba_d_head\": 31",
                "mamba_n_heads·mamba_d_head is 1488, expected the number of channels, 1536",
            ),
            (
                "\"mamba_d_head\": 32",
                "\"mamba_d_head\": \"big\"",
                "mamba_d_head is \"big\", expected a whole number or \"auto\"",
            ),
            (
                "\"logits_scaling\": 3",
                "\"logits_scaling\": 0",
                "multipliers.logits is inf, expected",
            ),
            (
                "\"rope_theta\": 10000",
                "\"rope_scaling\": {\"rope_type\": \"yarn\"}",
                "rope_type is \"yarn\", expected \"default\"",
            ),
        ] {
            let json = base.replace(from, to);
            assert_ne!(json, base, "{from}");
            let found = error(&json);
            assert!(found.starts_with(&format!("config: {expected}")), "{found}");
        }
    }

    #[test]
    fn falcon_h1_is_read_and_written() {
        // Tiny-90M.
        let json = r#"{"model_type": "falcon_h1", "hidden_size": 512, "num_hidden_layers": 24,
            "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 2,
            "head_dim": 64, "mamba_d_ssm": 768, "mamba_n_heads": 24, "mamba_d_head": 32,
            "mamba_d_state": 64, "mamba_n_groups": 1, "vocab_size": 32768, "rope_theta": 1e11,
            "tie_word_embeddings": true, "mamba_rms_norm": false, "key_multiplier": 0.25,
            "ssm_multipliers": [1, 2, 3, 4, 5], "mlp_multipliers": [0.5, 0.25],
            "lm_head_multiplier": 0.0195, "ssm_in_multiplier": 1.25}"#;
        let config = Config::from_json(json).unwrap();
        assert_eq!((config.family, config.parameters()), (Family::FalconH1, 91_131_072));
        assert_eq!(config.layers, [LayerKind::Both; 24]);
        assert_eq!((config.inner_size(), config.hidden_size), (768, 512));
        assert_eq!(config.attention.unwrap().rope_theta, Some(1e11));
        assert_eq!(config.multipliers.ssm, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!([config.multipliers.mlp_gate, config.multipliers.mlp_out], [0.5, 0.25]);
        assert!(matches!(config.ssm, Ssm::Mamba2 { norm: None, .. }));
        assert_eq!(Config::from_json(&config.to_json(DType::F32, None)).unwrap(), config);
        for (before, order) in [(true, GateOrder::NormFirst), (false, GateOrder::GateFirst)] {
            let keys = format!(
                r#""mamba_rms_norm": true, "mamba_norm_before_gate": {before}, "mamba_n_groups": 3,
                   "projectors_bias": true, "mamba_proj_bias": false"#
            );
            let json = json.replace(r#""mamba_rms_norm": false"#, &keys);
            let json = json.replace(r#""mamba_n_groups": 1, "#, "");
            let config = Config::from_json(&json).unwrap();
            let Ssm::Mamba2 { norm, .. } = config.ssm else { panic!("Mamba-2") };
            assert_eq!(norm, Some(Mamba2Norm { groups: 3, order }));
            assert_eq!((config.use_bias, config.has_out_proj_bias()), (false, true));
            assert_eq!(Config::from_json(&config.to_json(DType::F32, None)).unwrap(), config);
        }
    }

    #[test]
    fn keys_that_falcon_h1_may_lack_have_its_defaults() {
        let config = Config::from_json(r#"{"model_type": "falcon_h1"}"#).unwrap();
        assert_eq!((config.hidden_size, config.inner_size(), config.state_size), (4096, 1024, 256));
        let attention = config.attention.unwrap();
        assert_eq!((attention.num_heads, attention.num_key_value_heads), (32, 8));
        assert_eq!((attention.head_dim, attention.rope_theta), (128, Some(10_000.0)));
        // Null is the expanded width, and as many heads.
        let json =
            r#"{"model_type": "falcon_h1", "mamba_d_ssm": null, "num_key_value_heads": null}"#;
        let config = Config::from_json(json).unwrap();
        let heads = config.attention.unwrap().num_key_value_heads;
        assert_eq!((config.inner_size(), heads), (8192, 32));
        assert_eq!(
            error(r#"{"model_type": "falcon_h1", "mlp_multipliers": [1]}"#),
            "config: mlp_multipliers is [1], expected 2 numbers"
        );
        assert_eq!(
            error(r#"{"model_type": "falcon_h1", "head_dim": 5}"#),
            "config: head_dim is 5, expected an even number, for rotary positions"
        );
    }

    #[test]
    fn reciprocals_are_short() {
        for x in [3.0, 49.0, 0.1, 2.5, 1.0 / 3.0, 16.0, 1e-3] {
            assert_eq!(reciprocal(1.0 / x), x);
        }
    }
}
