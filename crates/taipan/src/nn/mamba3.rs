//! The block of Mamba-3, with one input and output per channel (SISO) or several (MIMO).

use super::block::{LinearSpec, Parameters, unobserved};
use super::mamba3_options::{DecayActivation, Mamba3Options, OP};
use super::{BlockParameter, Init, Initializer, Linear, Mixing, Observer, RmsNorm};
use crate::Activation;
use crate::error::{Error, Result, ensure};
use crate::ops::concat::concat;
use crate::ops::gated::gated;
use crate::ops::rms_norm::{GateOrder, gated_rms_norm, rms_norm};
use crate::ops::rotate::{Pairs, rotate};
use crate::ops::ssd::{Ssd, ssd};
use crate::ops::turn_sum::{TurnSum, turn_sum};
use crate::tensor::Tensor;

/// Added to the mean of squares of all its norms.
const EPS: f64 = 1e-5;

/// A Mamba-3 block: heads of channels whose states turn, by angles that depend on the input.
///
/// ```text
/// u → in_proj → z, x, B, C, dt, α, τ, θ
///     Δ = softplus(dt + dt_bias)    A = −max(f(α), A_floor)    λ = sigmoid(τ)
///     k, q = norms of B, C, with a bias of each head, turned by the sum of π·tanh(θ)·Δ so far
///     W_t = Σ_r x_r ⊗ k_r           h_t = e^(AΔ)·(h_{t−1} + (1−λ)·Δ·W_{t−1}) + λ·Δ·W_t
///     h_t·q_r + D·x_r, perhaps normed, and gated by z → out_proj
/// ```
///
/// Its parameters have the names of the paper's code. A layer is `x + block(norm(x))`.
///
/// ```
/// use taipan::nn::{Initializer, Mamba3Block, Mamba3Options};
/// use taipan::{DType, Device, Tensor};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let options = Mamba3Options { head_dim: 16, d_state: 8, angles: 2, ..Mamba3Options::new(32) };
/// let block = Mamba3Block::new(&options, &mut init)?;
/// let x = Tensor::randn(&[2, 10, 32], 1, DType::F32, &Device::Cpu)?;
/// assert_eq!(block.forward(&x)?.shape(), [2, 10, 32]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mamba3Block {
    in_proj: Linear, // [2·inner + 2·r·g·n + 3·h + s, d], in blocks: z, x, B, C, dynamics
    dt_bias: Tensor, // [h]
    b_bias: Tensor,  // [h, r, n]
    c_bias: Tensor,  // [h, r, n]
    b_norm: RmsNorm, // of n
    c_norm: RmsNorm, // of n
    mimo_x: Option<Tensor>, // [h, r, p], as the other two
    mimo_z: Option<Tensor>,
    mimo_o: Option<Tensor>,
    d: Tensor,             // [h]
    norm: Option<RmsNorm>, // of p, with a weight of inner
    out_proj: Linear,      // [d, inner]
    options: Mamba3Options,
}

crate::module!(Mamba3Block {
    in_proj,
    dt_bias,
    b_bias as "B_bias",
    c_bias as "C_bias",
    b_norm as "B_norm",
    c_norm as "C_norm",
    mimo_x,
    mimo_z,
    mimo_o,
    d as "D",
    norm,
    out_proj;
    options
});

/// The state of a [`Mamba3Block`] after a step.
#[derive(Clone, Debug)]
pub struct Mamba3State {
    /// The angle of each pair, in turns, from −½ to ½: `[b, h, s]`, f32 at least.
    pub turns: Tensor,
    /// The states, `[b, h, p, n]`, f32 at least.
    pub ssm_state: Tensor,
    /// `k` of the last step, turned: `[b, r, h, n]`.
    pub k: Tensor,
    /// `x` of the last step, `[b, h, p]`.
    pub x: Tensor,
}

/// What a scan reads; `x`, `k` and `q` by rank, the rest `[b, l, h]`.
struct Dynamics<'a> {
    x: &'a Tensor, // [b, l, r, h, p]
    k: &'a Tensor, // [b, l, r, h, n]
    q: &'a Tensor,
    delta: &'a Tensor,
    decay: &'a Tensor,
    /// How the input of a step enters.
    gamma: &'a Tensor,
    /// How the input of the step before enters: 0 where a sequence starts.
    beta: &'a Tensor,
    seq_start: Option<&'a Tensor>,
}

