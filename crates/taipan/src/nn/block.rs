//! What the blocks of models have in common: the parameters that they ask for, and how one looks
//! into them.

use std::ops::Range;

use super::{Init, Initializer, Linear, Matrix, RmsNorm, RowBlock};
use crate::error::{Error, Result};
use crate::ops::attention::Attention;
use crate::ops::scan::Scan;
use crate::ops::ssd::Ssd;
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

/// Asks for the parameters of a block, one after the other. The weights of every seed follow from
/// their order.
pub(super) struct Parameters<'a, E>(
    pub(super) &'a mut dyn FnMut(BlockParameter) -> Result<Tensor, E>,
);

/// A linear layer that a block asks for: `[n, k]` in blocks of rows.
pub(super) struct LinearSpec<'a> {
    /// What files call weight and bias.
    pub(super) names: [&'static str; 2],
    /// The blocks of rows: a label and a number each.
    pub(super) blocks: &'a [(&'static str, usize)],
    pub(super) inputs: usize,
    pub(super) use_bias: bool,
    pub(super) init: Init,
}

impl<'a> LinearSpec<'a> {
    /// One initialised by the number of its inputs, without a bias.
    pub(super) fn new(
        names: [&'static str; 2],
        blocks: &'a [(&'static str, usize)],
        inputs: usize,
    ) -> LinearSpec<'a> {
        LinearSpec { names, blocks, inputs, use_bias: false, init: Init::fan_in(inputs) }
    }
}

impl<E: From<Error>> Parameters<'_, E> {
    /// A whole tensor, of the model's type.
    pub(super) fn tensor(
        &mut self,
        stored: &'static str,
        shape: &[usize],
        init: Init,
    ) -> Result<Tensor, E> {
        self.rows(stored, None, shape, init)
    }

    /// A whole tensor, at least f32.
    pub(super) fn wide(
        &mut self,
        stored: &'static str,
        shape: &[usize],
        init: Init,
    ) -> Result<Tensor, E> {
        let (shape, precision) = (shape.to_vec(), Precision::Wide);
        (self.0)(BlockParameter { stored, rows: None, shape, init, precision })
    }

    /// A vector, if the block has it.
    pub(super) fn vector(
        &mut self,
        stored: &'static str,
        len: Option<usize>,
        init: Init,
    ) -> Result<Option<Tensor>, E> {
        len.map(|len| self.tensor(stored, &[len], init)).transpose()
    }

    /// A norm.
    pub(super) fn norm(
        &mut self,
        stored: &'static str,
        len: usize,
        eps: f64,
    ) -> Result<RmsNorm, E> {
        Ok(RmsNorm { weight: self.tensor(stored, &[len], Init::Ones)?, eps })
    }

    /// These rows of a tensor, or all, of the model's type.
    pub(super) fn rows(
        &mut self,
        stored: &'static str,
        rows: Option<Range<usize>>,
        shape: &[usize],
        init: Init,
    ) -> Result<Tensor, E> {
        let (shape, precision) = (shape.to_vec(), Precision::Model);
        (self.0)(BlockParameter { stored, rows, shape, init, precision })
    }

    /// A linear layer: of each block of rows the weight, then the bias.
    pub(super) fn linear(&mut self, spec: LinearSpec) -> Result<Linear, E> {
        let LinearSpec { names: [weight, bias], blocks, inputs, use_bias, init } = spec;
        let (mut made, mut first) = (Vec::with_capacity(blocks.len()), 0);
        for &(label, n) in blocks {
            let rows = (blocks.len() > 1).then_some(first..first + n);
            let weight = self.rows(weight, rows.clone(), &[n, inputs], init)?;
            let bias = use_bias.then(|| self.rows(bias, rows, &[n], Init::Zeros)).transpose()?;
            made.push(RowBlock { label, weight: Matrix::Float(weight), bias });
            first += n;
        }
        Ok(Linear::from_blocks(made)?)
    }
}

/// What a block computes between its projections: the arguments of its op.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Mixing<'a> {
    /// The scan of Mamba.
    Scan(&'a Scan<'a>),
    /// That of Mamba-2 and Mamba-3, and the step sizes Δ, `[b, l, h]`.
    Ssd(&'a Ssd<'a>, &'a Tensor),
    /// Attention.
    Attention(&'a Attention<'a>),
}

/// Is called with the arguments of a block's op and the op's output, and returns the output with
/// which the block continues.
pub type Observer<'a> = &'a mut dyn FnMut(Mixing, Tensor) -> Result<Tensor>;

/// For a block that nobody looks into.
pub(super) fn unobserved(_: Mixing, output: Tensor) -> Result<Tensor> {
    Ok(output)
}
