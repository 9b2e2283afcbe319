//! Rearrangements that are made of others.

use super::concat::concat;
use crate::error::{Result, ensure};
use crate::spec::{MAX_RANK, ensure_dim};
use crate::tensor::Tensor;

impl Tensor {
    /// Without dimension `dim`, whose size must be 1. Shares the data.
    pub fn squeeze(&self, dim: usize) -> Result<Tensor> {
        const OP: &str = "squeeze";
        ensure_dim(OP, dim, self.shape())?;
        let (shape, size) = (self.shape(), self.shape()[dim]);
        ensure!(OP, size == 1, "dimension {dim} of {shape:?} is {size}, expected 1");
        self.reshape(&[&shape[..dim], &shape[dim + 1..]].concat())
    }

    /// With a new dimension of size 1 at index `dim`, which may be the rank. Shares the data.
    pub fn unsqueeze(&self, dim: usize) -> Result<Tensor> {
        let (shape, rank) = (self.shape(), self.rank());
        ensure!("unsqueeze", dim <= rank, "dimension {dim}, expected at most {rank} for {shape:?}");
        self.reshape(&[&shape[..dim], &[1], &shape[dim..]].concat())
    }

    /// Each dimension repeated so many times: `[a, b]` repeated `[2, 3]` times is `[2a, 3b]`. There
    /// may be more counts than dimensions: those in front make new dimensions.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?;
    /// assert_eq!(x.repeat(&[2])?.read_blocking::<f32>()?, [1.0, 2.0, 1.0, 2.0]);
    /// assert_eq!(x.repeat(&[3, 1])?.shape(), [3, 2]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn repeat(&self, counts: &[usize]) -> Result<Tensor> {
        const OP: &str = "repeat";
        let rank = self.rank();
        ensure!(
            OP,
            (rank..=MAX_RANK / 2).contains(&counts.len()),
            "{} counts found, expected {rank} to {} for {:?}",
            counts.len(),
            MAX_RANK / 2,
            self.shape()
        );
        let missing = counts.len() - rank;
        let size = |i: usize| if i < missing { 1 } else { self.shape()[i - missing] };
        let sizes = || (0..counts.len()).map(size);
        // Each dimension behind one of size 1, which is repeated.
        let apart: Vec<usize> = sizes().flat_map(|size| [1, size]).collect();
        let repeated: Vec<usize> = sizes().zip(counts).flat_map(|(size, &n)| [n, size]).collect();
        let product = |(size, &n): (usize, &usize)| size.saturating_mul(n);
        let shape: Vec<usize> = sizes().zip(counts).map(product).collect();
        self.reshape(&apart)?.broadcast_to(&repeated)?.reshape(&shape)
    }

    /// With so many elements of a value before and after those of dimension `dim`.
    pub fn pad(&self, dim: usize, [before, after]: [usize; 2], value: f64) -> Result<Tensor> {
        ensure_dim("pad", dim, self.shape())?;
        let constant = |size: usize| {
            let mut shape = self.shape().to_vec();
            shape[dim] = size;
            Tensor::full(&shape, value, self.dtype(), self.device())
        };
        concat(&[&constant(before)?, self, &constant(after)?], dim)
    }
}

/// Tensors of one shape along a new dimension, at index `dim`.
///
/// ```
/// use taipan::{DType, Device, Tensor, stack};
///
/// let x = Tensor::ones(&[2, 3], DType::F32, &Device::Cpu)?;
/// assert_eq!(stack(&[&x, &x, &x, &x], 1)?.shape(), [2, 4, 3]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn stack(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
    const OP: &str = "stack";
    ensure!(OP, !tensors.is_empty(), "there are no tensors to stack");
    let (found, expected) = (tensors.iter().map(|t| t.shape()), tensors[0].shape());
    for found in found {
        ensure!(OP, found == expected, "a tensor is {found:?}, expected {expected:?}");
    }
    let apart = tensors.iter().map(|t| t.unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
    concat(&apart.iter().collect::<Vec<_>>(), dim)
}
