//! Dropout as a block: a seed of its own, and a mask for each step.

use super::Initializer;
use crate::cpu::threefry::threefry;
use crate::error::Result;
use crate::grad_mode::{self, GradMode};
use crate::ops::dropout::ensure_probability;
use crate::tensor::Tensor;

/// [`Tensor::dropout`] during training; within [`no_grad`](crate::no_grad), which is how a model is
/// evaluated, the input itself. It has no parameters.
///
/// The mask follows from `seed` and the `step` that `forward` is given, not from how often it was
/// called: a run that is resumed, repeated or [recomputed](crate::recompute) has the same masks.
///
/// ```
/// use taipan::nn::{Dropout, Initializer};
/// use taipan::{DType, Device, Tensor, no_grad};
///
/// let dropout = Dropout::new(0.5, &mut Initializer::new(1, DType::F32, &Device::Cpu))?;
/// let x = Tensor::ones(&[64], DType::F32, &Device::Cpu)?;
/// let values = |y: Tensor| y.read_blocking::<f32>();
/// let first = values(dropout.forward(&x, 0)?)?;
/// assert!(first.iter().all(|y| [0.0, 2.0].contains(y)));
/// assert_eq!(values(dropout.forward(&x, 0)?)?, first);
/// assert_ne!(values(dropout.forward(&x, 1)?)?, first);
/// assert_eq!(values(no_grad(|| dropout.forward(&x, 1))?)?, [1.0; 64]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The probability that an element is set to 0.
    pub p: f64,
    /// Of the masks; a new block has one of its own.
    pub seed: u64,
}

crate::module!(Dropout { ; p, seed });

impl Dropout {
    /// Dropout of elements with probability `p`, `0 ≤ p < 1`.
    pub fn new(p: f64, init: &mut Initializer) -> Result<Dropout> {
        ensure_probability(p)?;
        Ok(Dropout { p, seed: init.next_seed() })
    }

    /// `x`, of any shape, to the same. Calls that should not share a mask need steps of their own:
    /// with gradient accumulation, count batches.
    pub fn forward(&self, x: &Tensor, step: u64) -> Result<Tensor> {
        if grad_mode::current() == GradMode::Disabled {
            return Ok(x.clone());
        }
        let words = |x: u64| [x as u32, (x >> 32) as u32];
        let [low, high] = threefry(words(self.seed), words(step));
        x.dropout(self.p, u64::from(high) << 32 | u64::from(low))
    }
}
