//! Random tensors: a counter-based generator, so that element `i` depends on the seed and on `i`
//! alone, and arithmetic that is the same on every platform.

use super::{Constant, Tensor};
use crate::error::Result;
use crate::{DType, Device};

impl Tensor {
    /// Uniform numbers in `[0, 1)`. The same seed gives the same tensor on every platform.
    pub fn rand(shape: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
        dtype.ensure_float("rand", "the type asked for")?;
        // As many random bits as the type has digits: all values are multiples of 2^-digits, and
        // none rounds up to 1.
        let digits = match dtype {
            DType::F16 => 11,
            DType::BF16 => 8,
            DType::F32 => 24,
            _ => 53,
        };
        let scale = 1.0 / (1u64 << digits) as f64;
        Tensor::from_fn("rand", shape, dtype, device, |i| {
            Constant::Float((bits(seed, i as u64) >> (64 - digits)) as f64 * scale)
        })
    }

    /// Normal numbers with mean 0 and variance 1. The same seed gives the same tensor on every
    /// platform.
    pub fn randn(shape: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
        dtype.ensure_float("randn", "the type asked for")?;
        // The Box-Muller transform of two uniform numbers from the element's own counter, with
        // another seed than `rand`. `libm` is software: the platform's logarithm may differ in the
        // last digit.
        Tensor::from_fn("randn", shape, dtype, device, |i| {
            let unit = |j: u64| (bits(!seed, 2 * i as u64 + j) >> 11) as f64 / (1u64 << 53) as f64;
            let radius = (-2.0 * libm::log(1.0 - unit(0))).sqrt();
            Constant::Float(radius * libm::cos(std::f64::consts::TAU * unit(1)))
        })
    }
}

/// 64 random bits for a seed and a counter: two rounds of multiply and xor-shift over each, in
/// the manner of SplitMix64.
fn bits(seed: u64, counter: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN)))
}
