//! Adapters: changes of low rank to frozen matrices (LoRA, Hu et al. 2021, arXiv 2106.09685).

use crate::Activation;
use crate::error::{Error, Result, ensure};
use crate::ops::linear::{Weight, linear};
use crate::tensor::Tensor;

const OP: &str = "adapter";

/// A change of rank `r` to a matrix of `n` rows and `k` columns, which is frozen:
///
/// ```text
/// y = x·Wᵀ + s·(drop(x)·Aᵀ)·Bᵀ
/// ```
///
/// `A` and `B` are at least f32, whatever the matrix is. The dropout is on this branch alone, and
/// only while there is a [seed](Adapter::seed) for its mask.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `A`, `[r, k]`. That of an embedding of `v` vectors is stored as `[v, r]`, so that ids choose
    /// rows.
    pub a: Tensor,
    /// `B`, `[n, r]`, in the blocks of rows that the matrix is in.
    pub b: Vec<Tensor>,
    /// The factor `s`.
    pub scale: f64,
    /// The probability of an element of `x` to be dropped.
    pub dropout: f64,
    /// That of the mask; none if nothing is to be dropped, as outside of training.
    pub seed: Option<u64>,
}

impl Adapter {
    /// An error unless it fits a matrix: `columns` of `A`, and the rows of its blocks.
    pub(super) fn check(&self, columns: usize, rows: &[usize]) -> Result<()> {
        let &[r, k] = self.a.shape() else {
            let why = format!("A is {:?}, expected [r, {columns}]", self.a.shape());
            return Err(Error::Shape { op: OP, why });
        };
        ensure!(OP, k == columns, "A is [{r}, {k}], expected [r, {columns}]");
        let (found, expected) = (self.b.len(), rows.len());
        ensure!(OP, found == expected, "B is in {found} blocks of rows, expected {expected}");
        for (b, rows) in self.b.iter().zip(rows) {
            let (found, expected) = (b.shape(), [*rows, r]);
            ensure!(OP, found == expected, "B is {found:?}, expected {expected:?}");
        }
        Ok(())
    }

    /// `s·drop(x)·Aᵀ`, `[…, r]`.
    pub(super) fn hidden(&self, x: &Tensor) -> Result<Tensor> {
        let dropped = match self.seed {
            Some(seed) if self.dropout > 0.0 => &x.dropout(self.dropout, seed)?,
            _ => x,
        };
        let wide = dropped.cast(self.a.dtype())?;
        linear(&wide, Weight::nk(&self.a), None, Activation::None)?.scale(self.scale)
    }

    /// `y + hidden·Bᵀ` of a block of rows.
    pub(super) fn add(&self, block: usize, y: &Tensor, hidden: &Tensor) -> Result<Tensor> {
        let change = linear(hidden, Weight::nk(&self.b[block]), None, Activation::None)?;
        y.add(&change.cast(y.dtype())?)
    }

    /// An error unless it fits a table of `v` vectors of `d` elements.
    pub(super) fn check_rows(&self, v: usize, d: usize) -> Result<()> {
        let r = self.rank();
        let (found, expected) = (self.a.shape(), [v, r]);
        ensure!(OP, found == expected, "A is {found:?}, expected {expected:?}");
        let fits = matches!(&self.b[..], [b] if b.shape() == [d, r]);
        ensure!(OP, fits, "B is not of one block of rows, [{d}, r]");
        Ok(())
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.b.first().and_then(|b| b.shape().get(1).copied()).unwrap_or(0)
    }
}
