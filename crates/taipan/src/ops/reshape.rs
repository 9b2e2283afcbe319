//! The same elements in another shape.

use crate::autograd::{Exchange, add_node};
use crate::error::{Result, ensure};
use crate::spec::{Shape, Spec};
use crate::tensor::Tensor;

impl Tensor {
    /// The same elements, row by row, as another shape of the same size. Shares the data.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let x = Tensor::arange(0, 6, DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.reshape(&[2, 3])?.shape(), [2, 3]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        const OP: &str = "reshape";
        let spec = Spec::new(OP, shape, self.dtype())?;
        ensure!(OP, spec.len() == self.len(), "{:?} does not fill {shape:?}", self.shape());
        let before = Shape::from(self.shape());
        let mut result = [Tensor::of(spec, self.storage.clone())];
        let backward =
            move |dys: &[Tensor], _: &mut Exchange| Ok(vec![Some(dys[0].reshape(&before)?)]);
        add_node(OP, &[self], &mut result, backward);
        let [result] = result;
        Ok(result)
    }
}
