//! Variances, and logarithms of sums of exponentials: compositions, computed in the wide type, so
//! that f16 and bf16 are rounded once.

use crate::error::{Result, ensure};
use crate::spec::ensure_dim;
use crate::tensor::Tensor;

/// Statistics over dimensions, which disappear from the shape; the forms with `keepdim` keep them,
/// with size 1. Sums of squares are divided by `n − correction`, with `n` the number of elements:
/// 1 for the estimate from a sample, as in PyTorch, 0 for the elements themselves.
impl Tensor {
    /// The variance of all elements, as a tensor of shape `[]`.
    pub fn var(&self, correction: usize) -> Result<Tensor> {
        self.var_dims(&self.all_dims(), correction)
    }

    /// Variances over the given dimensions.
    pub fn var_dims(&self, dims: &[usize], correction: usize) -> Result<Tensor> {
        let n: usize = self.checked("var", dims)?.iter().product();
        let x = self.cast(self.dtype().wider())?;
        let centred = x.sub(&x.mean_keepdim(dims)?)?;
        let divisor = n.saturating_sub(correction) as f64;
        centred.mul(&centred)?.sum_dims(dims)?.scale(1.0 / divisor)?.cast(self.dtype())
    }

    /// [`var_dims`](Tensor::var_dims) that keeps the dimensions.
    pub fn var_keepdim(&self, dims: &[usize], correction: usize) -> Result<Tensor> {
        self.var_dims(dims, correction)?.reshape(&self.shape_keeping(dims))
    }

    /// The standard deviation of all elements, as a tensor of shape `[]`.
    pub fn std(&self, correction: usize) -> Result<Tensor> {
        self.std_dims(&self.all_dims(), correction)
    }

    /// Standard deviations over the given dimensions, the roots of the variances.
    pub fn std_dims(&self, dims: &[usize], correction: usize) -> Result<Tensor> {
        self.checked("std", dims)?;
        let x = self.cast(self.dtype().wider())?;
        x.var_dims(dims, correction)?.sqrt()?.cast(self.dtype())
    }

    /// [`std_dims`](Tensor::std_dims) that keeps the dimensions.
    pub fn std_keepdim(&self, dims: &[usize], correction: usize) -> Result<Tensor> {
        self.std_dims(dims, correction)?.reshape(&self.shape_keeping(dims))
    }

    /// `ln Σ exp(x)` over the given dimensions, whose sizes must not be 0, computed from `x − max(x)`
    /// so that nothing overflows.
    pub fn logsumexp(&self, dims: &[usize]) -> Result<Tensor> {
        let kept = self.logsumexp_keepdim(dims)?;
        let shape = (0..self.rank()).filter(|dim| !dims.contains(dim)).map(|dim| self.shape()[dim]);
        kept.reshape(&shape.collect::<Vec<_>>())
    }

    /// [`logsumexp`](Tensor::logsumexp) that keeps the dimensions.
    pub fn logsumexp_keepdim(&self, dims: &[usize]) -> Result<Tensor> {
        const OP: &str = "logsumexp";
        let is_empty = self.checked(OP, dims)?.contains(&0);
        ensure!(OP, !is_empty, "a dimension of {:?} is empty", self.shape());
        let x = self.cast(self.dtype().wider())?;
        let max = x.detached().max_keepdim(dims)?;
        // Of an infinite maximum, a difference would be NaN.
        let shift = max.masked_fill(&max.abs()?.eq(f64::INFINITY)?, 0.0)?;
        let sum = x.sub(&shift)?.exp()?.sum_keepdim(dims)?;
        sum.log()?.add(&shift)?.cast(self.dtype())
    }

    /// The sizes of these dimensions, which must exist, of a tensor of floats.
    fn checked(&self, op: &'static str, dims: &[usize]) -> Result<Vec<usize>> {
        self.dtype().ensure_float(op, "the input")?;
        let size = |&dim: &usize| ensure_dim(op, dim, self.shape()).map(|()| self.shape()[dim]);
        dims.iter().map(size).collect()
    }
}
