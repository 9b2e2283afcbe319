//! Linear layers and embeddings: what owns a stored matrix.

use super::{Adapter, Init, Initializer, Module, Visitor};
use crate::autograd::apply_one;
use crate::error::{Error, Result, ensure};
use crate::kernel::Results;
use crate::ops::embedding::embedding;
use crate::ops::linear::{Int8, Weight, linear};
use crate::ops::unary::Unary;
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

    /// Store it in 8 bits, in an arena.
    pub fn quantize(&mut self, arena: &mut Arena) -> Result<()> {
        let int8 = match self {
            Matrix::Float(tensor) => &Int8::quantize(tensor)?,
            Matrix::Int8(int8) => int8,
        };
        *self = Matrix::Int8(int8.stored_in(arena)?);
        Ok(())
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
/// other. An [`Adapter`] has the parameters `lora_A.weight` and `lora_B.weight`; those who call
/// [`forward`](Linear::forward) need not know of it.
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
    adapter: Option<Adapter>,
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
        Ok(Linear { blocks, adapter: None })
    }

    /// `x`, `[…, m, k]`, to `[…, m, n]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.activated(x, Activation::None)
    }

    /// [`forward`](Linear::forward), and an activation in the same pass.
    pub fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match &self.blocks[..] {
            [RowBlock { weight, bias, .. }] if self.adapter.is_none() => {
                linear(x, weight.weight(), bias.as_ref(), activation)
            }
            _ => {
                let results = self.forward_blocks(x)?;
                let y = match &results[..] {
                    [y] => y.clone(),
                    _ => concat(&results.iter().collect::<Vec<_>>(), x.rank().saturating_sub(1))?,
                };
                match activation {
                    Activation::None => Ok(y),
                    _ => apply_one(Unary(activation.into()), &[&y]),
                }
            }
        }
    }

    /// The results of the blocks of rows, `[…, m, n]` each.
    pub fn forward_blocks(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        Ok(self.block_results(x)?.into_vec())
    }

    /// [`forward_blocks`](Linear::forward_blocks) without a list from the allocator, if there are
    /// few.
    pub(super) fn block_results(&self, x: &Tensor) -> Result<Results<Tensor>> {
        let adapter = self.adapter.as_ref();
        let hidden = adapter.map(|adapter| adapter.hidden(x)).transpose()?;
        let block = |(i, RowBlock { weight, bias, .. }): (usize, &RowBlock)| {
            let y = linear(x, weight.weight(), bias.as_ref(), Activation::None)?;
            match adapter.zip(hidden.as_ref()) {
                Some((adapter, hidden)) => adapter.add(i, &y, hidden),
                None => Ok(y),
            }
        };
        self.blocks.iter().enumerate().map(block).collect()
    }

    /// The product of the first block alone, for a caller who adds the bias elsewhere.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        ensure!(OP, self.adapter.is_none(), "an adapter, expected none: it would have no effect");
        linear(x, self.weight(), None, Activation::None)
    }

    /// What changes it, if there is such a thing.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// What changes it, to be changed.
    pub fn adapter_mut(&mut self) -> Option<&mut Adapter> {
        self.adapter.as_mut()
    }

    /// Change it by an adapter, or by none.
    pub fn set_adapter(&mut self, adapter: Option<Adapter>) -> Result<()> {
        if let Some(adapter) = &adapter {
            let shapes = self.blocks.iter().map(|block| block.weight.shape());
            let rows: Vec<usize> = shapes.map(|shape| shape[0]).collect();
            adapter.check(self.blocks[0].weight.shape()[1], &rows)?;
        }
        self.adapter = adapter;
        Ok(())
    }

    /// What [`forward`](Linear::forward) multiplies, for ops that take a weight: `x`, and the matrix
    /// of the first block. The parts of an adapter are further columns of both.
    pub fn operands(&self, x: &Tensor) -> Result<(Tensor, Matrix)> {
        let weight = &self.blocks[0].weight;
        match (&self.adapter, weight) {
            (None, _) => Ok((x.clone(), weight.clone())),
            (Some(adapter), Matrix::Float(matrix)) => {
                let hidden = adapter.hidden(x)?.cast(x.dtype())?;
                let b = adapter.b[0].cast(matrix.dtype())?;
                let x = concat(&[x, &hidden], x.rank().saturating_sub(1))?;
                Ok((x, Matrix::Float(concat(&[matrix, &b], 1)?)))
            }
            (Some(_), Matrix::Int8(_)) => {
                let why = "an adapter of a matrix in 8 bits, expected floats".into();
                Err(Error::Shape { op: OP, why })
            }
        }
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

    /// Store its matrix in 8 bits, in an arena: then it cannot be trained.
    pub fn quantize(&mut self, arena: &mut Arena) -> Result<()> {
        self.blocks.iter_mut().try_for_each(|block| block.weight.quantize(arena))
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
        if let Some(adapter) = &self.adapter {
            visitor.field("lora_A.weight", &adapter.a);
            for (RowBlock { label, .. }, b) in self.blocks.iter().zip(&adapter.b) {
                visitor.field(&block_name("lora_B.weight", label), b);
            }
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        let labels: Vec<&str> = self.blocks.iter().map(|block| block.label).collect();
        let mut biases = Vec::with_capacity(labels.len());
        for RowBlock { label, weight, bias } in &mut self.blocks {
            visitor.field(&block_name("weight", label), weight);
            biases.push((label, bias));
        }
        for (label, bias) in biases {
            visitor.field(&block_name("bias", label), bias);
        }
        if let Some(adapter) = &mut self.adapter {
            visitor.field("lora_A.weight", &mut adapter.a);
            for (label, b) in labels.into_iter().zip(&mut adapter.b) {
                visitor.field(&block_name("lora_B.weight", label), b);
            }
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
    weight: Matrix, // [v, d]
    adapter: Option<Adapter>,
}

impl Embedding {
    /// `rows` vectors of `size` values, with PyTorch's initial values: normal, of deviation 1.
    pub fn new(rows: usize, size: usize, init: &mut Initializer) -> Result<Embedding> {
        Ok(Embedding::from_tensor(init.parameter(&[rows, size], Init::Normal(1.0))?))
    }

    /// The vectors of a table, `[v, d]`.
    pub fn from_tensor(table: Tensor) -> Embedding {
        Embedding { weight: Matrix::Float(table), adapter: None }
    }

    /// `ids`, of type u32 and any shape, to `[…, d]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let rows = match &self.weight {
            Matrix::Float(table) => embedding(table, ids)?,
            Matrix::Int8(int8) => int8.rows(ids)?,
        };
        match &self.adapter {
            Some(adapter) => {
                let hidden = embedding(&adapter.a, ids)?.scale(adapter.scale)?;
                adapter.add(0, &rows, &hidden)
            }
            None => Ok(rows),
        }
    }

    /// The table, `[v, d]`.
    pub fn weight(&self) -> &Matrix {
        &self.weight
    }

    /// What changes it, if there is such a thing.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// Change it by an adapter, or by none: row `i` is `E[i] + s·B·A[:, i]`, without dropout.
    pub fn set_adapter(&mut self, adapter: Option<Adapter>) -> Result<()> {
        if let Some(adapter) = &adapter {
            let shape = self.weight.shape();
            adapter.check_rows(shape[0], shape[1])?;
        }
        self.adapter = adapter;
        Ok(())
    }

    /// Store the table in 8 bits, in an arena: then it cannot be trained.
    pub fn quantize(&mut self, arena: &mut Arena) -> Result<()> {
        self.weight.quantize(arena)
    }
}

impl Module for Embedding {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        visitor.field("weight", &self.weight);
        if let Some(Adapter { a, b, .. }) = &self.adapter {
            visitor.field("lora_embedding_A", a);
            b.iter().for_each(|b| visitor.field("lora_embedding_B", b));
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        visitor.field("weight", &mut self.weight);
        if let Some(Adapter { a, b, .. }) = &mut self.adapter {
            visitor.field("lora_embedding_A", a);
            b.iter_mut().for_each(|b| visitor.field("lora_embedding_B", b));
        }
    }
}
