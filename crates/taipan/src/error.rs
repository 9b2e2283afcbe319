//! The one error type.

use crate::DType;

/// `std::result::Result` with taipan's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Every message starts with the operation, then says what was found and what
/// was expected.
///
/// ```
/// use taipan::{Activation, Device, Tensor, linear};
///
/// let x = Tensor::new(&[1f32; 6], &[2, 3], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32; 12], &[3, 4], &Device::Cpu)?;
/// let bias = Tensor::new(&[1f32; 3], &[3], &Device::Cpu)?;
/// let error = linear(&x, &w, Some(&bias), Activation::None).unwrap_err();
/// assert_eq!(error.to_string(), "linear: bias is [3], expected [4]");
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, dimensions or sizes that do not fit.
    #[error("{op}: {why}")]
    Shape {
        /// The operation that refused.
        op: &'static str,
        /// What was found and what was expected.
        why: String,
    },
    /// An element type the operation cannot take, or a mix of them.
    #[error("{op}: {name} is {found}, expected {expected}")]
    DType {
        /// The operation that refused.
        op: &'static str,
        /// Which input.
        name: &'static str,
        /// Its element type.
        found: DType,
        /// What would have been accepted.
        expected: String,
    },
    /// An index, such as a token's id, beyond what it indexes.
    #[error("{op}: {name} {found}{}, expected less than {limit}", place(.at))]
    Index {
        /// The operation that refused.
        op: &'static str,
        /// What the index is.
        name: &'static str,
        /// The index.
        found: u32,
        /// Its place among the others, if it is known: a GPU does not tell.
        at: Option<usize>,
        /// How many there are.
        limit: usize,
    },
    /// A tensor the memory cannot hold.
    #[error("{op}: {bytes} bytes could not be allocated on {device}")]
    Memory {
        /// The operation that asked.
        op: &'static str,
        /// How much it asked for.
        bytes: usize,
        /// Where.
        device: &'static str,
    },
    /// A device that is not there, does not fit, or failed.
    #[error("{op}: {why}")]
    Device {
        /// The operation that refused or failed.
        op: &'static str,
        /// What was found and what was expected.
        why: String,
    },
    /// A gradient that cannot be had.
    #[error("{op}: {why}")]
    Gradient {
        /// The operation that refused.
        op: &'static str,
        /// Why.
        why: String,
    },
}

fn place(at: &Option<usize>) -> String {
    at.map_or(String::new(), |at| format!(" at position {at}"))
}

/// Return [`Error::Shape`] unless the condition holds.
macro_rules! ensure {
    ($op:expr, $condition:expr, $($why:tt)*) => {
        if !$condition {
            return Err($crate::error::Error::Shape { op: $op, why: format!($($why)*) });
        }
    };
}
pub(crate) use ensure;