impl Mamba3Block {
    /// A block with random weights, as the paper's code draws them.
    pub fn new(options: &Mamba3Options, init: &mut Initializer) -> Result<Mamba3Block> {
        Mamba3Block::build::<Error>(options, &mut |parameter| init.block_parameter(&parameter))
    }

    /// A block of the tensors that `make` returns, for example from a file.
    pub fn build<E: From<Error>>(
        options: &Mamba3Options,
        make: &mut dyn FnMut(BlockParameter) -> Result<Tensor, E>,
    ) -> Result<Mamba3Block, E> {
        options.check()?;
        let mut parameters = Parameters(make);
        let &Mamba3Options { d_model: d, d_inner: inner, head_dim: p, d_state: n, .. } = options;
        let (h, r, rows) = (options.heads(), options.ranks.unwrap_or(1), options.in_rows());
        let blocks: Vec<_> = ["z", "x", "B", "C", "dynamics"].into_iter().zip(rows).collect();
        let names = ["in_proj.weight", "in_proj.bias"];
        let in_proj = parameters.linear(LinearSpec::new(names, &blocks, d))?;
        let mut mimo = |stored, init| {
            options.ranks.map(|_| parameters.tensor(stored, &[h, r, p], init)).transpose()
        };
        let part = Init::Constant(1.0 / r as f64);
        let (mimo_x, mimo_z) = (mimo("mimo_x", part)?, mimo("mimo_z", Init::Ones)?);
        let mimo_o = mimo("mimo_o", part)?;
        let b_norm = parameters.norm("B_norm.weight", n, EPS)?;
        let c_norm = parameters.norm("C_norm.weight", n, EPS)?;
        let norm = options.use_out_norm.then(|| parameters.norm("norm.weight", inner, EPS));
        let norm = norm.transpose()?;
        let out_proj = parameters.tensor("out_proj.weight", &[d, inner], options.out_init)?;
        Ok(Mamba3Block {
            in_proj,
            dt_bias: parameters.wide("dt_bias", &[h], options.step_init)?,
            b_bias: parameters.wide("B_bias", &[h, r, n], Init::Ones)?,
            c_bias: parameters.wide("C_bias", &[h, r, n], Init::Ones)?,
            b_norm,
            c_norm,
            mimo_x,
            mimo_z,
            mimo_o,
            d: parameters.wide("D", &[h], Init::Ones)?,
            norm,
            out_proj: Linear::from_tensors(out_proj, None)?,
            options: *options,
        })
    }

