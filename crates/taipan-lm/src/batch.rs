//! What a model is trained on in one step.

/// The target of a position from which nothing is to be predicted.
pub const IGNORE: u32 = u32::MAX;

/// Sequences of tokens, each token with the one to predict from it. All vectors are
/// `[batch_size, block_size]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Sequences.
    pub batch_size: usize,
    /// Tokens per sequence.
    pub block_size: usize,
    /// The tokens.
    pub ids: Vec<u32>,
    /// The token after each of them, or [`IGNORE`].
    pub targets: Vec<u32>,
    /// 1 at the first token of each of the documents that are packed into a sequence, where the
    /// recurrent state is reset; 0 elsewhere.
    pub seq_start: Vec<u32>,
}
