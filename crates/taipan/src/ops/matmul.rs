//! The plain matrix product.

use super::linear::product;
use crate::error::{Error, Result, ensure};
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
        const OP: &str = "matmul";
        self.dtype().ensure_float(OP, "the left side")?;
        other.dtype().ensure(self.dtype(), OP, "the right side")?;
        let (a, b) = (self.shape(), other.shape());
        let ([a_lead @ .., m, k], [b_lead @ .., b_k, n]) = (a, b) else {
            let why = format!("{a:?} and {b:?} do not fit, expected 2 dimensions or more");
            return Err(Error::Shape { op: OP, why });
        };
        ensure!(OP, k == b_k, "{a:?} and {b:?} do not fit, expected […, {k}, n]");
        if b_lead.len() <= a_lead.len() && b_lead.iter().all(|&size| size == 1) {
            return product(OP, self, &other.reshape(&[*k, *n])?);
        }
        if a_lead == b_lead {
            return product(OP, self, other);
        }
        let lead = broadcast(OP, a_lead, b_lead).map_err(|_| {
            let why = format!("{a:?} and {b:?} do not broadcast in their leading dimensions");
            Error::Shape { op: OP, why }
        })?;
        let a = self.broadcast_to(&[&lead, &[*m, *k][..]].concat())?;
        let b = other.broadcast_to(&[&lead, &[*k, *n][..]].concat())?;
        product(OP, &a, &b)
    }
}
