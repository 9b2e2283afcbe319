//! The block of Mamba-2 (Dao & Gu 2024, arXiv 2405.21060).

use super::block::{LinearSpec, Parameters, unobserved};
use super::{BlockParameter, Init, Initializer, Linear, MambaState, Mixing, Observer, RmsNorm};
use crate::error::{Error, Result, ensure};
use crate::ops::conv1d::{CausalConv1d, causal_conv1d};
use crate::ops::gated::gated;
use crate::ops::rms_norm::{GateOrder, gated_rms_norm};
use crate::ops::ssd::{Ssd, ssd};
use crate::tensor::Tensor;
use crate::{Activation, Device};

const OP: &str = "mamba-2 block";

/// A Mamba-2 block: heads of channels with one decay each.
///
/// ```text
/// u → in_proj → z, (x, B, C), dt
///     (x, B, C) → convolution, silu;   Δ = clamp(softplus(dt + dt_bias))
///     SSD of x, gated by z and normed → out_proj
/// ```
///
/// Its parameters have the names of published models. A layer is `x + block(norm(x))`.
///
/// ```
/// use taipan::nn::{Initializer, Mamba2Block, Mamba2Options};
/// use taipan::{DType, Device, Tensor};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let options = Mamba2Options { head_dim: 16, d_state: 8, ..Mamba2Options::new(32) };
/// let block = Mamba2Block::new(&options, &mut init)?;
/// let x = Tensor::randn(&[2, 10, 32], 1, DType::F32, &Device::Cpu)?;
/// assert_eq!(block.forward(&x)?.shape(), [2, 10, 32]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mamba2Block {
    in_proj: Linear,            // [2·inner + 2·g·n + h, d], in blocks of rows: z, xbc, dt
    conv: Tensor,               // [inner + 2·g·n, k]
    conv_bias: Option<Tensor>,  // [inner + 2·g·n]
    dt_bias: Tensor,            // [h]
    a_log: Tensor,              // [h]
    d: Tensor,                  // [h]
    norm: Option<RmsNorm>,      // of inner
    out_proj: Linear,           // [d, inner]
    conv_scale: Option<Tensor>, // [inner + 2·g·n, 1]
    options: Mamba2Options,
}

crate::module!(Mamba2Block {
    in_proj,
    conv as "conv1d.weight",
    conv_bias as "conv1d.bias",
    dt_bias,
    a_log as "A_log",
    d as "D",
    norm,
    out_proj;
    conv_scale,
    options
});

/// The sizes of a [`Mamba2Block`], and its initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2Options {
    /// The width of inputs and outputs, `d`.
    pub d_model: usize,
    /// The number of channels inside, `inner`; 2·d_model.
    pub d_inner: usize,
    /// Channels of a head, `p`; 64. There are `h = inner/p` heads.
    pub head_dim: usize,
    /// Groups of heads that share B and C, `g`; 1.
    pub groups: usize,
    /// States per channel, `n`; 128.
    pub d_state: usize,
    /// Taps of the convolution, `k`; 4.
    pub d_conv: usize,
    /// Whether `in_proj` has a bias; no.
    pub use_bias: bool,
    /// Whether `out_proj` has a bias; no.
    pub use_out_bias: bool,
    /// Whether the convolution has a bias; yes.
    pub use_conv_bias: bool,
    /// The least and the greatest Δ; 0 and ∞.
    pub dt_limit: [f64; 2],
    /// The norm before `out_proj`; one of all channels, after the gate.
    pub norm: Option<GatedNorm>,
    /// The factors of z, x, B, C and dt, as they come from `in_proj`; 1.
    pub multipliers: [f64; 5],
    /// The initialisation of Δ's bias; step sizes from 0.001 to 0.1.
    pub step_init: Init,
    /// The initialisation of `out_proj.weight`; uniform between ±1/√inner.
    pub out_init: Init,
}

/// The norm of a [`Mamba2Block`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// Equal groups of channels that are normed by themselves.
    pub groups: usize,
    /// Whether the gate or the norm comes first.
    pub order: GateOrder,
    /// Added to the mean of squares.
    pub eps: f64,
}

impl Mamba2Options {
    /// The paper's sizes for a width.
    pub fn new(d_model: usize) -> Mamba2Options {
        let d_inner = d_model.saturating_mul(2);
        Mamba2Options {
            d_model,
            d_inner,
            head_dim: 64,
            groups: 1,
            d_state: 128,
            d_conv: 4,
            use_bias: false,
            use_out_bias: false,
            use_conv_bias: true,
            dt_limit: [0.0, f64::INFINITY],
            norm: Some(GatedNorm { groups: 1, order: GateOrder::GateFirst, eps: 1e-5 }),
            multipliers: [1.0; 5],
            step_init: Init::StepBias { min: 1e-3, max: 0.1, floor: 1e-4 },
            out_init: Init::fan_in(d_inner),
        }
    }

