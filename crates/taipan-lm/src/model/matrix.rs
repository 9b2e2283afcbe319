//! A weight matrix of a model: trained, or in 8 bits.

use taipan::{Arena, Int8, Tensor, Weight, embedding};

use super::parameter::Parameter;
use crate::error::Result;

/// `[n, k]`: of a projection, or the table of tokens.
#[derive(Clone, Debug)]
pub(super) enum Matrix {
    Float(Parameter),
    Int8(Int8),
}

impl From<Parameter> for Matrix {
    fn from(parameter: Parameter) -> Matrix {
        Matrix::Float(parameter)
    }
}

impl Matrix {
    /// For `linear`.
    pub(super) fn weight(&self) -> Weight<'_> {
        match self {
            Matrix::Float(parameter) => Weight::nk(parameter),
            Matrix::Int8(int8) => Weight::int8(int8),
        }
    }

    /// The rows with these indices.
    pub(super) fn rows(&self, ids: &Tensor) -> taipan::Result<Tensor> {
        match self {
            Matrix::Float(parameter) => embedding(parameter, ids),
            Matrix::Int8(int8) => int8.rows(ids),
        }
    }

    /// The matrix in 8 bits, if it is one.
    pub(super) fn int8(&self) -> Option<&Int8> {
        match self {
            Matrix::Float(_) => None,
            Matrix::Int8(int8) => Some(int8),
        }
    }

    /// What is trained: a matrix in 8 bits is not.
    pub(super) fn parameters(&self) -> Option<&Parameter> {
        match self {
            Matrix::Float(parameter) => Some(parameter),
            Matrix::Int8(_) => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn parameters_mut(&mut self) -> Option<&mut Parameter> {
        match self {
            Matrix::Float(parameter) => Some(parameter),
            Matrix::Int8(_) => None,
        }
    }

    /// The same matrix in 8 bits, in an arena.
    pub(super) fn quantized(self, arena: &mut Arena) -> Result<Matrix> {
        let int8 = match self {
            Matrix::Float(parameter) => Int8::quantize(&parameter)?,
            Matrix::Int8(int8) => int8,
        };
        Ok(Matrix::Int8(int8.stored_in(arena)?))
    }
}
