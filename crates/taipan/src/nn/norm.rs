//! Norms.

use super::{Init, Initializer};
use crate::error::Result;
use crate::ops::layer_norm::layer_norm;
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

/// `(x − mean)·weight/√(variance + eps) + bias` over the last dimension: `weight`, `bias`. See
/// [`layer_norm`].
///
/// ```
/// use taipan::nn::{Initializer, LayerNorm};
/// use taipan::{DType, Device, Tensor};
///
/// let norm = LayerNorm::new(2, &mut Initializer::new(1, DType::F64, &Device::Cpu))?;
/// let y = norm.forward(&Tensor::new(&[5f64, -1.0], &[1, 2], &Device::Cpu)?)?;
/// assert!((y.read_blocking::<f64>()?[0] - 1.0).abs() < 1e-5);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[d]`.
    pub weight: Tensor,
    /// `[d]`.
    pub bias: Option<Tensor>,
    /// Added to the variance; 1e-5 in a new norm.
    pub eps: f64,
}

crate::module!(LayerNorm { weight, bias; eps });

impl LayerNorm {
    /// A norm of vectors of this size, whose weight is 1 and whose bias is 0.
    pub fn new(size: usize, init: &mut Initializer) -> Result<LayerNorm> {
        let norm = LayerNorm::without_bias(size, init)?;
        Ok(LayerNorm { bias: Some(init.parameter(&[size], Init::Zeros)?), ..norm })
    }

    /// The same without a bias.
    pub fn without_bias(size: usize, init: &mut Initializer) -> Result<LayerNorm> {
        Ok(LayerNorm { weight: init.parameter(&[size], Init::Ones)?, bias: None, eps: 1e-5 })
    }

    /// `x`, `[…, d]`, to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.weight, self.bias.as_ref(), self.eps)
    }
}
