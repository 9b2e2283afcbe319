//! Layer norm along the last dimension.

use super::rms_norm::rms_norm;
use crate::error::{Result, ensure};
use crate::tensor::Tensor;

/// `(x − mean)·weight / √(variance + eps) + bias`, mean and variance (without correction) taken along
/// the last dimension.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | `[…, n]` |
/// | `weight` | `[n]` |
/// | `bias` | `[n]`, optional |
/// | result | `[…, n]` |
///
/// All have the same float type; the computation is in f32 for f16 and bf16. It is
/// [`rms_norm`] of `x − mean`, whose mean square is the variance.
///
/// ```
/// use taipan::{DType, Device, Tensor, layer_norm};
///
/// let x = Tensor::new(&[1f32, 3.0, 3.0, 1.0], &[1, 4], &Device::Cpu)?;
/// let weight = Tensor::ones(&[4], DType::F32, &Device::Cpu)?;
/// let y = layer_norm(&x, &weight, None, 0.0)?;
/// assert_eq!(y.read_blocking::<f32>()?, [-1.0, 1.0, 1.0, -1.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    const OP: &str = "layer_norm";
    let dtype = x.dtype();
    dtype.ensure_float(OP, "the input")?;
    let Some(&n) = x.shape().last() else {
        let why = "the input is [], expected […, n]".into();
        return Err(crate::Error::Shape { op: OP, why });
    };
    for (name, tensor) in [("the weight", Some(weight)), ("the bias", bias)] {
        let Some(tensor) = tensor else { continue };
        let shape = tensor.shape();
        ensure!(OP, shape == [n], "{name} is {shape:?}, expected [{n}]");
        tensor.dtype().ensure(dtype, OP, name)?;
    }
    let wide = |x: &Tensor| x.cast(dtype.wider());
    let x = wide(x)?;
    let centred = x.sub(&x.mean_keepdim(&[x.rank() - 1])?)?;
    let y = rms_norm(&centred, &wide(weight)?, eps)?;
    match bias {
        Some(bias) => y.add(&wide(bias)?)?,
        None => y,
    }
    .cast(dtype)
}
