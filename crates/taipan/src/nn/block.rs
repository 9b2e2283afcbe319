//! What the blocks of models have in common: the parameters that they ask for.

use std::ops::Range;

use super::{Init, Initializer};
use crate::error::Result;
use crate::tensor::Tensor;

/// A parameter that a block asks for when it is built.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockParameter {
    /// Its name in files: `in_proj.weight`.
    pub stored: &'static str,
    /// The rows of the stored tensor that it is, if not all.
    pub rows: Option<Range<usize>>,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its initialisation in a new block.
    pub init: Init,
    /// `A_log`, `D` and the bias of Δ need more than half precision.
    pub precision: Precision,
}

/// Whether half precision is enough for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Of the model's type.
    Model,
    /// At least f32.
    Wide,
}

impl Initializer {
    /// A parameter of a new block.
    pub(super) fn block_parameter(&mut self, parameter: &BlockParameter) -> Result<Tensor> {
        match parameter.precision {
            Precision::Model => self.parameter(&parameter.shape, parameter.init),
            Precision::Wide => self.wide_parameter(&parameter.shape, parameter.init),
        }
    }
}
