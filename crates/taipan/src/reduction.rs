//! The description of a reduction, the same on every device.

/// How elements are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fold {
    Sum,
    Mean,
    Max,
    Min,
}

/// `[outer, len, inner]` to `[outer, inner]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reduction {
    pub(crate) fold: Fold,
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

impl Reduction {
    /// The sum of rows: `[len, inner]` to `[inner]`.
    pub(crate) fn sum_of_rows(len: usize, inner: usize) -> Reduction {
        Reduction { fold: Fold::Sum, outer: 1, len, inner }
    }
}
