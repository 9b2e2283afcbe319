//! Mixers: what a layer applies to the norm of the residual stream.

use taipan::nn::{
    AttentionBlock, AttentionOptions, BlockParameter, GatedNorm, Init, KvCache, Linear,
    Mamba2Block, Mamba2Options, Mamba3Block, Mamba3Options, Mamba3State, MambaBlock, MambaOptions,
    MambaState, Module, Observer, Visitor,
};
use taipan::{Error, Tensor};

use crate::config::{AttentionConfig, Initialization, Mamba3Config, TimeStepInit};
use crate::error::Result;
use crate::{Config, Ssm};

#[derive(Clone, Debug)]
pub(super) enum Mixer {
    Mamba(MambaBlock),
    Mamba2(Mamba2Block),
    Mamba3(Box<Mamba3Block>),
    Attention(AttentionBlock),
}

/// What a mixer remembers of the tokens so far.
#[derive(Clone, Debug)]
pub(super) enum MixerState {
    /// Its size does not depend on their number.
    Mamba(MambaState),
    /// Likewise.
    Mamba3(Mamba3State),
    /// It grows with every token.
    Attention(KvCache),
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
            Ssm::Mamba2 { head_dim, n_groups, norm, time_step_limit, .. } => {
                let eps = config.layer_norm_epsilon;
                let options = Mamba2Options {
                    head_dim,
                    groups: n_groups,
                    dt_limit: time_step_limit,
                    norm: norm.map(|norm| GatedNorm {
                        groups: norm.groups,
                        order: norm.order,
                        eps,
                    }),
                    ..mamba2_options(config)
                };
                Ok(Mixer::Mamba2(Mamba2Block::build(&options, make)?))
            }
            Ssm::Mamba3(mamba3) => {
                let block = Mamba3Block::build(&mamba3_options(config, mamba3), make)?;
                Ok(Mixer::Mamba3(block.into()))
            }
        }
    }

    /// The attention of a model.
    pub(super) fn attention(
        config: &Config,
        attention: &AttentionConfig,
        make: Make,
    ) -> Result<Mixer> {
        let &AttentionConfig { num_heads, num_key_value_heads, head_dim, .. } = attention;
        let options = AttentionOptions {
            key_heads: num_key_value_heads,
            head_dim,
            use_bias: attention.use_bias,
            // The products of queries and keys are linear in both.
            scale: Some(attention.scale * config.multipliers.key),
            rope_base: attention.rope_theta,
            out_init: out_init(config, num_heads * head_dim),
            ..AttentionOptions::new(config.hidden_size, num_heads)
        };
        Ok(Mixer::Attention(AttentionBlock::build(&options, make)?))
    }

    /// `[b, l, d]`, to the same shape, and the final state: see [`MambaBlock::forward_from`].
    pub(super) fn forward(
        &self,
        u: &Tensor,
        seq_start: Option<&Tensor>,
        initial: Option<MixerState>,
        observe: Observer,
    ) -> taipan::Result<(Tensor, MixerState)> {
        match self {
            Mixer::Mamba(block) => {
                let initial = initial.map(MixerState::mamba).transpose()?;
                let (y, state) = block.forward_from(u, seq_start, initial.as_ref(), observe)?;
                Ok((y, MixerState::Mamba(state)))
            }
            Mixer::Mamba2(block) => {
                let initial = initial.map(MixerState::mamba).transpose()?;
                let (y, state) = block.forward_from(u, seq_start, initial.as_ref(), observe)?;
                Ok((y, MixerState::Mamba(state)))
            }
            Mixer::Mamba3(block) => {
                let initial = initial.map(MixerState::mamba3).transpose()?;
                let (y, state) = block.forward_from(u, seq_start, initial.as_ref(), observe)?;
                Ok((y, MixerState::Mamba3(state)))
            }
            Mixer::Attention(block) => {
                let initial = initial.map(MixerState::attention).transpose()?;
                let (y, cache) = block.forward_from(u, seq_start, initial, observe)?;
                Ok((y, MixerState::Attention(cache)))
            }
        }
    }

    /// Its projections, by name.
    pub(super) fn projections(&self) -> Vec<(&'static str, &Linear)> {
        match self {
            Mixer::Mamba(block) => block.projections().into(),
            Mixer::Mamba2(block) => block.projections().into(),
            Mixer::Mamba3(block) => block.projections().into(),
            Mixer::Attention(block) => block.projections().into(),
        }
    }

    /// [`projections`](Mixer::projections), to be changed.
    pub(super) fn projections_mut(&mut self) -> Vec<(&'static str, &mut Linear)> {
        match self {
            Mixer::Mamba(block) => block.projections_mut().into(),
            Mixer::Mamba2(block) => block.projections_mut().into(),
            Mixer::Mamba3(block) => block.projections_mut().into(),
            Mixer::Attention(block) => block.projections_mut().into(),
        }
    }
}

