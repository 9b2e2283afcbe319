//! The block of attention with grouped heads.

use super::block::{LinearSpec, Parameters, unobserved};
use super::{BlockParameter, Init, Initializer, KvCache, Linear, Mixing, Observer};
use crate::error::{Error, Result, ensure};
use crate::ops::attention::{Attention, attention};
use crate::ops::rope::rope;
use crate::tensor::Tensor;

const OP: &str = "attention block";

/// Causal attention, with rotary positions if it has a base for them: `q_proj`, `k_proj`, `v_proj`,
/// `o_proj`.
///
/// Query heads share key heads, `heads/key_heads` each. A layer is `x + block(norm(x))`.
///
/// ```
/// use taipan::nn::{AttentionBlock, AttentionOptions, Initializer};
/// use taipan::{DType, Device, Tensor, no_grad};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let options = AttentionOptions { key_heads: 2, ..AttentionOptions::new(32, 4) };
/// let block = AttentionBlock::new(&options, &mut init)?;
/// let x = Tensor::randn(&[2, 10, 32], 1, DType::F32, &Device::Cpu)?;
/// let y = block.forward(&x)?;
/// assert_eq!(y.shape(), [2, 10, 32]);
///
/// // The last step from the keys and values of those before it.
/// let last = no_grad(|| {
///     let (_, cache) = block.forward_from(&x.slice(1, 0..9)?, None, None, &mut |_, o| Ok(o))?;
///     block.forward_from(&x.slice(1, 9..10)?, None, Some(cache), &mut |_, o| Ok(o))
/// })?;
/// assert!(last.0.sub(&y.slice(1, 9..10)?)?.abs()?.max()?.item()? < 1e-6);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AttentionBlock {
    q_proj: Linear, // [hq·p, d]
    k_proj: Linear, // [hk·p, d]
    v_proj: Linear, // [hk·p, d]
    o_proj: Linear, // [d, hq·p]
    options: AttentionOptions,
}

crate::module!(AttentionBlock { q_proj, k_proj, v_proj, o_proj; options });

/// The sizes of an [`AttentionBlock`], and its initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// The width of inputs and outputs, `d`.
    pub d_model: usize,
    /// Heads of queries, `hq`.
    pub heads: usize,
    /// Heads of keys and values, `hk`, which divide those of queries; as many.
    pub key_heads: usize,
    /// Channels of a head, `p`; `d/hq`.
    pub head_dim: usize,
    /// Whether the projections have a bias; no.
    pub use_bias: bool,
    /// The factor of the products of queries and keys; `1/√p`.
    pub scale: Option<f64>,
    /// The base of rotary positions; none.
    pub rope_base: Option<f64>,
    /// The initialisation of `o_proj.weight`; uniform between `±1/√(hq·p)`.
    pub out_init: Init,
}

impl AttentionOptions {
    /// This many heads for a width.
    pub fn new(d_model: usize, heads: usize) -> AttentionOptions {
        let head_dim = d_model.checked_div(heads).unwrap_or(0);
        AttentionOptions {
            d_model,
            heads,
            key_heads: heads,
            head_dim,
            use_bias: false,
            scale: None,
            rope_base: None,
            out_init: Init::fan_in(heads.saturating_mul(head_dim)),
        }
    }

    fn check(&self) -> Result<()> {
        let AttentionOptions { heads, key_heads, head_dim, .. } = *self;
        let fits = key_heads > 0 && heads > 0 && heads.is_multiple_of(key_heads);
        ensure!(OP, fits, "{key_heads} key heads of {heads} heads, expected a divisor");
        let pairs = self.rope_base.is_none() || head_dim.is_multiple_of(2);
        ensure!(OP, head_dim > 0 && pairs, "{head_dim} channels of a head, expected whole pairs");
        Ok(())
    }
}

impl AttentionBlock {
    /// A block with random weights, uniform as PyTorch's layers.
    pub fn new(options: &AttentionOptions, init: &mut Initializer) -> Result<AttentionBlock> {
        AttentionBlock::build::<Error>(options, &mut |parameter| init.block_parameter(&parameter))
    }

