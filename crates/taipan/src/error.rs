//! The one error type.

use std::fmt;

use crate::DType;

/// `std::result::Result` with taipan's [`Error`].
///
/// A program may return it from `main`: what is printed is the message.
///
/// ```no_run
/// fn main() -> taipan::Result {
///     println!("{}", taipan::Device::best()?.describe());
///     Ok(())
/// }
/// ```
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// An error. Every message starts with the operation, then says what was found and what was
/// expected.
///
/// ```
/// use taipan::{Activation, Device, Tensor, linear};
///
/// let x = Tensor::new(&[1f32; 6], &[2, 3], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32; 12], &[3, 4], &Device::Cpu)?;
/// let bias = Tensor::new(&[1f32; 3], &[3], &Device::Cpu)?;
/// let error = linear(&x, &w, Some(&bias), Activation::None).unwrap_err();
/// assert_eq!(error.to_string(), "linear: bias is [3], expected [4]");
/// assert_eq!(format!("{error:?}"), error.to_string(), "what `main` and `unwrap` print");
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, dimensions or sizes that do not match.
    #[error("{op}: {why}")]
    Shape {
        /// The operation that refused.
        op: &'static str,
        /// What was found and what was expected.
        why: String,
    },
    /// An element type that the operation does not support, or a mix of them.
    #[error("{op}: {name} is {found}, expected {expected}")]
    DType {
        /// The operation that refused.
        op: &'static str,
        /// Which input.
        name: &'static str,
        /// Its element type.
        found: DType,
        /// The types that are accepted.
        expected: String,
    },
    /// An index out of range, such as the id of a token.
    #[error("{op}: {name} {found}{}, expected less than {limit}", place(.at))]
    Index {
        /// The operation that refused.
        op: &'static str,
        /// The name of the index.
        name: &'static str,
        /// The index.
        found: u32,
        /// Its position, if known: a device-side error of a GPU does not have it.
        at: Option<usize>,
        /// The end of the range.
        limit: usize,
    },
    /// Memory that could not be allocated.
    #[error("{op}: {bytes} bytes could not be allocated on {device}")]
    Memory {
        /// The operation that needed it.
        op: &'static str,
        /// The size of the allocation.
        bytes: usize,
        /// `cpu` or `gpu`.
        device: &'static str,
    },
    /// A device that is missing, differs from others, or failed.
    #[error("{op}: {why}")]
    Device {
        /// The operation that refused or failed.
        op: &'static str,
        /// What was found and what was expected.
        why: String,
    },
    /// A file that cannot be read or written, or is not valid.
    #[error("{file}: {why}")]
    File {
        /// The file, or the tensor in it.
        file: String,
        /// What was found and what was expected.
        why: String,
    },
    /// A gradient that does not exist.
    #[error("{op}: {why}")]
    Gradient {
        /// The operation that refused.
        op: &'static str,
        /// Why.
        why: String,
    },
}

impl Error {
    /// [`Error::File`].
    pub(crate) fn file(file: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::File { file: file.to_string(), why: why.to_string() }
    }
}

/// The message: what Rust prints if `main` returns an error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
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
