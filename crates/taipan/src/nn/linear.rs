//! Linear layers and embeddings: what owns a stored matrix.

use super::{Init, Initializer, Module, Visitor};
use crate::error::{Result, ensure};
use crate::ops::embedding::embedding;
use crate::ops::linear::{Int8, Weight, linear};
use crate::tensor::{Arena, Tensor};
use crate::{Activation, concat};

const OP: &str = "linear layer";

/// A stored matrix, `[n, k]`: floats, which can be trained, or 8 bits, which cannot.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// Floats: a parameter.
    Float(Tensor),
    /// In 8 bits: no parameter.
    Int8(Int8),
}

impl Matrix {
    /// `[n, k]`.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Matrix::Float(tensor) => tensor.shape().to_vec(),
            Matrix::Int8(int8) => int8.shape().to_vec(),
        }
    }

    /// For [`linear`].
    pub fn weight(&self) -> Weight<'_> {
        match self {
            Matrix::Float(tensor) => Weight::nk(tensor),
            Matrix::Int8(int8) => Weight::int8(int8),
        }
    }

    /// The matrix in 8 bits, if it is one.
    pub fn int8(&self) -> Option<&Int8> {
        match self {
            Matrix::Float(_) => None,
            Matrix::Int8(int8) => Some(int8),
        }
    }

    /// The same matrix in 8 bits, in an arena.
    pub fn quantized(self, arena: &mut Arena) -> Result<Matrix> {
        let int8 = match self {
            Matrix::Float(tensor) => Int8::quantize(&tensor)?,
            Matrix::Int8(int8) => int8,
        };
        Ok(Matrix::Int8(int8.stored_in(arena)?))
    }
}

impl Module for Matrix {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        if let Matrix::Float(tensor) = self {
            tensor.visit(visitor);
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        if let Matrix::Float(tensor) = self {
            tensor.visit_mut(visitor);
        }
    }
}

/// `x·Wᵀ + bias`, with `W` `[n, k]`, a row for each output, as PyTorch stores it: `weight`, `bias`.
///
/// The rows of `W` may be in several [blocks](RowBlock), whose results are used separately: then
/// the parameters are `weight[x]`, `weight[z]`, `bias[x]`, …, and files store them one below the
/// other.
///
/// ```
/// use taipan::nn::{Initializer, Linear};
/// use taipan::{DType, Device, Tensor};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let layer = Linear::new(3, 4, &mut init)?;
/// let y = layer.forward(&Tensor::ones(&[2, 3], DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.shape(), [2, 4]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    blocks: Vec<RowBlock>,
}

/// Some rows of the matrix of a [`Linear`], with their part of the bias.
#[derive(Clone, Debug)]
pub struct RowBlock {
    /// In the names of its parameters, `[x]`; empty if there is but one block.
    pub label: &'static str,
    /// `[n, k]`.
    pub weight: Matrix,
    /// `[n]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// A layer of `inputs` to `outputs` values with a bias, with PyTorch's initial values.
    pub fn new(inputs: usize, outputs: usize, init: &mut Initializer) -> Result<Linear> {
        let weight = init.parameter(&[outputs, inputs], Init::fan_in(inputs))?;
        let bias = init.parameter(&[outputs], Init::fan_in(inputs))?;
        Linear::from_tensors(weight, Some(bias))
    }

    /// A layer without a bias.
    pub fn without_bias(inputs: usize, outputs: usize, init: &mut Initializer) -> Result<Linear> {
        Linear::from_tensors(init.parameter(&[outputs, inputs], Init::fan_in(inputs))?, None)
    }

    /// A layer of these tensors, `[n, k]` and `[n]`.
    pub fn from_tensors(weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        let weight = Matrix::Float(weight);
        Linear::from_blocks(vec![RowBlock { label: "", weight, bias }])
    }

