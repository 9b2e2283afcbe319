//! Mamba-2: `Mamba2Config` of Hugging Face's library, and `ssm_cfg` of the original code.

use serde_json::{Value, json};
use taipan::GateOrder;

use super::family::Files;
use super::keys::{Keys, invalid};
use super::{Config, Family, Initialization, Mamba2Norm, OWNER, Ssm, mamba, original};
use crate::error::ensure;
use crate::{InvalidValue, Result};

pub(super) const FILES: Files = Files {
    title: "Mamba-2",
    model_type: "mamba2",
    architecture: "Mamba2ForCausalLM",
    names: mamba::NAMES,
    lora_targets: &["in_proj"],
    peft_refuses_out_proj: true,
    misfit,
    read,
    write,
};

/// Of files that have none.
const CHUNK_SIZE: usize = 256;

fn read(keys: &mut Keys) -> Result<Config> {
    keys.expect("hidden_act", &["\"silu\"", "\"swish\""])?;
    let hidden_size = keys.get_or("hidden_size", 4096)?;
    let (heads, head_dim) = (keys.get_or("num_heads", 128usize)?, keys.get_or("head_dim", 64)?);
    let inner = heads.saturating_mul(head_dim);
    let expanded = keys.get_or("expand", 2.0)? * hidden_size as f64;
    let fits = expanded as usize == inner;
    ensure!(
        fits,
        OWNER,
        "num_heads·head_dim is {inner}, expected expand·hidden_size, {}",
        expanded as usize
    );
    let (expand, intermediate_size) = Config::inner(hidden_size, inner);
    let epsilon = keys.get_or("layer_norm_epsilon", 1e-5)?;
    let n_groups = keys.get_or("n_groups", 8)?;
    Ok(Config {
        family: Family::Mamba2,
        vocab_size: keys.get_or("vocab_size", 32768)?,
        hidden_size,
        layers: Config::ssm_layers(keys.get_or("num_hidden_layers", 64)?)?,
        ssm: Ssm::Mamba2 {
            head_dim,
            n_groups,
            norm: Some(Mamba2Norm::gate_first(norm_groups(keys, n_groups)?)),
            time_step_limit: limit(keys, "time_step_limit")?,
            chunk_size: keys.get_or("chunk_size", CHUNK_SIZE)?,
        },
        state_size: keys.get_or("state_size", 128)?,
        conv_kernel: keys.get_or("conv_kernel", 4)?,
        expand,
        intermediate_size,
        use_bias: keys.get_or("use_bias", false)?,
        use_conv_bias: keys.get_or("use_conv_bias", true)?,
        mlp: mamba::mlp(keys)?,
        layer_norm_epsilon: epsilon,
        residual_in_fp32: keys.get_or("residual_in_fp32", true)?,
        tie_word_embeddings: keys.get_or("tie_word_embeddings", false)?,
        init: Initialization {
            initializer_range: keys.get_or("initializer_range", 0.1)?,
            ..Initialization::default().with_time_steps(keys, mamba::TIME_STEPS)?
        },
        ..Config::default()
    })
}

fn misfit(config: &Config) -> Option<(&'static str, String)> {
    match config.ssm {
        Ssm::Mamba2 { norm: Some(Mamba2Norm { order: GateOrder::GateFirst, .. }), .. } => {
            config.more_than_ssm()
        }
        ssm => Some(("ssm", format!("{ssm:?}"))),
    }
}

fn write(config: &Config) -> Value {
    let Ssm::Mamba2 { head_dim, n_groups, norm, chunk_size, .. } = config.ssm else {
        return json!({});
    };
    let mut keys = json!({
        "chunk_size": chunk_size,
        "conv_kernel": config.conv_kernel,
        // A fraction, if it must be: num_heads·head_dim is what counts.
        "expand": match config.intermediate_size {
            None => json!(config.expand),
            Some(_) => json!(config.expand_ratio()),
        },
        "head_dim": head_dim,
        "hidden_act": "silu",
        "initializer_range": config.init.initializer_range,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "n_groups": n_groups,
        "num_heads": config.inner_size() / head_dim.max(1),
        "rescale_prenorm_residual": false,
        "residual_in_fp32": config.residual_in_fp32,
        "rms_norm": true,
        "state_size": config.state_size,
        "time_step_floor": config.init.time_step_floor,
        "time_step_max": config.init.time_step_max,
        "time_step_min": config.init.time_step_min,
        "use_bias": config.use_bias,
        "use_conv_bias": config.use_conv_bias,
    });
    write_limit(config, &mut keys);
    match norm {
        Some(Mamba2Norm { groups, .. }) if groups != 1 => keys["norm_groups"] = json!(groups),
        _ => {}
    }
    mamba::write_mlp(config, &mut keys);
    keys
}

/// The first version of transformers that norms the channels of each group of heads by themselves.
const NORMS_BY_GROUP: [u32; 2] = [5, 23];

