//! Granite 4.0 H: layers of Mamba-2 or attention, each with an MLP; `GraniteMoeHybridConfig` of
//! Hugging Face's library, without experts.

use serde_json::{Value, json};
use taipan::GateOrder;
use taipan::nn::MlpLayout;

use super::family::{Files, Names};
use super::hybrid::{self, rope_theta};
use super::keys::{Keys, invalid};
use super::{
    AttentionConfig, Config, Family, LayerKind, Mamba2Norm, MlpConfig, Multipliers, OWNER, Ssm,
    mamba2,
};
use crate::Result;
use crate::error::ensure;

pub(super) const FILES: Files = Files {
    title: "Granite 4.0 H",
    model_type: "granitemoehybrid",
    architecture: "GraniteMoeHybridForCausalLM",
    names: Names {
        mlp_norm: "post_attention_layernorm",
        mlp: "shared_mlp",
        mlp_layout: MlpLayout::GateFirst,
        norm_f: "model.norm",
        ..hybrid::NAMES
    },
    lora_targets: &[
        "in_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "input_linear",
        "output_linear",
    ],
    peft_refuses_out_proj: false,
    misfit,
    read,
    write,
};

fn read(keys: &mut Keys) -> Result<Config> {
    // Of files that have none.
    match keys.get_or("num_local_experts", 8usize)? {
        0 => {}
        experts => {
            let found = experts.to_string();
            return Err(invalid("num_local_experts", &found, "0: no experts").into());
        }
    }
    let sizes = hybrid::Sizes::read(keys, 32000)?;
    let layers = layers(keys, sizes.layers)?;
    let inner = hybrid::expanded(keys, sizes.hidden_size)?;
    let mamba = hybrid::Mamba::read(keys, inner)?;
    let (heads, head_dim) = sizes.heads(keys)?;
    let theta = rope_theta(keys)?;
    let attention = AttentionConfig {
        num_heads: heads,
        num_key_value_heads: keys.get_or("num_key_value_heads", heads)?,
        head_dim,
        use_bias: keys.get_or("attention_bias", false)?,
        scale: keys.get_or("attention_multiplier", 1.0)?,
        rope_theta: match keys.raw("position_embedding_type") {
            None | Some("\"nope\"") => None,
            Some("\"rope\"") => Some(theta),
            Some(other) => {
                let expected = "\"nope\" or \"rope\"";
                return Err(invalid("position_embedding_type", other, expected).into());
            }
        },
    };
    let residual = keys.get_or("residual_multiplier", 1.0)?;
    let norm_groups = mamba2::norm_groups(keys, mamba.groups)?;
    Ok(Config {
        family: Family::Granite,
        attention: layers.iter().any(|layer| layer.has_attention()).then_some(attention),
        layers,
        mlp: Some(MlpConfig {
            size: keys.get_or("shared_intermediate_size", 1024)?,
            use_bias: false,
        }),
        multipliers: Multipliers {
            embedding: keys.get_or("embedding_multiplier", 1.0)?,
            logits: 1.0 / keys.get_or("logits_scaling", 1.0)?,
            ssm_out: residual,
            attention_out: residual,
            mlp_out: residual,
            ..Multipliers::default()
        },
        layer_norm_epsilon: keys.get_or("rms_norm_eps", 1e-6)?,
        tie_word_embeddings: keys.get_or("tie_word_embeddings", false)?,
        ..mamba.config(sizes, Some(Mamba2Norm::gate_first(norm_groups)))
    })
}

/// `layer_types`, in the words of transformers 4 or 5; without it all are of Mamba-2.
fn layers(keys: &mut Keys, count: usize) -> Result<Vec<LayerKind>> {
    let all_ssm = Config::ssm_layers(count)?;
    let given = [keys.list("layer_types")?, keys.list("layers_block_type")?];
    let Some(types) = given.into_iter().flatten().next() else { return Ok(all_ssm) };
    let found = types.len();
    ensure!(found == count, OWNER, "layer_types has {found} layers, expected {count}");
    let kind = |text: &String| match text.as_str() {
        "mamba" | "linear_attention" => Ok(LayerKind::Ssm),
        "attention" | "full_attention" => Ok(LayerKind::Attention),
        other => {
            let expected = "\"mamba\" or \"attention\"";
            Err(invalid("layer_types", &format!("{other:?}"), expected).into())
        }
    };
    types.iter().map(kind).collect()
}

fn misfit(config: &Config) -> Option<(&'static str, String)> {
    if config.layers.contains(&LayerKind::Both) {
        return Some(("layers", "ones with two mixers".into()));
    }
    let Ssm::Mamba2 { norm: Some(Mamba2Norm { order: GateOrder::GateFirst, .. }), .. } = config.ssm
    else {
        return Some(("ssm", format!("{:?}", config.ssm)));
    };
    if let Some(bias) = config.out_proj_bias.filter(|bias| *bias != config.use_bias) {
        return Some(("out_proj_bias", bias.to_string()));
    }
    if config.mlp.is_none_or(|mlp| mlp.use_bias) {
        return Some(("mlp", format!("{:?}", config.mlp)));
    }
    let Multipliers { embedding, logits, ssm_out, .. } = config.multipliers;
    let said = Multipliers {
        embedding,
        logits,
        ssm_out,
        attention_out: ssm_out,
        mlp_out: ssm_out,
        ..Multipliers::default()
    };
    (said != config.multipliers).then(|| ("multipliers", format!("{:?}", config.multipliers)))
}

fn write(config: &Config) -> Value {
    let layer_types = config.layers.iter().map(|layer| match layer {
        // The names that every version reads.
        LayerKind::Attention => "attention",
        LayerKind::Ssm | LayerKind::Both => "mamba",
    });
    let mut keys = json!({
        "embedding_multiplier": config.multipliers.embedding,
        "layer_types": layer_types.collect::<Vec<_>>(),
        "logits_scaling": hybrid::reciprocal(config.multipliers.logits),
        // transformers has no fractions here, and says so.
        "mamba_expand": match config.intermediate_size {
            None => json!(config.expand),
            Some(_) => json!(config.expand_ratio()),
        },
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "nope",
        "residual_multiplier": config.multipliers.ssm_out,
        "shared_intermediate_size": config.mlp.map_or(0, |mlp| mlp.size),
    });
    if let Some(attention) = config.attention {
        keys["attention_multiplier"] = json!(attention.scale);
        if attention.rope_theta.is_some() {
            keys["position_embedding_type"] = json!("rope");
        }
    }
    if let Ssm::Mamba2 { norm: Some(Mamba2Norm { groups, .. }), .. } = config.ssm
        && groups != 1
    {
        keys["norm_groups"] = json!(groups);
    }
    hybrid::write(config, &mut keys);
    keys
}
