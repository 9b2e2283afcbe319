//! Mixers: what a layer applies to the norm of the residual stream.

use taipan::nn::{
    BlockParameter, GatedNorm, Init, Linear, Mamba2Block, Mamba2Options, MambaBlock, MambaOptions,
    MambaState, Module, ScanObserver, Visitor,
};
use taipan::{GateOrder, Tensor};

use crate::config::{Initialization, TimeStepInit};
use crate::error::Result;
use crate::{Config, Ssm};

#[derive(Clone, Debug)]
pub(super) enum Mixer {
    Mamba(MambaBlock),
    Mamba2(Mamba2Block),
}

/// Makes a parameter of a mixer.
pub(super) type Make<'a> = &'a mut dyn FnMut(BlockParameter) -> Result<Tensor>;

impl Mixer {
    /// The state-space mixer of a model.
    pub(super) fn ssm(config: &Config, make: Make) -> Result<Mixer> {
        match config.ssm {
            Ssm::Mamba { time_step_rank, norm_eps } => {
                let options = mamba_options(config, time_step_rank);
                let options = MambaOptions { norm_eps, ..options };
                Ok(Mixer::Mamba(MambaBlock::build(&options, make)?))
            }
            Ssm::Mamba2 { head_dim, n_groups, norm_groups, time_step_limit, .. } => {
                let (groups, eps) = (norm_groups, config.layer_norm_epsilon);
                let options = Mamba2Options {
                    head_dim,
                    groups: n_groups,
                    dt_limit: time_step_limit,
                    norm: Some(GatedNorm { groups, order: GateOrder::GateFirst, eps }),
                    ..mamba2_options(config)
                };
                Ok(Mixer::Mamba2(Mamba2Block::build(&options, make)?))
            }
        }
    }

    /// `[b, l, d]`, to the same shape, and the final state: see [`MambaBlock::forward_from`], whose
    /// scan alone is observed.
    pub(super) fn forward(
        &self,
        u: &Tensor,
        seq_start: Option<&Tensor>,
        initial: Option<&MambaState>,
        observe: ScanObserver,
    ) -> taipan::Result<(Tensor, MambaState)> {
        match self {
            Mixer::Mamba(block) => block.forward_from(u, seq_start, initial, observe),
            Mixer::Mamba2(block) => block.forward_from(u, seq_start, initial),
        }
    }

    /// Its projections, by name.
    pub(super) fn projections(&self) -> Vec<(&'static str, &Linear)> {
        match self {
            Mixer::Mamba(block) => block.projections().into(),
            Mixer::Mamba2(block) => block.projections().into(),
        }
    }

    /// [`projections`](Mixer::projections), to be changed.
    pub(super) fn projections_mut(&mut self) -> Vec<(&'static str, &mut Linear)> {
        match self {
            Mixer::Mamba(block) => block.projections_mut().into(),
            Mixer::Mamba2(block) => block.projections_mut().into(),
        }
    }
}

impl Module for Mixer {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        match self {
            Mixer::Mamba(block) => block.visit(visitor),
            Mixer::Mamba2(block) => block.visit(visitor),
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        match self {
            Mixer::Mamba(block) => block.visit_mut(visitor),
            Mixer::Mamba2(block) => block.visit_mut(visitor),
        }
    }
}

fn mamba_options(config: &Config, r: usize) -> MambaOptions {
    let magnitude = (r as f64).powf(-0.5) * config.init.time_step_scale;
    MambaOptions {
        d_inner: config.inner_size(),
        d_state: config.state_size,
        d_conv: config.conv_kernel,
        dt_rank: r,
        use_bias: config.use_bias,
        use_conv_bias: config.use_conv_bias,
        dt_init: match config.init.time_step_init_scheme {
            TimeStepInit::Random => Init::Uniform(magnitude),
            TimeStepInit::Constant => Init::Constant(magnitude),
        },
        step_init: step_init(config),
        out_init: out_init(config),
        ..MambaOptions::new(config.hidden_size)
    }
}

fn mamba2_options(config: &Config) -> Mamba2Options {
    Mamba2Options {
        d_inner: config.inner_size(),
        d_state: config.state_size,
        d_conv: config.conv_kernel,
        use_bias: config.use_bias,
        use_conv_bias: config.use_conv_bias,
        step_init: step_init(config),
        out_init: out_init(config),
        ..Mamba2Options::new(config.hidden_size)
    }
}

/// Of the bias of Δ.
fn step_init(config: &Config) -> Init {
    let Initialization { time_step_min: min, time_step_max: max, .. } = config.init;
    Init::StepBias { min, max, floor: config.init.time_step_floor }
}

/// Of `out_proj`: every layer adds to the residual stream, whose variance must not grow with their
/// number.
fn out_init(config: &Config) -> Init {
    Init::fan_in(config.inner_size() * config.num_hidden_layers)
}
