//! Mamba, the first of the families: `MambaConfig` of Hugging Face's library.

use serde_json::{Value, json};
use taipan::nn::MlpLayout;

use super::family::{Files, Names};
use super::keys::Keys;
use super::{Config, Initialization, MlpConfig, Ssm, TimeStepInit};
use crate::Result;

pub(super) const FILES: Files = Files {
    title: "Mamba",
    model_type: "mamba",
    architecture: "MambaForCausalLM",
    names: NAMES,
    lora_targets: &["in_proj", "x_proj"],
    peft_refuses_out_proj: true,
    misfit,
    read,
    write,
};

pub(super) const NAMES: Names = Names {
    embeddings: "backbone.embeddings",
    layers: "backbone.layers",
    norm: "norm",
    ssm: "mixer",
    // Of the original code.
    attention: "mixer",
    mlp_norm: "norm2",
    mlp: "mlp",
    mlp_layout: MlpLayout::GateLast,
    norm_f: "backbone.norm_f",
};

/// What `config.json` calls the limits of new step sizes.
pub(super) const TIME_STEPS: [&str; 3] = ["time_step_min", "time_step_max", "time_step_floor"];

pub(super) fn read(keys: &mut Keys) -> Result<Config> {
    // Two names of one function.
    keys.expect("hidden_act", &["\"silu\"", "\"swish\""])?;
    let default = Config::default();
    let hidden_size = keys.get_or("hidden_size", default.hidden_size)?;
    // Rounded down, as Python's int.
    let expanded = keys.get_or("expand", default.expand as f64)? * hidden_size as f64;
    // The file's own number wins over `expand`, which some tools leave at its default.
    let inner = keys.get_or("intermediate_size", expanded as usize)?;
    let (expand, intermediate_size) = Config::inner(hidden_size, inner);
    let tied = [keys.get("tie_word_embeddings")?, keys.get("tie_embeddings")?];
    let init = default.init;
    Ok(Config {
        family: default.family,
        vocab_size: keys.get_or("vocab_size", default.vocab_size)?,
        hidden_size,
        layers: Config::ssm_layers(keys.get_or("num_hidden_layers", default.layers.len())?)?,
        ssm: Ssm::mamba(keys.rank("time_step_rank", hidden_size)?),
        state_size: keys.get_or("state_size", default.state_size)?,
        conv_kernel: keys.get_or("conv_kernel", default.conv_kernel)?,
        expand,
        intermediate_size,
        use_bias: keys.get_or("use_bias", default.use_bias)?,
        use_conv_bias: keys.get_or("use_conv_bias", default.use_conv_bias)?,
        mlp: mlp(keys)?,
        layer_norm_epsilon: keys.get_or("layer_norm_epsilon", default.layer_norm_epsilon)?,
        residual_in_fp32: keys.get_or("residual_in_fp32", default.residual_in_fp32)?,
        tie_word_embeddings: tied[0].or(tied[1]).unwrap_or(default.tie_word_embeddings),
        init: Initialization {
            time_step_scale: keys.get_or("time_step_scale", init.time_step_scale)?,
            time_step_init_scheme: TimeStepInit::read(keys, "time_step_init_scheme")?,
            initializer_range: keys.get_or("initializer_range", 0.1)?,
            ..init.with_time_steps(keys, TIME_STEPS)?
        },
        ..default
    })
}

fn misfit(config: &Config) -> Option<(&'static str, String)> {
    match config.ssm {
        Ssm::Mamba { .. } => config.more_than_ssm(),
        ssm => Some(("ssm", format!("{ssm:?}"))),
    }
}

/// The MLP of the original code's layers, whose width is a multiple of 128: transformers has no key
/// for it.
pub(super) fn mlp(keys: &mut Keys) -> Result<Option<MlpConfig>> {
    match keys.get_or("d_intermediate", 0usize)? {
        0 => Ok(None),
        size => {
            let size = size.checked_next_multiple_of(128).unwrap_or(usize::MAX);
            Ok(Some(MlpConfig { size, use_bias: false }))
        }
    }
}

pub(super) fn write(config: &Config) -> Value {
    let time_step_rank = match config.ssm {
        Ssm::Mamba { time_step_rank, .. } => Some(time_step_rank),
        Ssm::Mamba2 { .. } | Ssm::Mamba3(_) => None,
    };
    let mut keys = json!({
        "conv_kernel": config.conv_kernel,
        "expand": config.expand,
        "hidden_act": "silu",
        "initializer_range": config.init.initializer_range,
        "intermediate_size": config.inner_size(),
        "layer_norm_epsilon": config.layer_norm_epsilon,
        // It was, at initialisation. But asked for here, the library (5.22) scales what it has
        // loaded.
        "rescale_prenorm_residual": false,
        "residual_in_fp32": config.residual_in_fp32,
        "state_size": config.state_size,
        "time_step_floor": config.init.time_step_floor,
        "time_step_init_scheme": config.init.time_step_init_scheme.name(),
        "time_step_max": config.init.time_step_max,
        "time_step_min": config.init.time_step_min,
        "time_step_rank": time_step_rank,
        "time_step_scale": config.init.time_step_scale,
        "use_bias": config.use_bias,
        "use_conv_bias": config.use_conv_bias,
        "use_mambapy": false,
    });
    write_mlp(config, &mut keys);
    keys
}

/// The key that [`mlp`] reads.
pub(super) fn write_mlp(config: &Config, keys: &mut Value) {
    if let Some(MlpConfig { size, .. }) = config.mlp {
        keys["d_intermediate"] = json!(size);
    }
}
