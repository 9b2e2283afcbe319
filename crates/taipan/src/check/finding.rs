//! What a check finds: how far results are from the exact ones, and what is wrong.

use super::array::Array;
use super::precision::ulp;
use crate::DType;

/// What [`Reference::examine`](super::Reference::examine) finds on a device, in a type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// The largest errors of the value.
    pub value: Deviation,
    /// The largest errors of the gradients.
    pub gradient: Deviation,
    /// The first thing that is wrong, if anything is.
    pub mismatch: Option<Mismatch>,
}

impl Finding {
    /// The worse errors of both, and what is wrong first.
    pub fn max(self, other: Finding) -> Finding {
        Finding {
            value: self.value.max(other.value),
            gradient: self.gradient.max(other.gradient),
            mismatch: self.mismatch.or(other.mismatch),
        }
    }
}

/// One that could not be examined.
impl From<Mismatch> for Finding {
    fn from(mismatch: Mismatch) -> Finding {
        Finding { mismatch: Some(mismatch), ..Finding::default() }
    }
}

/// How far results are from the exact ones. Errors are relative to the exact element, or to the
/// typical one of its tensor where that is larger and elements are sums: gradients, and values of
/// [`Case::cancelling`](super::Case::cancelling).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    /// The largest error, in units in the last place of the type.
    pub ulp: f64,
    /// The largest relative error.
    pub relative: f64,
}

impl Deviation {
    /// The worse of both. NaN, which is what a missing number is off by, is the worst.
    pub fn max(self, other: Deviation) -> Deviation {
        let worse = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        Deviation {
            ulp: worse(self.ulp, other.ulp),
            relative: worse(self.relative, other.relative),
        }
    }

    /// Take in the errors of an array, of elements that are typically of a size.
    pub(super) fn take(&mut self, got: &Array, want: &Array, size: f64, dtype: DType) {
        for (&got, &want) in got.data.iter().zip(&want.data) {
            if got == want || got.is_nan() && want.is_nan() {
                continue;
            }
            let (off, size) = ((got - want).abs(), want.abs().max(size));
            // A number that is less than normal has few digits.
            let relative = off / size.max(1.0 / f32::MAX as f64);
            *self = self.max(Deviation { ulp: off / ulp(size, dtype), relative });
        }
    }
}

/// What is wrong with an op, as `assert!` would say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// In which way.
    pub kind: Kind,
    /// The case, the device, the type and the element, what was found and what was expected.
    pub message: String,
}

/// In which way an op can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// It returned an error, or a tensor of another shape, type or device.
    Error,
    /// A value is not within its tolerance.
    Value,
    /// A gradient is not within its tolerance.
    Gradient,
    /// Another run gave other bits.
    Bits,
}
