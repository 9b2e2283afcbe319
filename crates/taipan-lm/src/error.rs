//! The one error type.

use std::path::{Path, PathBuf};

use crate::ConfigError;

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, with the file or the setting it went wrong with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors failed.
    #[error(transparent)]
    Tensor(#[from] taipan::Error),
    /// A `config.json` that describes no model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file or a setting that makes no sense.
    #[error("{place}: {why}")]
    Invalid {
        /// The file or the setting.
        place: String,
        /// What was found and what was expected.
        why: String,
    },
}

impl Error {
    /// [`Error::Invalid`] of a setting or a file.
    pub fn invalid(place: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Invalid { place: place.into(), why: why.into() }
    }

    /// The same, with what to do about it.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn with_advice(self, advice: &str) -> Error {
        match self {
            Error::Invalid { place, why } => {
                Error::Invalid { place, why: format!("{why}; {advice}") }
            }
            Error::Io { path, source } => {
                Error::invalid(path.display().to_string(), format!("{source}; {advice}"))
            }
            other => other,
        }
    }

    /// To put the path to what the system says: `.map_err(Error::io(path))`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}
