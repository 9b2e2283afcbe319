//! Mixers: what a layer applies to the norm of the residual stream.

use taipan::Tensor;
use taipan::nn::{
    Init, Linear, MambaBlock, MambaOptions, MambaParameter, MambaState, Module, ScanObserver,
    Visitor,
};

use crate::config::{Initialization, TimeStepInit};
use crate::error::Result;
use crate::{Config, Ssm};

#[derive(Clone, Debug)]
pub(super) enum Mixer {
    Mamba(MambaBlock),
}

/// Makes a parameter of a mixer.
pub(super) type Make<'a> = &'a mut dyn FnMut(MambaParameter) -> Result<Tensor>;

impl Mixer {
    /// The state-space mixer of a model.
    pub(super) fn ssm(config: &Config, make: Make) -> Result<Mixer> {
        match config.ssm {
            Ssm::Mamba { time_step_rank, norm_eps } => {
                let options = mamba_options(config, time_step_rank);
                let options = MambaOptions { norm_eps, ..options };
                Ok(Mixer::Mamba(MambaBlock::build(&options, make)?))
            }
        }
    }

    /// `[b, l, d]`, to the same shape, and the final state: see [`MambaBlock::forward_from`].
    pub(super) fn forward(
        &self,
        u: &Tensor,
        seq_start: Option<&Tensor>,
        initial: Option<&MambaState>,
        observe: ScanObserver,
    ) -> taipan::Result<(Tensor, MambaState)> {
        match self {
            Mixer::Mamba(block) => block.forward_from(u, seq_start, initial, observe),
        }
    }

    /// Its projections, by name.
    pub(super) fn projections(&self) -> impl Iterator<Item = (&'static str, &Linear)> {
        match self {
            Mixer::Mamba(block) => block.projections().into_iter(),
        }
    }

    /// [`projections`](Mixer::projections), to be changed.
    pub(super) fn projections_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Linear)> {
        match self {
            Mixer::Mamba(block) => block.projections_mut().into_iter(),
        }
    }
}

impl Module for Mixer {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        match self {
            Mixer::Mamba(block) => block.visit(visitor),
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        match self {
            Mixer::Mamba(block) => block.visit_mut(visitor),
        }
    }
}

fn mamba_options(config: &Config, r: usize) -> MambaOptions {
    let inner = config.inner_size();
    let Initialization { time_step_min: min, time_step_max: max, .. } = config.init;
    let magnitude = (r as f64).powf(-0.5) * config.init.time_step_scale;
    MambaOptions {
        d_inner: inner,
        d_state: config.state_size,
        d_conv: config.conv_kernel,
        dt_rank: r,
        use_bias: config.use_bias,
        use_conv_bias: config.use_conv_bias,
        dt_init: match config.init.time_step_init_scheme {
            TimeStepInit::Random => Init::Uniform(magnitude),
            TimeStepInit::Constant => Init::Constant(magnitude),
        },
        step_init: Init::StepBias { min, max, floor: config.init.time_step_floor },
        // Every layer adds to the residual stream, whose variance must not grow with their number.
        out_init: Init::fan_in(inner * config.num_hidden_layers),
        ..MambaOptions::new(config.hidden_size)
    }
}