/// How many groups of channels are normed by themselves, in a file of transformers for so many
/// groups of heads. With one group there is nothing to decide. Otherwise `norm_groups`, a key of
/// ours, says it; and if it is absent, what counts is the version of transformers that wrote the
/// file, since that is what the model was computed with: one norm of all channels up to 5.22, one for
/// each group of heads from 5.23 on. A file without a version is one of ours, with one norm.
///
/// Mamba-Codestral-7B is the exception that needs the key: it was trained by the original code, with
/// a norm for each of its 8 groups, and its file is of transformers 4.
pub(super) fn norm_groups(keys: &mut Keys, n_groups: usize) -> Result<usize> {
    let version = keys.get_or("transformers_version", String::new())?;
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let by_group = [numbers.next(), numbers.next()] >= NORMS_BY_GROUP.map(Some);
    keys.get_or("norm_groups", if by_group { n_groups } else { 1 })
}

/// The limits of Δ, if there are any: every version reads a file without them.
pub(super) fn write_limit(config: &Config, keys: &mut Value) {
    let Ssm::Mamba2 { time_step_limit: [least, most], .. } = config.ssm else { return };
    if least > 0.0 || most < f64::INFINITY {
        // As transformers 5 writes it.
        let infinite = json!({ "__float__": "Infinity" });
        keys["time_step_limit"] =
            json!([least, if most.is_finite() { json!(most) } else { infinite }]);
    }
}

/// Two numbers, of which the greater may be infinite: `Infinity` in files of Python (see
/// [`super::keys::quote_non_finite`]), `{"__float__": "Infinity"}` in those of transformers 5.
pub(super) fn limit(keys: &mut Keys, name: &'static str) -> Result<[f64; 2]> {
    let Some(text) = keys.raw(name) else { return Ok([0.0, f64::INFINITY]) };
    let number = |value: &Value| match value {
        Value::Null => Some(f64::INFINITY),
        Value::Number(number) => number.as_f64(),
        Value::Object(object) => {
            object.get("__float__").filter(|text| *text == "Infinity").map(|_| f64::INFINITY)
        }
        text => (*text == "Infinity").then_some(f64::INFINITY),
    };
    let values = serde_json::from_str::<Vec<Value>>(text).ok();
    let values = values.and_then(|values| values.iter().map(number).collect::<Option<Vec<_>>>());
    match values.as_deref() {
        Some(&[least, most]) if 0.0 <= least && least <= most => Ok([least, most]),
        _ => Err(invalid(name, text, "two numbers, the lesser first").into()),
    }
}

/// What `ssm_cfg` of the original code says of Mamba-2: the mixers of a config of these sizes.
pub(super) fn read_original(ssm: &mut Keys, config: Config) -> Result<Config> {
    ssm.expect("rmsnorm", &["true"])?;
    ssm.expect("D_has_hdim", &["false"])?;
    ssm.expect("d_ssm", &["null"])?;
    ssm.expect("norm_before_gate", &["false"])?;
    // How it is computed, and how new weights are drawn.
    ssm.get::<bool>("use_mem_eff_path")?;
    ssm.raw("A_init_range");
    let n_groups = ssm.get_or("ngroups", 1)?;
    let config = original::read_conv(ssm, config)?;
    Ok(Config {
        family: Family::Mamba2,
        ssm: Ssm::Mamba2 {
            head_dim: ssm.get_or("headdim", 64)?,
            n_groups,
            norm: Some(Mamba2Norm::gate_first(n_groups)),
            time_step_limit: limit(ssm, "dt_limit")?,
            chunk_size: ssm.get_or("chunk_size", CHUNK_SIZE)?,
        },
        state_size: ssm.get_or("d_state", 128)?,
        init: config.init.with_time_steps(ssm, original::TIME_STEPS)?,
        ..config
    })
}

/// `ssm_cfg` of the original code, but for what all its layers have.
pub(super) fn write_original(config: &Config) -> Result<Value> {
    let Ssm::Mamba2 { head_dim, n_groups, norm, time_step_limit, chunk_size } = config.ssm else {
        return Ok(json!({}));
    };
    let norm_groups = norm.map_or(1, |norm| norm.groups);
    ensure!(
        norm_groups == n_groups,
        OWNER,
        "norm_groups is {norm_groups}, expected n_groups, {n_groups}, as always in the original code"
    );
    let mut keys = json!({
        "chunk_size": chunk_size,
        "dt_init_floor": config.init.time_step_floor,
        "dt_max": config.init.time_step_max,
        "dt_min": config.init.time_step_min,
        "headdim": head_dim,
        "layer": "Mamba2",
        "ngroups": n_groups,
    });
    if time_step_limit[0] > 0.0 || time_step_limit[1] < f64::INFINITY {
        InvalidValue::check(OWNER, "time_step_limit", time_step_limit[1], 0.0..f64::INFINITY)?;
        keys["dt_limit"] = json!(time_step_limit);
    }
    Ok(keys)
}
