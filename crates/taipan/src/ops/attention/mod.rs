//! Causal attention with grouped heads, and its gradient, in memory linear in the length.
//!
//! `b` is the batch size, `l` the number of queries, `s` that of keys, `hq` the number of query
//! heads, `hk` that of key heads and `d` that of channels of a head. The *rows* of a key head are
//! the queries of all steps and of all query heads that read it, `l·hq/hk` of them.

mod backward;
mod cpu;
mod gpu;

use smallvec::smallvec;

#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::error::{Error, Result, ensure};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "attention";

/// The arguments of [`attention`]. `Attention::new` takes the required ones; the optional ones are
/// public fields.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | `q` | `[b, l, hq, d]` | any float type |
/// | `k`, `v` | `[b, s, hk, d]` | the same |
/// | `seq_start` | `[b, s]` | u32 |
///
/// `hq` is a multiple of `hk`: consecutive query heads share a key head.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The queries.
    pub q: &'a Tensor,
    /// The keys.
    pub k: &'a Tensor,
    /// The values.
    pub v: &'a Tensor,
    /// The factor of the products of queries and keys; `1/√d` if absent.
    pub scale: Option<f64>,
    /// The position of the first query among the keys; `s − l` if absent. Keys after the last query
    /// are not read: they are the free part of a cache.
    pub position: Option<usize>,
    /// For packed sequences: not 0 at the first key of each sequence, before which its queries see
    /// nothing.
    pub seq_start: Option<&'a Tensor>,
}

impl<'a> Attention<'a> {
    /// Without optional arguments.
    pub fn new(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor) -> Attention<'a> {
        Attention { q, k, v, scale: None, position: None, seq_start: None }
    }
}

/// Causal attention: the query of step `t`, at `i = position + t`, sees the keys up to `i`. The
/// result has the shape of `q`.
///
/// ```text
/// weight_ij = exp(scale·q_i·k_j) / Σ_j exp(scale·q_i·k_j)        o_i = Σ_j weight_ij·v_j
/// ```
///
/// Weights are computed in tiles and never stored: memory is linear in the lengths. Saved for
/// backward are the inputs, the result and a number for each row. Sums and weights are in f32 (f64
/// for f64).
///
/// A long sequence can be computed in several calls, each with the keys and values of all steps
/// before it: a cache.
///
/// ```
/// use taipan::{Attention, DType, Device, Tensor, attention};
///
/// let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &Device::Cpu);
/// let (q, k, v) = (random(&[1, 5, 4, 8], 1)?, random(&[1, 5, 2, 8], 2)?, random(&[1, 5, 2, 8], 3)?);
/// let o = attention(&Attention::new(&q, &k, &v))?;
/// assert_eq!(o.shape(), [1, 5, 4, 8]);
///
/// // The last step alone, with the keys and values of all.
/// let last = attention(&Attention::new(&q.slice(1, 4..5)?, &k, &v))?;
/// let difference = last.sub(&o.slice(1, 4..5)?)?.abs()?.max()?.item()?;
/// assert!(difference < 1e-6);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn attention(inputs: &Attention) -> Result<Tensor> {
    let Attention { q, k, v, scale, position, seq_start } = *inputs;
    let op = CausalAttention { scale, position };
    let tensors: Vec<&Tensor> = [q, k, v].into_iter().chain(seq_start).collect();
    apply_one(op, &tensors)
}

/// The op.
#[derive(Clone, Copy)]
struct CausalAttention {
    scale: Option<f64>,
    position: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    b: usize,
    l: usize,
    s: usize,
    hq: usize,
    hk: usize,
    d: usize,
    position: usize,
}

impl Sizes {
    /// Query heads of a key head.
    fn group(self) -> usize {
        self.hq / self.hk
    }

    /// Rows of a key head.
    fn rows(self) -> usize {
        self.l * self.group()
    }

    /// The key of the step of a row: the last one that it sees.
    fn key_of(self, row: usize) -> usize {
        self.position + row / self.group()
    }

