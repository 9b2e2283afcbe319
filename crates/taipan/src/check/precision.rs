//! Tensors of each float type: how their values are rounded, read, and how exact they must be.

use super::array::Array;
use super::block_on;
use crate::dtype::with_dtype;
use crate::{DType, Device, Element, Result, Tensor};

/// The types that carry gradients.
pub const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// How far results may be from the exact ones: see [`tolerance`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tolerance {
    /// Of a value, relative to it.
    pub value: f64,
    /// Of a value that is a sum: added for each of its terms, see
    /// [`Case::cancelling`](super::Case::cancelling).
    pub cancelled: f64,
    /// Of a gradient, relative to it and to the root mean square of its tensor.
    pub grad: f64,
    /// Absolute: half the smallest subnormal number.
    pub tiny: f64,
}

/// The tolerances of a type:
///
/// | type | value | cancelled | grad | tiny |
/// |---|---|---|---|---|
/// | f16 | 1.01·2⁻¹¹ | 2⁻²⁴ | 8·2⁻¹¹ | 2⁻²⁵ |
/// | bf16 | 1.01·2⁻⁸ | 2⁻²⁴ | 8·2⁻⁸ | 2⁻¹³⁴ |
/// | f32 | 16·2⁻²⁴ | 2⁻²⁴ | 128·2⁻²⁴ | 2⁻¹⁵⁰ |
/// | f64 | 16·2⁻⁵³ | 2⁻⁵³ | 64·2⁻⁵³ | 0 |
///
/// A value in f16 or bf16 is rounded once, at the store, after sums in f32. Its gradient may be
/// computed from a rounded result, and is the sum of rounded terms where a tensor was repeated.
/// Panics if the type is not a float.
pub fn tolerance(dtype: DType) -> Tolerance {
    const F16: f64 = 1.0 / (1 << 11) as f64; // unit roundoffs
    const BF16: f64 = 1.0 / (1 << 8) as f64;
    const F32: f64 = 1.0 / (1 << 24) as f64;
    const F64: f64 = 1.0 / (1u64 << 53) as f64;
    let (value, cancelled, grad, tiny) = match dtype {
        DType::F16 => (1.01 * F16, F32, 8.0 * F16, 2f64.powi(-25)),
        DType::BF16 => (1.01 * BF16, F32, 8.0 * BF16, 2f64.powi(-134)),
        DType::F32 => (16.0 * F32, F32, 128.0 * F32, 2f64.powi(-150)),
        DType::F64 => (16.0 * F64, F64, 64.0 * F64, 0.0),
        other => panic!("tolerance: the type is {other}, expected a float"),
    };
    Tolerance { value, cancelled, grad, tiny }
}

/// The digits of the significand of a float, and the exponent of its smallest normal number.
fn digits(dtype: DType) -> (i32, i32) {
    match dtype {
        DType::F16 => (11, -14),
        DType::BF16 => (8, -126),
        DType::F32 => (24, -126),
        _ => (53, -1022),
    }
}

/// The distance between neighbouring numbers of `dtype` around the finite `x`: a unit in the last
/// place.
pub fn ulp(x: f64, dtype: DType) -> f64 {
    let (digits, least) = digits(dtype);
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    // In two steps: the smallest number of f64 is 2⁻¹⁰⁷⁴.
    2f64.powi(exponent.max(least)) * 2f64.powi(1 - digits)
}

/// The number of `dtype` nearest to `x`, ties to even, by arithmetic in f64 alone.
pub fn round(x: f64, dtype: DType) -> f64 {
    // The exponent of the first power of two beyond the largest.
    let beyond = match dtype {
        DType::F16 => 16,
        DType::BF16 | DType::F32 => 128,
        _ => return x,
    };
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let step = ulp(x, dtype);
    let rounded = (x / step).round_ties_even() * step;
    if rounded.abs() >= 2f64.powi(beyond) { f64::INFINITY.copysign(x) } else { rounded }
}

/// The array as a tensor; its values must be numbers of `dtype`, see [`round`]. Panics if the
/// device does not support the type.
pub fn tensor(array: &Array, dtype: DType, device: &Device) -> Tensor {
    write(array, dtype, device).unwrap_or_else(|e| panic!("{e}"))
}

pub(super) fn write(array: &Array, dtype: DType, device: &Device) -> Result<Tensor> {
    with_dtype!(dtype, T: Element => {
        let data: Vec<T> = array.data.iter().map(|&x| T::of_f64(x)).collect();
        Tensor::new(&data, &array.shape, device)
    })
}

/// The tensor's values, exactly, but for large `i64`s. Panics if it cannot be read.
pub fn array(tensor: &Tensor) -> Array {
    block_on(read(tensor)).unwrap_or_else(|e| panic!("{e}"))
}

pub(super) async fn read(tensor: &Tensor) -> Result<Array> {
    let data = with_dtype!(tensor.dtype(), T: Element => {
        tensor.read::<T>().await?.into_iter().map(T::to_f64).collect()
    });
    Ok(Array { shape: tensor.shape().to_vec(), data })
}
