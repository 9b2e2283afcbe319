//! Falcon-Mamba: Mamba whose mixers norm Δ, B and C.

use serde_json::{Value, json};

use super::family::Files;
use super::keys::Keys;
use super::{Config, Family, Ssm, mamba};
use crate::Result;

pub(super) const FILES: Files = Files {
    title: "Falcon-Mamba",
    model_type: "falcon_mamba",
    architecture: "FalconMambaForCausalLM",
    names: mamba::NAMES,
    lora_targets: mamba::FILES.lora_targets,
    peft_refuses_out_proj: true,
    misfit: mamba::FILES.misfit,
    read,
    write,
};

fn read(keys: &mut Keys) -> Result<Config> {
    let norm_eps = Some(keys.get_or("mixer_rms_eps", 1e-6)?);
    let config = mamba::read(keys)?;
    let ssm = match config.ssm {
        Ssm::Mamba { time_step_rank, .. } => Ssm::Mamba { time_step_rank, norm_eps },
        other => other,
    };
    Ok(Config { family: Family::FalconMamba, ssm, ..config })
}

fn write(config: &Config) -> Value {
    let mut keys = mamba::write(config);
    if let Ssm::Mamba { norm_eps, .. } = config.ssm {
        keys["mixer_rms_eps"] = json!(norm_eps);
    }
    keys
}
