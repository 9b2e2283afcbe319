//! Norms.

use super::{Init, Initializer};
use crate::error::Result;
use crate::ops::rms_norm::{add_rms_norm, rms_norm};
use crate::tensor::Tensor;

/// `x·weight/√(mean(x²) + eps)` over the last dimension: `weight`.
///
/// ```
/// use taipan::nn::{Initializer, RmsNorm};
/// use taipan::{DType, Device, Tensor};
///
/// let norm = RmsNorm::new(2, &mut Initializer::new(1, DType::F64, &Device::Cpu))?;
/// let y = norm.forward(&Tensor::new(&[3f64, -3.0], &[1, 2], &Device::Cpu)?)?;
/// assert!((y.read_blocking::<f64>()?[0] - 1.0).abs() < 1e-5);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[d]`.
    pub weight: Tensor,
    /// Added to the mean of squares; 1e-5 in a new norm.
    pub eps: f64,
}

crate::module!(RmsNorm { weight; eps });

impl RmsNorm {
    /// A norm of vectors of this size, whose weight is 1.
    pub fn new(size: usize, init: &mut Initializer) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: init.parameter(&[size], Init::Ones)?, eps: 1e-5 })
    }

    /// `x`, `[…, d]`, to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }

    /// The norm of `x + residual`, and that sum, in one pass: see [`add_rms_norm`].
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        add_rms_norm(x, residual, &self.weight, self.eps)
    }
}