    fn check(&self) -> Result<()> {
        let Mamba2Options { d_inner, head_dim, groups, .. } = *self;
        let heads = d_inner.checked_div(head_dim).unwrap_or(0);
        let whole = heads > 0 && heads * head_dim == d_inner;
        ensure!(OP, whole, "{d_inner} channels in heads of {head_dim}, expected whole heads");
        let shared = groups > 0 && heads.is_multiple_of(groups);
        ensure!(OP, shared, "{groups} groups of {heads} heads, expected a divisor");
        let parts = self.norm.map_or(1, |norm| norm.groups);
        let equal = parts > 0 && d_inner.is_multiple_of(parts);
        ensure!(OP, equal, "a norm of {parts} groups of {d_inner} channels, expected a divisor");
        Ok(())
    }

    fn heads(&self) -> usize {
        self.d_inner / self.head_dim
    }

    /// The multipliers of x, B and C, `[inner + 2·g·n, 1]`, unless all are 1. Before a convolution
    /// or on its weights, they are the same, and weights are fewer.
    fn conv_scale(&self, conv: &Tensor) -> Result<Option<Tensor>> {
        let [_, x, b, c, _] = self.multipliers;
        if [x, b, c] == [1.0; 3] {
            return Ok(None);
        }
        let n = self.groups * self.d_state;
        let parts = [(x, self.d_inner), (b, n), (c, n)];
        let channels = parts.into_iter().flat_map(|(factor, len)| std::iter::repeat_n(factor, len));
        let channels: Vec<f64> = channels.collect();
        let scale = Tensor::new(&channels, &[channels.len(), 1], &Device::Cpu)?;
        Ok(Some(scale.cast(conv.dtype())?.to(conv.device())?))
    }
}

impl Mamba2Block {
    /// A block with random weights, as the paper's code draws them.
    pub fn new(options: &Mamba2Options, init: &mut Initializer) -> Result<Mamba2Block> {
        Mamba2Block::build::<Error>(options, &mut |parameter| init.block_parameter(&parameter))
    }

    /// A block of the tensors that `make` returns, for example from a file.
    pub fn build<E: From<Error>>(
        options: &Mamba2Options,
        make: &mut dyn FnMut(BlockParameter) -> Result<Tensor, E>,
    ) -> Result<Mamba2Block, E> {
        options.check()?;
        let mut parameters = Parameters(make);
        let &Mamba2Options { d_model: d, d_inner: inner, d_conv: k, .. } = options;
        let (h, xbc) = (options.heads(), inner + 2 * options.groups * options.d_state);
        let blocks = [("z", inner), ("xbc", xbc), ("dt", h)];
        let names = ["in_proj.weight", "in_proj.bias"];
        let in_proj = LinearSpec::new(names, &blocks, d);
        let in_proj = parameters.linear(LinearSpec { use_bias: options.use_bias, ..in_proj })?;
        let conv = parameters.tensor("conv1d.weight", &[xbc, k], Init::fan_in(k))?;
        let bias = options.use_conv_bias.then_some(xbc);
        let conv_bias = parameters.vector("conv1d.bias", bias, Init::fan_in(k))?;
        let bias = options.use_out_bias.then_some(d);
        let out_bias = parameters.vector("out_proj.bias", bias, Init::Zeros)?;
        let norm = options.norm.map(|norm| parameters.norm("norm.weight", inner, norm.eps));
        let norm = norm.transpose()?;
        let out_proj = parameters.tensor("out_proj.weight", &[d, inner], options.out_init)?;
        let a_log = Init::LogOfUniform { min: 1.0, max: 16.0 };
        Ok(Mamba2Block {
            in_proj,
            conv_scale: options.conv_scale(&conv)?,
            conv,
            conv_bias,
            dt_bias: parameters.wide("dt_bias", &[h], options.step_init)?,
            a_log: parameters.wide("A_log", &[h], a_log)?,
            d: parameters.wide("D", &[h], Init::Ones)?,
            norm,
            out_proj: Linear::from_tensors(out_proj, out_bias)?,
            options: *options,
        })
    }

