//! The block of Mamba (Gu & Dao 2023), the paper's figure 3.

use std::ops::Range;

use super::block::{Parameters, unobserved};
use super::{BlockParameter, Init, Initializer, Linear, Matrix, Mixing, Observer, RowBlock};
use crate::Activation;
use crate::error::{Error, Result};
use crate::ops::conv1d::{CausalConv1d, causal_conv1d};
use crate::ops::rms_norm::rms_norm;
use crate::ops::scan::{Scan, selective_scan};
use crate::tensor::Tensor;

/// A Mamba block: a selective state-space model between two projections, gated.
///
/// ```text
/// u → in_proj → x, z
///     x → convolution, silu → x_proj → dt, B, C;  dt → dt_proj → delta
///     selective scan of x, gated by z → out_proj
/// ```
///
/// Falcon-Mamba's block norms dt, B and C, without weights: see [`MambaOptions::norm_eps`].
///
/// Its parameters have the names of published models: `in_proj.weight[x]`, `conv1d.weight`,
/// `A_log`, `D`, … A layer is `x + block(norm(x))`.
///
/// ```
/// use taipan::nn::{Initializer, MambaBlock, MambaOptions};
/// use taipan::{DType, Device, Tensor};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let block = MambaBlock::new(&MambaOptions { d_state: 8, ..MambaOptions::new(32) }, &mut init)?;
/// let x = Tensor::randn(&[2, 10, 32], 1, DType::F32, &Device::Cpu)?;
/// assert_eq!(block.forward(&x)?.shape(), [2, 10, 32]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MambaBlock {
    in_proj: Linear,           // [2·inner, d], in two blocks of rows: x, z
    conv: Tensor,              // [inner, k]
    conv_bias: Option<Tensor>, // [inner]
    x_proj: Linear,            // [r + 2n, inner]
    dt_proj: Linear,           // [inner, r]; its bias is added in the scan
    a_log: Tensor,             // [inner, n]
    d: Tensor,                 // [inner]
    out_proj: Linear,          // [d, inner]
    sizes: [usize; 3],         // r, n, n: how the result of x_proj is split
    norm_eps: Option<f64>,
}

crate::module!(MambaBlock {
    in_proj,
    conv as "conv1d.weight",
    conv_bias as "conv1d.bias",
    x_proj,
    dt_proj,
    a_log as "A_log",
    d as "D",
    out_proj;
    sizes, norm_eps
});

/// The sizes of a [`MambaBlock`], and its initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaOptions {
    /// The width of inputs and outputs, `d`.
    pub d_model: usize,
    /// The number of channels inside, `inner`; 2·d_model.
    pub d_inner: usize,
    /// States per channel, `n`; 16.
    pub d_state: usize,
    /// Taps of the convolution, `k`; 4.
    pub d_conv: usize,
    /// The rank of the projection to Δ, `r`; d_model/16, rounded up.
    pub dt_rank: usize,
    /// Whether `in_proj` and `out_proj` have a bias; no.
    pub use_bias: bool,
    /// Whether the convolution has a bias; yes.
    pub use_conv_bias: bool,
    /// Divide dt, B and C by the root of their mean square plus this; no.
    pub norm_eps: Option<f64>,
    /// The initialisation of `dt_proj.weight`; uniform between ±1/√r.
    pub dt_init: Init,
    /// The initialisation of Δ's bias; step sizes from 0.001 to 0.1.
    pub step_init: Init,
    /// The initialisation of `out_proj.weight`; uniform between ±1/√inner. In a model of several
    /// layers, 1/√(inner·layers) keeps the variance of the residual stream.
    pub out_init: Init,
}

impl MambaOptions {
    /// The paper's sizes for a width.
    pub fn new(d_model: usize) -> MambaOptions {
        let (d_inner, dt_rank) = (d_model.saturating_mul(2), d_model.div_ceil(16));
        MambaOptions {
            d_model,
            d_inner,
            d_state: 16,
            d_conv: 4,
            dt_rank,
            use_bias: false,
            use_conv_bias: true,
            norm_eps: None,
            dt_init: Init::fan_in(dt_rank),
            step_init: Init::StepBias { min: 1e-3, max: 0.1, floor: 1e-4 },
            out_init: Init::fan_in(d_inner),
        }
    }
}

/// The state of a [`MambaBlock`] after some steps of a sequence.
#[derive(Clone, Debug)]
pub struct MambaState {
    /// `[b, k−1, inner]`: the last inputs of the convolution.
    pub conv_state: Tensor,
    /// `[b, inner, n]`, in f32 if the block is of half precision.
    pub ssm_state: Tensor,
}

impl MambaBlock {
    /// A block with random weights, as the paper's code draws them.
    pub fn new(options: &MambaOptions, init: &mut Initializer) -> Result<MambaBlock> {
        MambaBlock::build::<Error>(options, &mut |parameter| init.block_parameter(&parameter))
    }

