//! Losses that are made of other ops, computed in the wide type. For classes, see
//! [`cross_entropy`](crate::cross_entropy).

use crate::error::{Result, ensure};
use crate::tensor::Tensor;

/// The mean of `(x − target)²` over all elements. Both have one shape and float type; the result is
/// `[]`, in f32, or f64 for f64.
///
/// ```
/// use taipan::{Device, Tensor, mse_loss};
///
/// let x = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?;
/// let target = Tensor::new(&[1f32, 5.0], &[2], &Device::Cpu)?;
/// assert_eq!(mse_loss(&x, &target)?.item()?, 4.5);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn mse_loss(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    let [x, target] = wide("mse_loss", x, target)?;
    let error = x.sub(&target)?;
    error.mul(&error)?.mean()
}

/// The mean of `−t·ln s(x) − (1 − t)·ln(1 − s(x))` over all elements, with `s` the sigmoid and `t` the
/// targets, between 0 and 1. Computed as `t·softplus(−x) + (1 − t)·softplus(x)`, whose terms do not
/// cancel. Both have one shape and float type; the result is `[]`, in f32, or f64 for f64.
///
/// ```
/// use taipan::{Device, Tensor, binary_cross_entropy_with_logits};
///
/// let logits = Tensor::new(&[0f32, 100.0], &[2], &Device::Cpu)?;
/// let targets = Tensor::new(&[1f32, 1.0], &[2], &Device::Cpu)?;
/// let loss = binary_cross_entropy_with_logits(&logits, &targets)?.item()?;
/// assert!((loss - 2f64.ln() / 2.0).abs() < 1e-6);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn binary_cross_entropy_with_logits(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let [x, t] = wide("binary_cross_entropy_with_logits", logits, targets)?;
    let of_ones = t.mul(&x.neg()?.softplus()?)?;
    let of_zeros = t.affine(-1.0, 1.0)?.mul(&x.softplus()?)?;
    of_ones.add(&of_zeros)?.mean()
}

/// Both in the wide type.
fn wide(op: &'static str, x: &Tensor, target: &Tensor) -> Result<[Tensor; 2]> {
    x.dtype().ensure_float(op, "the input")?;
    target.dtype().ensure(x.dtype(), op, "the target")?;
    let (found, expected) = (target.shape(), x.shape());
    ensure!(op, found == expected, "the target is {found:?}, expected {expected:?}");
    Ok([x.cast(x.dtype().wider())?, target.cast(x.dtype().wider())?])
}
