//! The one error type.

use std::fmt::{Debug, Display};
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, with the file or the setting it went wrong with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors failed.
    #[error(transparent)]
    Tensor(taipan::Error),
    /// A hyper-parameter with a value that it cannot have.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// The system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// An invalid file, setting or argument.
    #[error("{subject}: {why}")]
    Invalid {
        /// The file, the setting or the function.
        subject: String,
        /// What was found and what was expected.
        why: String,
    },
}

impl From<taipan::Error> for Error {
    fn from(error: taipan::Error) -> Error {
        match error {
            taipan::Error::File { file, why } => Error::Invalid { subject: file, why },
            other => Error::Tensor(other),
        }
    }
}

impl Error {
    /// [`Error::Invalid`] of a file, a setting or a function.
    pub fn invalid(subject: impl Display, why: impl Display) -> Error {
        Error::Invalid { subject: subject.to_string(), why: why.to_string() }
    }

    /// The same, with what to do about it.
    pub(crate) fn with_advice(self, advice: &str) -> Error {
        match self {
            Error::Invalid { subject, why } => Error::invalid(subject, format!("{why}; {advice}")),
            Error::Io { path, source } => {
                Error::invalid(path.display(), format!("{source}; {advice}"))
            }
            other => other,
        }
    }

    /// Adds the path to an error of the system: `.map_err(Error::io(path))`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

/// Return [`Error::invalid`] of a subject and a formatted reason unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $subject:expr, $($why:tt)+) => {
        if !$holds {
            return Err(crate::Error::invalid(&$subject, format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

/// A field of a [`Config`](crate::Config) or a `Recipe` with a value that it cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{owner}: {name} is {found}, expected {expected}")]
pub struct InvalidValue {
    /// What the field belongs to: `config` or `recipe`.
    pub owner: &'static str,
    /// The field, as `schedule.peak`.
    pub name: &'static str,
    /// Its value.
    pub found: String,
    /// The values it can have.
    pub expected: String,
}

impl InvalidValue {
    /// An error unless `value` lies in `range`.
    ///
    /// ```
    /// use taipan_lm::InvalidValue;
    ///
    /// InvalidValue::check("recipe", "beta1", 0.9, 0.0..1.0)?;
    /// let error = InvalidValue::check("recipe", "beta1", 1.0, 0.0..1.0).unwrap_err();
    /// assert_eq!(error.to_string(), "recipe: beta1 is 1, expected at least 0 and below 1");
    /// # Ok::<(), InvalidValue>(())
    /// ```
    pub fn check<T: PartialOrd + Debug + Display>(
        owner: &'static str,
        name: &'static str,
        value: T,
        range: impl RangeBounds<T>,
    ) -> std::result::Result<(), InvalidValue> {
        if range.contains(&value) {
            return Ok(());
        }
        let expected = match (range.start_bound(), range.end_bound()) {
            (Bound::Included(min), Bound::Included(max)) => format!("{min} to {max}"),
            (Bound::Included(min), Bound::Excluded(max)) => match max.to_string().as_str() {
                "inf" => format!("a finite number of {min} or more"),
                max => format!("at least {min} and below {max}"),
            },
            (Bound::Excluded(min), Bound::Excluded(max)) => {
                match (min.to_string().as_str(), max.to_string().as_str()) {
                    ("0", "inf") => "a positive number".into(),
                    (min, max) => format!("above {min} and below {max}"),
                }
            }
            (Bound::Included(min), Bound::Unbounded) => format!("{min} or more"),
            (min, max) => format!("{min:?} to {max:?}"),
        };
        Err(InvalidValue { owner, name, found: value.to_string(), expected })
    }
}