    /// A layer whose rows are in these blocks, from the first to the last; either all have a bias
    /// or none.
    pub fn from_blocks(blocks: Vec<RowBlock>) -> Result<Linear> {
        let first = blocks.first();
        ensure!(OP, first.is_some(), "no blocks of rows, expected one or more");
        let expected = first.and_then(|block| block.weight.shape().get(1).copied());
        let has_bias = first.is_some_and(|block| block.bias.is_some());
        for (i, RowBlock { label, weight, bias }) in blocks.iter().enumerate() {
            let named = blocks.len() == 1 || !label.is_empty();
            let new = named && blocks[..i].iter().all(|other| other.label != *label);
            ensure!(OP, new, "a block of rows is {label:?}, expected a label of its own");
            let shape = weight.shape();
            let fits = shape.len() == 2 && shape.get(1).copied() == expected;
            let k = expected.map_or("k".into(), |k| k.to_string());
            ensure!(OP, fits, "a weight is {shape:?}, expected [n, {k}]");
            ensure!(
                OP,
                bias.is_some() == has_bias,
                "some blocks have a bias, expected all or none"
            );
            if let Some(bias) = bias {
                let found = bias.shape();
                ensure!(OP, found == &shape[..1], "bias is {found:?}, expected {:?}", &shape[..1]);
            }
        }
        Ok(Linear { blocks })
    }

    /// `x`, `[…, m, k]`, to `[…, m, n]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.activated(x, Activation::None)
    }

    /// [`forward`](Linear::forward), and an activation in the same pass.
    pub fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let block =
            |block: &RowBlock| linear(x, block.weight.weight(), block.bias.as_ref(), activation);
        match &self.blocks[..] {
            [one] => block(one),
            several => {
                let results = several.iter().map(block).collect::<Result<Vec<_>>>()?;
                concat(&results.iter().collect::<Vec<_>>(), x.rank().saturating_sub(1))
            }
        }
    }

    /// The result of the block of rows with this index, `[…, m, n]`.
    pub fn forward_block(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        let count = self.blocks.len();
        ensure!(OP, index < count, "block {index} of rows, expected less than {count}");
        let RowBlock { weight, bias, .. } = &self.blocks[index];
        linear(x, weight.weight(), bias.as_ref(), Activation::None)
    }

    /// The product of the first block alone, for a caller who adds the bias elsewhere.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, self.weight(), None, Activation::None)
    }

    /// Its blocks of rows: one, unless it was made of several.
    pub fn blocks(&self) -> &[RowBlock] {
        &self.blocks
    }

    /// The weight of the first block, for ops that take one.
    pub fn weight(&self) -> Weight<'_> {
        self.blocks[0].weight.weight()
    }

    /// The bias of the first block.
    pub fn bias(&self) -> Option<&Tensor> {
        self.blocks[0].bias.as_ref()
    }

    /// The same layer with its matrix in 8 bits, in an arena: it cannot be trained.
    pub fn quantized(self, arena: &mut Arena) -> Result<Linear> {
        let quantized =
            |block: RowBlock| Ok(RowBlock { weight: block.weight.quantized(arena)?, ..block });
        Ok(Linear { blocks: self.blocks.into_iter().map(quantized).collect::<Result<_>>()? })
    }
}

/// The name of a parameter of a block.
fn block_name(name: &str, label: &str) -> String {
    if label.is_empty() { name.into() } else { format!("{name}[{label}]") }
}

impl Module for Linear {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        for RowBlock { label, weight, .. } in &self.blocks {
            visitor.field(&block_name("weight", label), weight);
        }
        for RowBlock { label, bias, .. } in &self.blocks {
            visitor.field(&block_name("bias", label), bias);
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        let mut biases = Vec::with_capacity(self.blocks.len());
        for RowBlock { label, weight, bias } in &mut self.blocks {
            visitor.field(&block_name("weight", label), weight);
            biases.push((label, bias));
        }
        for (label, bias) in biases {
            visitor.field(&block_name("bias", label), bias);
        }
    }
}

/// A table of vectors, `[v, d]`, of which ids choose rows: `weight`.
///
/// ```
/// use taipan::nn::{Embedding, Initializer};
/// use taipan::{DType, Device, Tensor};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let table = Embedding::new(10, 4, &mut init)?;
/// let ids = Tensor::new(&[3u32, 1, 4], &[1, 3], &Device::Cpu)?;
/// assert_eq!(table.forward(&ids)?.shape(), [1, 3, 4]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[v, d]`.
    pub weight: Matrix,
}

crate::module!(Embedding { weight });

impl Embedding {
    /// `rows` vectors of `size` values, with PyTorch's initial values: normal, of deviation 1.
    pub fn new(rows: usize, size: usize, init: &mut Initializer) -> Result<Embedding> {
        Ok(Embedding { weight: Matrix::Float(init.parameter(&[rows, size], Init::Normal(1.0))?) })
    }

    /// `ids`, of type u32 and any shape, to `[…, d]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        match &self.weight {
            Matrix::Float(table) => embedding(table, ids),
            Matrix::Int8(int8) => int8.rows(ids),
        }
    }
}