    /// `x`, `[b, l, d]`, to the same shape, from zero states.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_from(x, None, None, &mut unobserved)?.0)
    }

    /// [`forward`](Mamba2Block::forward), and the final state, whose `conv_state` is
    /// `[b, k−1, inner + 2·g·n]` and whose `ssm_state` is `[b, h, p, n]`.
    ///
    /// `seq_start`, `[b, l]`, of type u32, is not 0 where a sequence begins (see [`Ssd`]);
    /// `initial` is the state before the first step, zeros if there is none; `observe` is called
    /// after the scan.
    pub fn forward_from(
        &self,
        x: &Tensor,
        seq_start: Option<&Tensor>,
        initial: Option<&MambaState>,
        observe: Observer,
    ) -> Result<(Tensor, MambaState)> {
        let Mamba2Options { d_inner: inner, head_dim: p, groups: g, d_state: n, .. } = self.options;
        let [z, xbc, dt] = self.in_proj.forward_blocks(x)?.try_into().expect("three blocks");
        let [z_multiplier, .., dt_multiplier] = self.options.multipliers;
        let (z, dt) = (z.scale(z_multiplier)?, dt.scale(dt_multiplier)?);
        let conv = match &self.conv_scale {
            Some(scale) => &self.conv.mul(scale)?,
            None => &self.conv,
        };
        let (xbc, conv_state) = causal_conv1d(&CausalConv1d {
            bias: self.conv_bias.as_ref(),
            conv_state: initial.map(|initial| &initial.conv_state),
            seq_start,
            activation: Activation::Silu,
            ..CausalConv1d::new(&xbc, conv)
        })?;
        let parts = xbc.split(2, &[inner, g * n, g * n])?;
        let &[batch, l, h] = dt.shape().as_array().expect("[b, l, h]");
        let [u, k, q] = [[h, p], [g, n], [g, n]];
        let shaped = |part: &Tensor, [a, b]: [usize; 2]| part.reshape(&[batch, l, a, b]);
        let [u, k, q] = [shaped(&parts[0], u)?, shaped(&parts[1], k)?, shaped(&parts[2], q)?];
        let delta = self.delta(&dt)?; // [b, l, h]
        let decay = delta.mul(&self.a_log.exp()?.scale(-1.0)?)?;
        let inputs = Ssd {
            scale: Some(&delta),
            d: Some(&self.d),
            initial_state: initial.map(|initial| &initial.ssm_state),
            seq_start,
            ..Ssd::new(&u, &decay, &k, &q)
        };
        let (y, ssm_state) = ssd(&inputs)?;
        let y = observe(Mixing::Ssd(&inputs, &delta), y)?;
        let y = self.gated(&y.reshape(z.shape())?, &z)?;
        Ok((self.out_proj.forward(&y)?, MambaState { conv_state, ssm_state }))
    }

    /// `clamp(softplus(dt + dt_bias))`, in f32 at least.
    fn delta(&self, dt: &Tensor) -> Result<Tensor> {
        let mut delta = dt.cast(self.dt_bias.dtype())?.add(&self.dt_bias)?.softplus()?;
        let [least, most] = self.options.dt_limit;
        if least > 0.0 {
            delta = delta.clamp_min(least)?;
        }
        if most < f64::INFINITY {
            delta = delta.clamp_max(most)?;
        }
        Ok(delta)
    }

    /// `y` gated by `z`, both `[b, l, inner]`, and normed.
    fn gated(&self, y: &Tensor, z: &Tensor) -> Result<Tensor> {
        let (Some(norm), Some(RmsNorm { weight, eps })) = (self.options.norm, &self.norm) else {
            return gated(y, z, Activation::Silu);
        };
        let (groups, inner) = (norm.groups, self.options.d_inner);
        let part = inner / groups;
        let grouped = |tensor: &Tensor| {
            let [shape @ .., _] = tensor.shape() else { unreachable!("[…, inner]") };
            tensor.reshape(&[shape, &[groups, part]].concat())
        };
        let (y, z, weight) = (grouped(y)?, grouped(z)?, grouped(weight)?);
        let normed = gated_rms_norm(&y, &z, Some(&weight), *eps, norm.order)?;
        let [shape @ .., _, _] = normed.shape() else { unreachable!("[…, groups, part]") };
        normed.reshape(&[shape, &[inner]].concat())
    }

    /// Its projections, by name, in the order of its parameters.
    pub fn projections(&self) -> [(&'static str, &Linear); 2] {
        [("in_proj", &self.in_proj), ("out_proj", &self.out_proj)]
    }

    /// [`projections`](Mamba2Block::projections), to be changed.
    pub fn projections_mut(&mut self) -> [(&'static str, &mut Linear); 2] {
        [("in_proj", &mut self.in_proj), ("out_proj", &mut self.out_proj)]
    }
}
