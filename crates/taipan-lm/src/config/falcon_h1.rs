//! Falcon-H1: Mamba-2 and attention side by side in every layer, and an MLP; `FalconH1Config` of
//! Hugging Face's library.

use serde_json::{Value, json};
use taipan::GateOrder;
use taipan::nn::MlpLayout;

use super::family::{Files, Names};
use super::hybrid::{self, rope_theta};
use super::keys::Keys;
use super::{AttentionConfig, Config, Family, LayerKind, Mamba2Norm, MlpConfig, Multipliers, Ssm};
use crate::Result;

pub(super) const FILES: Files = Files {
    title: "Falcon-H1",
    model_type: "falcon_h1",
    architecture: "FalconH1ForCausalLM",
    names: Names {
        mlp_norm: "pre_ff_layernorm",
        mlp: "feed_forward",
        mlp_layout: MlpLayout::Separate,
        norm_f: "model.final_layernorm",
        ..hybrid::NAMES
    },
    lora_targets: &[
        "in_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ],
    peft_refuses_out_proj: true,
    misfit,
    read,
    write,
};

fn read(keys: &mut Keys) -> Result<Config> {
    let sizes = hybrid::Sizes::read(keys, 128000)?;
    let expanded = hybrid::expanded(keys, sizes.hidden_size)?;
    // Absent is not null.
    let inner = match keys.contains("mamba_d_ssm") {
        true => keys.get_or("mamba_d_ssm", expanded)?,
        false => 1024,
    };
    let mamba = hybrid::Mamba::read(keys, inner)?;
    let order = match keys.get_or("mamba_norm_before_gate", true)? {
        true => GateOrder::NormFirst,
        false => GateOrder::GateFirst,
    };
    let norm = Mamba2Norm { groups: keys.get_or("norm_groups", mamba.groups)?, order };
    let norm = keys.get_or("mamba_rms_norm", false)?.then_some(norm);
    let (heads, head_dim) = sizes.heads(keys)?;
    let attention = AttentionConfig {
        num_heads: heads,
        // Absent is not null.
        num_key_value_heads: match keys.contains("num_key_value_heads") {
            true => keys.get_or("num_key_value_heads", heads)?,
            false => 8,
        },
        head_dim,
        use_bias: keys.get_or("attention_bias", false)?,
        scale: AttentionConfig::usual_scale(head_dim),
        rope_theta: Some(rope_theta(keys)?),
    };
    let [mlp_gate, mlp_out] = keys.numbers("mlp_multipliers")?.unwrap_or([1.0; 2]);
    Ok(Config {
        family: Family::FalconH1,
        layers: vec![LayerKind::Both; Config::ssm_layers(sizes.layers)?.len()],
        out_proj_bias: Some(keys.get_or("projectors_bias", false)?),
        attention: Some(attention),
        mlp: Some(MlpConfig {
            size: keys.get_or("intermediate_size", 14336)?,
            use_bias: keys.get_or("mlp_bias", false)?,
        }),
        multipliers: Multipliers {
            embedding: keys.get_or("embedding_multiplier", 1.0)?,
            logits: keys.get_or("lm_head_multiplier", 1.0)?,
            ssm_in: keys.get_or("ssm_in_multiplier", 1.0)?,
            ssm: keys.numbers("ssm_multipliers")?.unwrap_or([1.0; 5]),
            ssm_out: keys.get_or("ssm_out_multiplier", 1.0)?,
            attention_in: keys.get_or("attention_in_multiplier", 1.0)?,
            key: keys.get_or("key_multiplier", 1.0)?,
            attention_out: keys.get_or("attention_out_multiplier", 1.0)?,
            mlp_gate,
            mlp_out,
        },
        layer_norm_epsilon: keys.get_or("rms_norm_eps", 1e-5)?,
        tie_word_embeddings: keys.get_or("tie_word_embeddings", false)?,
        ..mamba.config(sizes, norm)
    })
}

fn misfit(config: &Config) -> Option<(&'static str, String)> {
    if config.layers.iter().any(|layer| *layer != LayerKind::Both) {
        return Some(("layers", "ones with one mixer".into()));
    }
    let Ssm::Mamba2 { .. } = config.ssm else {
        return Some(("ssm", format!("{:?}", config.ssm)));
    };
    let attention = config.attention?;
    if attention.rope_theta.is_none() {
        return Some(("rope_theta", "missing".into()));
    }
    if attention.scale != AttentionConfig::usual_scale(attention.head_dim) {
        return Some(("attention_multiplier", attention.scale.to_string()));
    }
    config.mlp.is_none().then(|| ("mlp", "missing".into()))
}

fn write(config: &Config) -> Value {
    let of = &config.multipliers;
    let mut keys = json!({
        "attention_in_multiplier": of.attention_in,
        "attention_out_multiplier": of.attention_out,
        "embedding_multiplier": of.embedding,
        "intermediate_size": config.mlp.map_or(0, |mlp| mlp.size),
        "key_multiplier": of.key,
        "lm_head_multiplier": of.logits,
        "mamba_d_ssm": config.inner_size(),
        "mamba_expand": config.expand,
        "mlp_bias": config.mlp.is_some_and(|mlp| mlp.use_bias),
        "mlp_multipliers": [of.mlp_gate, of.mlp_out],
        "projectors_bias": config.has_out_proj_bias(),
        "ssm_in_multiplier": of.ssm_in,
        "ssm_multipliers": of.ssm,
        "ssm_out_multiplier": of.ssm_out,
    });
    if let Ssm::Mamba2 { n_groups, norm, .. } = config.ssm {
        keys["mamba_rms_norm"] = json!(norm.is_some());
        let order = norm.map(|norm| norm.order);
        keys["mamba_norm_before_gate"] = json!(order == Some(GateOrder::NormFirst));
        if let Some(Mamba2Norm { groups, .. }) = norm
            && groups != n_groups
        {
            keys["norm_groups"] = json!(groups);
        }
    }
    hybrid::write(config, &mut keys);
    keys
}