    /// Where a row of a key head begins in `q`.
    fn query(self, sequence: usize, head: usize, row: usize) -> usize {
        let step = sequence * self.l + row / self.group();
        (step * self.hq + head * self.group() + row % self.group()) * self.d
    }

    /// The multiply-adds of the products of queries and keys, about.
    fn work(self) -> usize {
        let visible = self.position + self.l.div_ceil(2);
        (self.b * self.hq * self.d).saturating_mul(self.l).saturating_mul(visible)
    }
}

impl CausalAttention {
    /// From the specs of `q` and `k`, which have been checked.
    fn sizes(&self, q: &Spec, k: &Spec) -> Sizes {
        let [b, l, hq, d] = *q.shape().as_array().expect("checked");
        let [_, s, hk, _] = *k.shape().as_array().expect("checked");
        Sizes { b, l, s, hq, hk, d, position: self.position.unwrap_or(s - l) }
    }

    fn scale(&self, d: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (d as f64).sqrt())
    }
}

impl Op for CausalAttention {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        true
    }

    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (o, log_sums) = (saved.output(0), saved.output(1));
        let mut inputs = vec![saved.input(0), saved.input(1), saved.input(2), o, log_sums, &dys[0]];
        let seq_start = (saved.specs.len() == 4).then(|| saved.input(3));
        inputs.extend(seq_start);
        let specs = saved.specs[..3].into();
        let cpu = |io: CpuIo| backward::cpu(self, io);
        let gpu = |io: GpuIo| gpu::backward(self, io);
        let grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        Ok(grads.into_iter().map(Some).chain(seq_start.map(|_| None)).collect())
    }
}

impl Kernel for CausalAttention {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        q.dtype().ensure_float(OP, "q")?;
        k.dtype().ensure(q.dtype(), OP, "k")?;
        v.dtype().ensure(q.dtype(), OP, "v")?;
        let error = |why| Err(Error::Shape { op: OP, why });
        let &[b, l, hq, d] = q.shape() else {
            return error(format!("q is {:?}, expected [b, l, hq, d]", q.shape()));
        };
        let &[kb, s, hk, kd] = k.shape() else {
            return error(format!("k is {:?}, expected [b, s, hk, d]", k.shape()));
        };
        let fits = (kb, kd) == (b, d);
        ensure!(OP, fits, "k is {:?}, expected [{b}, s, hk, {d}]", k.shape());
        ensure!(OP, v.shape() == k.shape(), "v is {:?}, expected {:?}", v.shape(), k.shape());
        ensure!(OP, d > 0, "q is {:?}, expected a channel or more", q.shape());
        ensure!(
            OP,
            hk > 0 && hq.is_multiple_of(hk),
            "{hq} query heads and {hk} key heads, expected a multiple of the key heads"
        );
        let position = self.position.unwrap_or(s.saturating_sub(l));
        let fits = position.checked_add(l).is_some_and(|end| end <= s);
        ensure!(OP, fits, "{l} queries from position {position} on, expected at most {s} keys");
        let scale = self.scale(d);
        ensure!(OP, scale.is_finite(), "scale is {scale}, expected a number");
        if let Some(seq_start) = inputs.get(3) {
            seq_start.dtype().ensure(DType::U32, OP, "seq_start")?;
            let found = seq_start.shape();
            ensure!(OP, found == [b, s], "seq_start is {found:?}, expected [{b}, {s}]");
        }
        log_sums(q)?;
        Ok(smallvec![q.clone()])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        vec![log_sums(&outputs[0]).expect("checked with the outputs")]
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        cpu::forward(self, io)
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        gpu::forward(self, io)
    }
}

/// `ln Σ_j exp(scale·q·k_j)` of each row of each key head: in memory `[b, hk, rows]`.
fn log_sums(q: &Spec) -> Result<Spec> {
    Spec::new(OP, &q.shape()[..3], q.dtype().wider())
}
