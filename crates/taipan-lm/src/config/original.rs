//! The `config.json` of the paper's code, `state-spaces/mamba`.

use serde_json::{Value, json};

use super::keys::{Keys, invalid};
use super::{Config, Family, Initialization, OWNER, Ssm, TimeStepInit, mamba, mamba2, mamba3};
use crate::error::ensure;
use crate::{Error, InvalidValue, Result};

/// That code's own, which no file changes.
pub(super) const NORM_EPSILON: f64 = 1e-5;

/// What `ssm_cfg` calls the limits of new step sizes.
pub(super) const TIME_STEPS: [&str; 3] = ["dt_min", "dt_max", "dt_init_floor"];

/// That of a `MambaConfig` of that code.
pub(super) fn read(keys: &mut Keys) -> Result<Config> {
    keys.expect("rms_norm", &["true"])?;
    if let Some(text) = keys.raw("attn_layer_idx")
        && text.chars().any(|c| !c.is_whitespace() && c != '[' && c != ']')
    {
        return Err(invalid("attn_layer_idx", text, "[]").into());
    }
    let text = keys.raw("ssm_cfg").unwrap_or("{}");
    let Ok(mut ssm) = Keys::parse(text) else {
        return Err(invalid("ssm_cfg", text, "an object").into());
    };
    let read_ssm = match ssm.raw("layer") {
        None | Some("\"Mamba1\"") => read_mamba,
        Some("\"Mamba2\"") => mamba2::read_original,
        Some("\"Mamba3\"") => mamba3::read_original,
        Some(layer) => {
            let known = "\"Mamba1\", \"Mamba2\" or \"Mamba3\"";
            return Err(invalid("ssm_cfg.layer", layer, known).into());
        }
    };
    let hidden_size = keys.get_or("d_model", 2560)?;
    let expanded = ssm.get_or("expand", 2.0)? * hidden_size as f64;
    let (expand, intermediate_size) = Config::inner(hidden_size, expanded as usize);
    let multiple = keys.get_or("pad_vocab_size_multiple", 8)?;
    InvalidValue::check(OWNER, "pad_vocab_size_multiple", multiple, 1..=1 << 18)?;
    let rows = keys.get_or("vocab_size", 50277usize)?;
    let config = Config {
        family: Family::Mamba,
        vocab_size: rows.checked_next_multiple_of(multiple).unwrap_or(usize::MAX),
        hidden_size,
        layers: Config::ssm_layers(keys.get_or("n_layer", 64)?)?,
        ssm: Ssm::mamba(hidden_size.div_ceil(16)),
        state_size: 16,
        expand,
        intermediate_size,
        mlp: mamba::mlp(keys)?,
        layer_norm_epsilon: NORM_EPSILON,
        residual_in_fp32: keys.get_or("residual_in_fp32", true)?,
        tie_word_embeddings: keys.get_or("tie_embeddings", true)?,
        ..Config::default()
    };
    let config = read_ssm(&mut ssm, config)?;
    match ssm.unread() {
        Some(name) => Err(Error::invalid(OWNER, format!("ssm_cfg has {name}, which is not known"))),
        None => Ok(config),
    }
}

/// What `ssm_cfg` says of a convolution and of biases.
pub(super) fn read_conv(ssm: &mut Keys, config: Config) -> Result<Config> {
    Ok(Config {
        conv_kernel: ssm.get_or("d_conv", 4)?,
        use_bias: ssm.get_or("bias", false)?,
        use_conv_bias: ssm.get_or("conv_bias", true)?,
        ..config
    })
}

/// What `ssm_cfg` says of Mamba: the mixers of a config of these sizes.
fn read_mamba(ssm: &mut Keys, config: Config) -> Result<Config> {
    // Only chooses between two ways to compute the same.
    ssm.get::<bool>("use_fast_path")?;
    let config = read_conv(ssm, config)?;
    let init = config.init;
    Ok(Config {
        ssm: Ssm::mamba(ssm.rank("dt_rank", config.hidden_size)?),
        state_size: ssm.get_or("d_state", 16)?,
        init: Initialization {
            time_step_scale: ssm.get_or("dt_scale", init.time_step_scale)?,
            time_step_init_scheme: TimeStepInit::read(ssm, "dt_init")?,
            ..init.with_time_steps(ssm, TIME_STEPS)?
        },
        ..config
    })
}

pub(super) fn write(config: &Config) -> Result<Value> {
    let epsilon = config.layer_norm_epsilon;
    let expected = "expected 1e-5, as always in the original code";
    let plain = !matches!(config.ssm, Ssm::Mamba { norm_eps: Some(_), .. });
    ensure!(
        plain,
        OWNER,
        "the mixers have norms, expected none: the original code has no such model"
    );
    let is_there = matches!(config.family, Family::Mamba | Family::Mamba2 | Family::Mamba3);
    ensure!(
        is_there,
        OWNER,
        "a model of {}, which the original code has no layout for",
        config.family.title()
    );
    let fits = epsilon == NORM_EPSILON;
    ensure!(fits, OWNER, "layer_norm_epsilon is {epsilon}, {expected}");
    let mut ssm = json!({
        "bias": config.use_bias,
        "conv_bias": config.use_conv_bias,
        "d_conv": config.conv_kernel,
        "d_state": config.state_size,
        "expand": expand(config),
    });
    let own = match config.ssm {
        Ssm::Mamba { time_step_rank, .. } => json!({
            "dt_init": config.init.time_step_init_scheme.name(),
            "dt_init_floor": config.init.time_step_floor,
            "dt_max": config.init.time_step_max,
            "dt_min": config.init.time_step_min,
            "dt_rank": time_step_rank,
            "dt_scale": config.init.time_step_scale,
        }),
        Ssm::Mamba2 { .. } => mamba2::write_original(config)?,
        Ssm::Mamba3(_) => return Ok(mamba3::write(config)),
    };
    if let (Value::Object(ssm), Value::Object(own)) = (&mut ssm, own) {
        ssm.extend(own);
    }
    Ok(json_of(config, ssm))
}

/// The number, or a fraction if it must be.
pub(super) fn expand(config: &Config) -> Value {
    match config.intermediate_size {
        None => config.expand.into(),
        Some(_) => json!(config.expand_ratio()),
    }
}

/// With this `ssm_cfg`.
pub(super) fn json_of(config: &Config, ssm: Value) -> Value {
    json!({
        "attn_cfg": {},
        "attn_layer_idx": [],
        "d_intermediate": config.mlp.map_or(0, |mlp| mlp.size),
        "d_model": config.hidden_size,
        "fused_add_norm": true,
        "n_layer": config.layers.len(),
        // All rows are in vocab_size.
        "pad_vocab_size_multiple": 1,
        "residual_in_fp32": config.residual_in_fp32,
        "rms_norm": true,
        "ssm_cfg": ssm,
        "tie_embeddings": config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
    })
}