impl MixerState {
    fn mamba(self) -> taipan::Result<MambaState> {
        match self {
            MixerState::Mamba(state) => Ok(state),
            other => Err(of_another(&other, "a state of Mamba")),
        }
    }

    fn mamba3(self) -> taipan::Result<Mamba3State> {
        match self {
            MixerState::Mamba3(state) => Ok(state),
            other => Err(of_another(&other, "a state of Mamba-3")),
        }
    }

    fn attention(self) -> taipan::Result<KvCache> {
        match self {
            MixerState::Attention(cache) => Ok(cache),
            other => Err(of_another(&other, "a cache of attention")),
        }
    }
}

/// The error for a state of another model.
fn of_another(found: &MixerState, expected: &str) -> Error {
    let found = match found {
        MixerState::Mamba(_) => "a state of Mamba",
        MixerState::Mamba3(_) => "a state of Mamba-3",
        MixerState::Attention(_) => "a cache of attention",
    };
    Error::Shape { op: "mixer", why: format!("{found}, expected {expected}") }
}

impl Module for Mixer {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        match self {
            Mixer::Mamba(block) => block.visit(visitor),
            Mixer::Mamba2(block) => block.visit(visitor),
            Mixer::Mamba3(block) => block.visit(visitor),
            Mixer::Attention(block) => block.visit(visitor),
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        match self {
            Mixer::Mamba(block) => block.visit_mut(visitor),
            Mixer::Mamba2(block) => block.visit_mut(visitor),
            Mixer::Mamba3(block) => block.visit_mut(visitor),
            Mixer::Attention(block) => block.visit_mut(visitor),
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
        out_init: out_init(config, config.inner_size()),
        ..MambaOptions::new(config.hidden_size)
    }
}

fn mamba2_options(config: &Config) -> Mamba2Options {
    Mamba2Options {
        d_inner: config.inner_size(),
        d_state: config.state_size,
        d_conv: config.conv_kernel,
        use_bias: config.use_bias,
        use_out_bias: config.has_out_proj_bias(),
        use_conv_bias: config.use_conv_bias,
        multipliers: config.multipliers.ssm,
        step_init: step_init(config),
        out_init: out_init(config, config.inner_size()),
        ..Mamba2Options::new(config.hidden_size)
    }
}

fn mamba3_options(config: &Config, mamba3: Mamba3Config) -> Mamba3Options {
    Mamba3Options {
        d_inner: config.inner_size(),
        head_dim: mamba3.head_dim,
        groups: mamba3.n_groups,
        d_state: config.state_size,
        ranks: mamba3.mimo_rank,
        angles: mamba3.angles(config.state_size),
        a_activation: mamba3.a_activation,
        a_floor: mamba3.a_floor,
        use_out_norm: mamba3.out_norm,
        step_init: step_init(config),
        out_init: out_init(config, config.inner_size()),
        ..Mamba3Options::new(config.hidden_size)
    }
}

/// Of the bias of Δ.
fn step_init(config: &Config) -> Init {
    let Initialization { time_step_min: min, time_step_max: max, .. } = config.init;
    Init::StepBias { min, max, floor: config.init.time_step_floor }
}

/// Of a projection to the residual stream: every layer adds to it once, or twice with an MLP, and
/// its variance must not grow with their number.
pub(super) fn out_init(config: &Config, inputs: usize) -> Init {
    let additions = config.layers.len() * if config.mlp.is_some() { 2 } else { 1 };
    Init::fan_in(inputs * additions)
}
