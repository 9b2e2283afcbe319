//! What a model learns from in one step.

/// The target of a position from which nothing is to be predicted.
pub const IGNORE: u32 = u32::MAX;

/// Rows of tokens, each with the token to predict from it. All vectors are `[rows, len]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// How many rows.
    pub rows: usize,
    /// Tokens of a row.
    pub len: usize,
    /// The tokens.
    pub ids: Vec<u32>,
    /// What follows each of them, or [`IGNORE`].
    pub targets: Vec<u32>,
    /// 1 where a document begins, with nothing remembered of the one before; 0 elsewhere.
    pub starts: Vec<u32>,
}