    /// `x`, `[b, l, d]`, to the same shape, from zero states.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_from(x, None, None, &mut unobserved)?.0)
    }

    /// [`forward`](Mamba3Block::forward), and the final state.
    ///
    /// `seq_start`, `[b, l]`, of type u32, is not 0 where a sequence begins: nothing from before
    /// enters there, and angles are 0. `initial` is the state before the first step. `observe` is
    /// called after the scan; a single step from a state is none.
    pub fn forward_from(
        &self,
        x: &Tensor,
        seq_start: Option<&Tensor>,
        initial: Option<&Mamba3State>,
        observe: Observer,
    ) -> Result<(Tensor, Mamba3State)> {
        let Mamba3Options { head_dim: p, d_state: n, angles: s, ranks, .. } = self.options;
        let (h, r) = (self.options.heads(), ranks.unwrap_or(1));
        let [z, x, b, c, rates] = self.in_proj.forward_blocks(x)?.try_into().expect("five blocks");
        let &[batch, l, _] = z.shape().as_array().ok_or_else(|| {
            let why = format!("the input is {:?}, expected [b, l, d]", x.shape());
            Error::Shape { op: OP, why }
        })?;
        ensure!(OP, l > 0, "the input has no steps, expected at least one");

        let rates = rates.cast(self.dt_bias.dtype())?.split(2, &[h, h, h, s])?;
        let [dt, alpha, tau, theta] = rates.try_into().expect("four parts");
        let delta = dt.add(&self.dt_bias)?.softplus()?; // [b, l, h]
        let decay = self.rate(&alpha)?.mul(&delta)?.neg()?;
        let gamma = tau.sigmoid()?.mul(&delta)?;
        let mut beta = tau.neg()?.sigmoid()?.mul(&delta)?;
        if let Some(seq_start) = seq_start {
            beta = beta.masked_fill(&seq_start.unsqueeze(2)?, 0.0)?;
        }
        // π·tanh(θ)·Δ is half of tanh(θ)·Δ in turns.
        let turns = theta.tanh()?.scale(0.5)?.unsqueeze(2)?.mul(&delta.unsqueeze(3)?)?;
        let initial_turns = initial.map(|initial| &initial.turns);
        let turns = turn_sum(&TurnSum { turns: &turns, initial: initial_turns, seq_start })?;
        let k = self.turned(&b, (&self.b_norm, &self.b_bias), &turns)?;
        let q = self.turned(&c, (&self.c_norm, &self.c_bias), &turns)?;

        let [x, z] = [&x, &z].map(|x| x.reshape(&[batch, l, 1, h, p]));
        let (x, z) = (x?, z?);
        let (x_r, z_r) = (by_rank(&x, &self.mimo_x)?, by_rank(&z, &self.mimo_z)?);
        let last = initial.map(|initial| {
            let x = initial.x.reshape(&[batch, 1, 1, h, p])?;
            let k = initial.k.reshape(&[batch, 1, r, h, n])?;
            Ok::<_, Error>((by_rank(&x, &self.mimo_x)?, k))
        });
        let last = last.transpose()?;
        let state = initial.map(|initial| &initial.ssm_state);
        let dynamics = Dynamics {
            delta: &delta,
            x: &x_r,
            k: &k,
            q: &q,
            decay: &decay,
            gamma: &gamma,
            beta: &beta,
            seq_start,
        };
        let (y, ssm_state) = match (l, state.zip(last.as_ref())) {
            (1, Some((state, last))) => self.step(&dynamics, state, last)?,
            (_, before) => self.scan(&dynamics, before, observe)?,
        };

        let y = match &self.norm {
            Some(RmsNorm { weight, eps }) => {
                let weight = weight.reshape(&[h, p])?;
                gated_rms_norm(&y, &z_r, Some(&weight), *eps, GateOrder::NormFirst)?
            }
            None => gated(&y, &z_r, Activation::Silu)?,
        };
        let y = match &self.mimo_o {
            Some(_) => by_rank(&y, &self.mimo_o)?.sum_dims(&[2])?,
            None => y,
        };
        let y = self.out_proj.forward(&y.reshape(&[batch, l, h * p])?)?;
        let last = |tensor: &Tensor, shape: &[usize]| tensor.slice(1, l - 1..l)?.reshape(shape);
        let state = Mamba3State {
            turns: last(&turns, &[batch, h, s])?,
            ssm_state,
            k: last(&k, &[batch, r, h, n])?,
            x: last(&x, &[batch, h, p])?,
        };
        Ok((y, state))
    }

    /// `−A`, from `α`.
    fn rate(&self, alpha: &Tensor) -> Result<Tensor> {
        let rate = match self.options.a_activation {
            DecayActivation::HeavyTail => alpha.heavy_tail()?,
            DecayActivation::Softplus => alpha.softplus()?,
        };
        rate.clamp_min(self.options.a_floor)
    }

    /// `k` or `q`, `[b, l, r, h, n]`, of `B` or `C`, `[b, l, r·g·n]`.
    fn turned(
        &self,
        b: &Tensor,
        (norm, bias): (&RmsNorm, &Tensor),
        turns: &Tensor,
    ) -> Result<Tensor> {
        let Mamba3Options { groups: g, d_state: n, ranks, .. } = self.options;
        let (h, r) = (self.options.heads(), ranks.unwrap_or(1));
        let &[batch, l, _] = b.shape().as_array().expect("[b, l, r·g·n]");
        let b = rms_norm(&b.reshape(&[batch, l, r, g, 1, n])?, &norm.weight, norm.eps)?;
        let bias = bias.transpose(0, 1)?.cast(b.dtype())?.reshape(&[r, g, h / g, n])?;
        let pairs = if ranks.is_some() { Pairs::Halves } else { Pairs::Adjacent };
        rotate(&b.add(&bias)?.reshape(&[batch, l, r, h, n])?, turns, pairs)
    }

    /// `h_t` has the input of step `j < t` with the factor `γ_j + β_{j+1}`, and its own with `γ_t`.
    fn scan(
        &self,
        dynamics: &Dynamics,
        before: Option<(&Tensor, &(Tensor, Tensor))>,
        observe: Observer,
    ) -> Result<(Tensor, Tensor)> {
        let &Dynamics { x, k, q, delta, decay, gamma, beta, seq_start } = dynamics;
        let l = beta.shape()[1];
        let scale = gamma.add(&beta.slice(1, 1..l)?.pad(1, [0, 1], 0.0)?)?;
        let initial_state = before.map(|(state, last)| {
            let input = outer_product(last, &beta.slice(1, 0..1)?)?;
            state.add(&input)
        });
        let initial_state = initial_state.transpose()?;
        let inputs = Ssd {
            scale: Some(&scale),
            own_scale: Some(gamma),
            d: Some(&self.d),
            initial_state: initial_state.as_ref(),
            seq_start,
            ..Ssd::new(x, decay, k, q)
        };
        let (y, state) = ssd(&inputs)?;
        Ok((observe(Mixing::Ssd(&inputs, delta), y)?, state))
    }

    /// One step: the input of the step before is further ranks of this one, so that the state is
    /// read and written once.
    fn step(
        &self,
        dynamics: &Dynamics,
        state: &Tensor,
        (last_x, last_k): &(Tensor, Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let &Dynamics { x, k, q, decay, gamma, beta, seq_start, .. } = dynamics;
        let wide = |tensor: &Tensor| tensor.cast(self.d.dtype());
        let (rows, r) = (|factor: &Tensor| factor.unsqueeze(2)?.unsqueeze(4), x.shape()[2]);
        let (own, now) = (wide(x)?, wide(q)?);
        let earlier = wide(last_x)?.mul(&rows(&decay.exp()?.mul(beta)?)?)?;
        let inputs = concat(&[&own.mul(&rows(gamma)?)?, &earlier], 2)?;
        let k = concat(&[&wide(k)?, &wide(last_k)?], 2)?;
        let q = concat(&[&now, &now], 2)?;
        let (y, state) = ssd(&Ssd {
            initial_state: Some(state),
            seq_start,
            ..Ssd::new(&inputs, decay, &k, &q)
        })?;
        let y = y.slice(2, 0..r)?.add(&own.mul(&self.d.unsqueeze(1)?)?)?;
        Ok((y.cast(x.dtype())?, state))
    }

    /// Its projections, by name, in the order of its parameters.
    pub fn projections(&self) -> [(&'static str, &Linear); 2] {
        [("in_proj", &self.in_proj), ("out_proj", &self.out_proj)]
    }

    /// [`projections`](Mamba3Block::projections), to be changed.
    pub fn projections_mut(&mut self) -> [(&'static str, &mut Linear); 2] {
        [("in_proj", &mut self.in_proj), ("out_proj", &mut self.out_proj)]
    }
}

/// `[b, l, r or 1, h, p]` times a factor, `[h, r, p]`, if there is one.
fn by_rank(x: &Tensor, factor: &Option<Tensor>) -> Result<Tensor> {
    factor.as_ref().map_or(Ok(x.clone()), |factor| x.mul(&factor.transpose(0, 1)?))
}

/// `factor·Σ_r x_r ⊗ k_r`, `[b, h, p, n]`, of the inputs of a step, `[b, 1, r, h, p]` and
/// `[b, 1, r, h, n]`, and a factor, `[b, 1, h]`; in the type of the factor.
fn outer_product((x, k): &(Tensor, Tensor), factor: &Tensor) -> Result<Tensor> {
    let by_head = |tensor: &Tensor, order: [usize; 4]| {
        tensor.squeeze(1)?.cast(factor.dtype())?.permute(&order)
    };
    let x = by_head(x, [0, 2, 3, 1])?.mul(&factor.transpose(1, 2)?.unsqueeze(3)?)?;
    x.matmul(&by_head(k, [0, 2, 1, 3])?)
}
