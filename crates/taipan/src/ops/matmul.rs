//! The plain matrix product.

use super::function::Activation;
use super::linear::linear;
use crate::error::Result;
use crate::spec::broadcast;
use crate::tensor::Tensor;

impl Tensor {
    /// The matrix product of the last two dimensions: `[…, m, k]·[…, k, n]` is `[…, m, n]`.
    /// Leading dimensions broadcast.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let a = Tensor::ones(&[5, 2, 3], DType::F32, &Device::Cpu)?;
    /// let b = Tensor::ones(&[3, 4], DType::F32, &Device::Cpu)?;
    /// assert_eq!(a.matmul(&b)?.shape(), [5, 2, 4]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let (a, b) = (self.shape(), other.shape());
        if a.len() < 2 || b.len() <= 2 || a[..a.len() - 2] == b[..b.len() - 2] {
            return linear(self, other, None, Activation::None);
        }
        let lead = broadcast("matmul", &a[..a.len() - 2], &b[..b.len() - 2])?;
        let a = self.broadcast_to(&[&lead, &a[a.len() - 2..]].concat())?;
        let b = other.broadcast_to(&[&lead, &b[b.len() - 2..]].concat())?;
        linear(&a, &b, None, Activation::None)
    }
}
