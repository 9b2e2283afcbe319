//! Mamba-3, which Hugging Face's library does not have: its files are those of the original code.

use serde_json::{Value, json};
use taipan::nn::DecayActivation;

use super::family::{Files, Names};
use super::keys::{Keys, invalid};
use super::{Config, Family, Ssm, mamba, original};
use crate::Result;

pub(super) const FILES: Files = Files {
    title: "Mamba-3",
    model_type: "mamba3",
    architecture: "MambaLMHeadModel",
    names: Names { embeddings: "backbone.embedding", ..mamba::NAMES },
    lora_targets: &["in_proj", "out_proj"],
    peft_refuses_out_proj: false,
    misfit,
    read,
    write,
};

/// What only Mamba-3 has, with the defaults of the original code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba3Config {
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C; 1.
    pub n_groups: usize,
    /// Inputs and outputs of each channel (MIMO); none: one of each (SISO).
    pub mimo_rank: Option<usize>,
    /// The part of the states that turns, ½ or 1; ½.
    pub rope_fraction: f64,
    /// The function that decay rates come from; the heavy tail.
    pub a_activation: DecayActivation,
    /// The least decay rate; 1e-4.
    pub a_floor: f64,
    /// Whether the result of each head is normed, before its gate; no.
    pub out_norm: bool,
    /// What a file says of how other programs compute; nothing here depends on it. 64.
    pub chunk_size: usize,
}

impl Mamba3Config {
    /// Heads of this size.
    pub fn new(head_dim: usize) -> Mamba3Config {
        Mamba3Config {
            head_dim,
            n_groups: 1,
            mimo_rank: None,
            rope_fraction: 0.5,
            a_activation: DecayActivation::HeavyTail,
            a_floor: 1e-4,
            out_norm: false,
            chunk_size: 64,
        }
    }

    /// Pairs of states that turn, of so many states.
    pub(crate) fn angles(&self, state_size: usize) -> usize {
        (state_size as f64 * self.rope_fraction) as usize / 2
    }

    /// Ranks, 1 in SISO.
    pub(crate) fn ranks(&self) -> usize {
        self.mimo_rank.unwrap_or(1)
    }
}

/// The values of `A_activation`, a key of ours: the original code has had one, then the other.
const ACTIVATIONS: [(&str, DecayActivation); 2] =
    [("\"heavy_tail\"", DecayActivation::HeavyTail), ("\"softplus\"", DecayActivation::Softplus)];

fn read(_: &mut Keys) -> Result<Config> {
    let expected = "the config.json of the original code, which has d_model and ssm_cfg";
    Err(invalid("model_type", "\"mamba3\"", expected).into())
}

/// Biases and the norms' epsilon have no key.
fn misfit(config: &Config) -> Option<(&'static str, String)> {
    let epsilon = config.layer_norm_epsilon;
    match config.ssm {
        Ssm::Mamba3(_) if config.use_bias => Some(("use_bias", "true".into())),
        Ssm::Mamba3(_) if epsilon != original::NORM_EPSILON => {
            Some(("layer_norm_epsilon", epsilon.to_string()))
        }
        Ssm::Mamba3(_) => config.more_than_ssm(),
        ssm => Some(("ssm", format!("{ssm:?}"))),
    }
}

/// All of `config.json`.
pub(super) fn write(config: &Config) -> Value {
    original::json_of(config, write_ssm(config))
}

/// What `ssm_cfg` of the original code says: the mixers of a config of these sizes.
pub(super) fn read_original(ssm: &mut Keys, config: Config) -> Result<Config> {
    let is_mimo = ssm.get_or("is_mimo", false)?;
    let rank = ssm.get_or("mimo_rank", 4)?;
    let activation = ssm.raw("A_activation").unwrap_or(ACTIVATIONS[0].0);
    let Some(&(_, a_activation)) = ACTIVATIONS.iter().find(|(name, _)| *name == activation) else {
        let known = ACTIVATIONS.map(|(name, _)| name).join(" or ");
        return Err(invalid("ssm_cfg.A_activation", activation, &known).into());
    };
    let default = Mamba3Config::new(64);
    Ok(Config {
        family: Family::Mamba3,
        ssm: Ssm::Mamba3(Mamba3Config {
            head_dim: ssm.get_or("headdim", default.head_dim)?,
            n_groups: ssm.get_or("ngroups", default.n_groups)?,
            mimo_rank: is_mimo.then_some(rank),
            rope_fraction: ssm.get_or("rope_fraction", default.rope_fraction)?,
            a_activation,
            a_floor: ssm.get_or("A_floor", default.a_floor)?,
            out_norm: ssm.get_or("is_outproj_norm", default.out_norm)?,
            chunk_size: ssm.get_or("chunk_size", default.chunk_size)?,
        }),
        state_size: ssm.get_or("d_state", 128)?,
        init: config.init.with_time_steps(ssm, original::TIME_STEPS)?,
        ..config
    })
}

/// `ssm_cfg`.
fn write_ssm(config: &Config) -> Value {
    let Ssm::Mamba3(own) = config.ssm else { return json!({}) };
    let mut keys = json!({
        "A_floor": own.a_floor,
        "chunk_size": own.chunk_size,
        "d_state": config.state_size,
        "dt_init_floor": config.init.time_step_floor,
        "dt_max": config.init.time_step_max,
        "dt_min": config.init.time_step_min,
        "expand": original::expand(config),
        "headdim": own.head_dim,
        "is_mimo": own.mimo_rank.is_some(),
        "is_outproj_norm": own.out_norm,
        "layer": "Mamba3",
        "ngroups": own.n_groups,
        "rope_fraction": own.rope_fraction,
    });
    if let Some(rank) = own.mimo_rank {
        keys["mimo_rank"] = json!(rank);
    }
    // Without the key that the original code does not know, it means what it means there.
    if own.a_activation == DecayActivation::Softplus {
        keys["A_activation"] = json!("softplus");
    }
    keys
}