    /// A block of the tensors that `make` returns, for example from a file.
    pub fn build<E: From<Error>>(
        options: &MambaOptions,
        make: &mut dyn FnMut(BlockParameter) -> Result<Tensor, E>,
    ) -> Result<MambaBlock, E> {
        let &MambaOptions { d_model: d, d_inner: inner, d_state: n, d_conv: k, .. } = options;
        let (r, mut parameters) = (options.dt_rank, Parameters(make));
        let mut halves = |stored, rest: &[usize], init| -> Result<[Tensor; 2], E> {
            let mut half = |rows: Range<usize>| {
                let shape = [&[rows.len()], rest].concat();
                parameters.rows(stored, Some(rows), &shape, init)
            };
            Ok([half(0..inner)?, half(inner..2 * inner)?])
        };
        let [in_x, in_z] = halves("in_proj.weight", &[d], Init::fan_in(d))?;
        let biases = options.use_bias.then(|| halves("in_proj.bias", &[], Init::Zeros));
        let [bias_x, bias_z] = biases.transpose()?.map_or([None, None], |both| both.map(Some));
        let bias = options.use_conv_bias.then_some(inner);
        let conv_bias = parameters.vector("conv1d.bias", bias, Init::fan_in(k))?;
        let bias = options.use_bias.then_some(d);
        let out_bias = parameters.vector("out_proj.bias", bias, Init::Zeros)?;
        let conv = parameters.tensor("conv1d.weight", &[inner, k], Init::fan_in(k))?;
        let x_proj = [r + 2 * n, inner];
        let x_proj = parameters.tensor("x_proj.weight", &x_proj, Init::fan_in(inner))?;
        let dt_proj = parameters.tensor("dt_proj.weight", &[inner, r], options.dt_init)?;
        let dt_bias = parameters.wide("dt_proj.bias", &[inner], options.step_init)?;
        let block = |label, weight, bias| RowBlock { label, weight: Matrix::Float(weight), bias };
        Ok(MambaBlock {
            in_proj: Linear::from_blocks(vec![block("x", in_x, bias_x), block("z", in_z, bias_z)])?,
            conv,
            conv_bias,
            x_proj: Linear::from_tensors(x_proj, None)?,
            dt_proj: Linear::from_tensors(dt_proj, Some(dt_bias))?,
            a_log: parameters.wide("A_log", &[inner, n], Init::LogArange)?,
            d: parameters.wide("D", &[inner], Init::Ones)?,
            out_proj: Linear::from_tensors(
                parameters.tensor("out_proj.weight", &[d, inner], options.out_init)?,
                out_bias,
            )?,
            sizes: [r, n, n],
            norm_eps: options.norm_eps,
        })
    }

    /// `x`, `[b, l, d]`, to the same shape, from zero states.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_from(x, None, None, &mut unobserved)?.0)
    }

    /// [`forward`](MambaBlock::forward), and the final state.
    ///
    /// `seq_start`, `[b, l]`, of type u32, is not 0 where a sequence begins (see [`Scan`]);
    /// `initial` is the state before the first step, zeros if there is none; `observe` is called
    /// after the scan.
    pub fn forward_from(
        &self,
        x: &Tensor,
        seq_start: Option<&Tensor>,
        initial: Option<&MambaState>,
        observe: Observer,
    ) -> Result<(Tensor, MambaState)> {
        let mut blocks = self.in_proj.block_results(x)?;
        let (z, u) = (blocks.pop(), blocks.pop());
        let (Some(u), Some(z)) = (u, z) else { unreachable!("two blocks of rows") };
        let (u, conv_state) = causal_conv1d(&CausalConv1d {
            bias: self.conv_bias.as_ref(),
            conv_state: initial.map(|initial| &initial.conv_state),
            seq_start,
            activation: Activation::Silu,
            ..CausalConv1d::new(&u, &self.conv)
        })?; // [b, l, inner]
        let mut selected = self.x_proj.forward(&u)?.parts(2, &self.sizes)?; // of [b, l, r + 2n]
        if let Some(eps) = self.norm_eps {
            for part in &mut selected {
                *part = rms_norm(part, None, eps)?;
            }
        }
        let [dt, b, c] = &selected[..] else { unreachable!("as many parts as sizes") };
        let delta = self.dt_proj.product(dt)?; // [b, l, inner]
        let scan = Scan {
            d: Some(&self.d),
            delta_bias: self.dt_proj.bias(),
            z: Some(&z),
            initial_state: initial.map(|initial| &initial.ssm_state),
            seq_start,
            ..Scan::new(&u, &delta, &self.a_log, b, c)
        };
        let (y, ssm_state) = selective_scan(&scan)?;
        let y = self.out_proj.forward(&observe(Mixing::Scan(&scan), y)?)?;
        Ok((y, MambaState { conv_state, ssm_state }))
    }

    /// Its projections, by name, in the order of its parameters.
    pub fn projections(&self) -> [(&'static str, &Linear); 4] {
        let MambaBlock { in_proj, x_proj, dt_proj, out_proj, .. } = self;
        [("in_proj", in_proj), ("x_proj", x_proj), ("dt_proj", dt_proj), ("out_proj", out_proj)]
    }

    /// [`projections`](MambaBlock::projections), to be changed.
    pub fn projections_mut(&mut self) -> [(&'static str, &mut Linear); 4] {
        let MambaBlock { in_proj, x_proj, dt_proj, out_proj, .. } = self;
        [("in_proj", in_proj), ("x_proj", x_proj), ("dt_proj", dt_proj), ("out_proj", out_proj)]
    }
}
