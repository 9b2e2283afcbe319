//! Element-wise functions.

use super::isa::vectorized;
use super::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, widened};
use crate::function::SiluParts;

/// Elements that are processed at a time: their widened copies stay in the first-level cache.
pub(crate) const BLOCK: usize = 1024;

/// `f(x, other, out)` in the wider type, block by block unless elements are stored in it; `other`
/// may be empty.
pub(crate) fn map<T: Float>(
    x: &[T],
    other: &[T],
    out: &mut [T],
    f: impl Fn(&[T::Acc], &[T::Acc], &mut [T::Acc]) + Sync,
) {
    for_chunks(out, GRAIN, |start, out| {
        let at = start..start + out.len();
        let other_at = other.get(at.clone()).unwrap_or_default();
        let wide = (T::as_acc(&x[at]), T::as_acc(other_at), T::as_acc_mut(out));
        if let (Some(x), Some(other), Some(out)) = wide {
            return f(x, other, out);
        }
        let [mut wide_x, mut wide_other, mut wide_out] = [[T::Acc::ZERO; BLOCK]; 3];
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let at = start + i * BLOCK..start + i * BLOCK + out.len();
            let x = widened(&x[at.clone()], &mut wide_x[..out.len()]);
            let other = other.get(at).unwrap_or_default();
            let other = widened(other, &mut wide_other[..other.len()]);
            let wide_out = &mut wide_out[..out.len()];
            f(x, other, wide_out);
            T::narrow(wide_out, out);
        }
    });
}

vectorized! {
    /// `to += factor·x`
    pub(crate) fn add_scaled<I: Isa, A: Real>(to: &mut [A], factor: A, x: &[A]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to = factor.fma::<I>(*x, *to);
        }
    }

    /// `to += x`
    pub(crate) fn add<I: Isa, A: Real>(to: &mut [A], x: &[A]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to += *x;
        }
    }

    /// `to = to·x`
    pub(crate) fn multiply<I: Isa, A: Real>(to: &mut [A], x: &[A]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to *= *x;
        }
    }

    /// `to = to·silu(gate)`
    pub(crate) fn multiply_silu<I: Isa, A: Real>(to: &mut [A], gate: &[A]) {
        for (to, gate) in to.iter_mut().zip(gate) {
            *to *= SiluParts::new::<I>(*gate).value;
        }
    }
}