    /// A block of the tensors that `make` returns, for example from a file.
    pub fn build<E: From<Error>>(
        options: &AttentionOptions,
        make: &mut dyn FnMut(BlockParameter) -> Result<Tensor, E>,
    ) -> Result<AttentionBlock, E> {
        options.check()?;
        let d = options.d_model;
        let [queries, keys] = [options.heads, options.key_heads].map(|h| h * options.head_dim);
        let (mut parameters, use_bias) = (Parameters(make), options.use_bias);
        let mut linear = |names, [n, k]: [usize; 2], init| {
            let blocks = &[("", n)];
            parameters.linear(LinearSpec { use_bias, init, ..LinearSpec::new(names, blocks, k) })
        };
        let init = Init::fan_in(d);
        Ok(AttentionBlock {
            q_proj: linear(["q_proj.weight", "q_proj.bias"], [queries, d], init)?,
            k_proj: linear(["k_proj.weight", "k_proj.bias"], [keys, d], init)?,
            v_proj: linear(["v_proj.weight", "v_proj.bias"], [keys, d], init)?,
            o_proj: linear(["o_proj.weight", "o_proj.bias"], [d, queries], options.out_init)?,
            options: *options,
        })
    }

    /// `x`, `[b, l, d]`, to the same shape, from the first step on.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_from(x, None, None, &mut unobserved)?.0)
    }

    /// [`forward`](AttentionBlock::forward), and the keys and values of all steps so far.
    ///
    /// `seq_start`, `[b, l]`, of type u32, is not 0 where a sequence begins (see [`Attention`]);
    /// `cache` has the steps before `x`: then there is no `seq_start`, and nothing is tracked;
    /// `observe` is called with the weighted sums of values, `[b, l, hq, p]`.
    pub fn forward_from(
        &self,
        x: &Tensor,
        seq_start: Option<&Tensor>,
        cache: Option<KvCache>,
        observe: Observer,
    ) -> Result<(Tensor, KvCache)> {
        let AttentionOptions { heads, key_heads, head_dim: p, rope_base, scale, .. } = self.options;
        let &[b, l, _] = x.shape() else {
            let why = format!("the input is {:?}, expected [b, l, d]", x.shape());
            return Err(Error::Shape { op: OP, why });
        };
        let packed = seq_start.is_some() && cache.is_some();
        ensure!(OP, !packed, "seq_start and a cache, expected one of the two");
        let position = cache.as_ref().map_or(0, KvCache::steps);
        let projected = |linear: &Linear, heads| linear.forward(x)?.reshape(&[b, l, heads, p]);
        let turned = |x: Tensor| match rope_base {
            Some(base) => rope(&x, base, position),
            None => Ok(x),
        };
        let q = turned(projected(&self.q_proj, heads)?)?;
        let k = turned(projected(&self.k_proj, key_heads)?)?;
        let v = projected(&self.v_proj, key_heads)?;
        let cache = match cache {
            Some(cache) => cache.extended(&k, &v)?,
            None => KvCache::new(k, v)?,
        };
        let [k, v] = cache.with_room();
        let inputs = Attention { scale, position: Some(position), ..Attention::new(&q, k, v) };
        let inputs = Attention { seq_start, ..inputs };
        let o = observe(Mixing::Attention(&inputs), attention(&inputs)?)?;
        Ok((self.o_proj.forward(&o.reshape(&[b, l, heads * p])?)?, cache))
    }

    /// Its projections, by name, in the order of its parameters.
    pub fn projections(&self) -> [(&'static str, &Linear); 4] {
        let AttentionBlock { q_proj, k_proj, v_proj, o_proj, .. } = self;
        [("q_proj", q_proj), ("k_proj", k_proj), ("v_proj", v_proj), ("o_proj", o_proj)]
    }

    /// [`projections`](AttentionBlock::projections), to be changed.
    pub fn projections_mut(&mut self) -> [(&'static str, &mut Linear); 4] {
        let AttentionBlock { q_proj, k_proj, v_proj, o_proj, .. } = self;
        [("q_proj", q_proj), ("k_proj", k_proj), ("v_proj", v_proj), ("o_proj", o_proj)]
    }
}
