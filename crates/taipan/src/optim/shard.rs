//! Steps of an optimiser that has a part of the parameters, while others have the rest.

use crate::Device;
use crate::error::Result;
use crate::tensor::Tensor;

use super::optimizer::{Optimizer, Options};
use super::square_sums::SquareSums;

/// Where the parameters of shards may be cut, so that the norm of all gradients has the same bits as
/// without shards: at multiples of this many elements, counted row by row.
pub fn shard_alignment(device: &Device) -> usize {
    SquareSums::new("shard", device).block
}

impl<O: Options> Optimizer<O> {
    /// The sums of the squares of the gradients of a shard, of [`shard_alignment`] elements each:
    /// gradient by gradient, the last sum of each being of what is left. In f64 on the CPU, in f32
    /// on a GPU, where those of f16 gradients come after those of f32: gradients of shards are to be
    /// of one type.
    ///
    /// All processes exchange theirs and concatenate them in the order of the parameters, for
    /// [`step_shard`](Optimizer::step_shard).
    pub fn square_sums(&self, grads: &[&Tensor]) -> Result<Tensor> {
        self.sums(grads)
    }

    /// [`step`](Optimizer::step) of a shard: of parameters that are slices of those which are
    /// trained, given [the sums of squares](Optimizer::square_sums) of all shards. Every process
    /// comes to the same decision, and to the same bits as a single one.
    ///
    /// ```
    /// use taipan::optim::{AdamW, AdamWOptions, Group, shard_alignment};
    /// use taipan::{DType, Device, Tensor, concat};
    ///
    /// let (block, cpu) = (shard_alignment(&Device::Cpu), Device::Cpu);
    /// let mut whole = Tensor::randn(&[3 * block], 1, DType::F32, &cpu)?;
    /// let grad = Tensor::randn(&[3 * block], 2, DType::F32, &cpu)?;
    /// let cut = |x: &Tensor| [0..block, block..3 * block].map(|range| x.slice(0, range).unwrap());
    /// let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
    /// let new = |x: &Tensor| AdamW::new(options, &[(x, Group::default())]);
    /// let (mut shards, grads) = (cut(&whole), cut(&grad));
    /// let mut alone = new(&whole)?;
    /// let mut both = [new(&shards[0])?, new(&shards[1])?];
    /// let sums = [both[0].square_sums(&[&grads[0]])?, both[1].square_sums(&[&grads[1]])?];
    /// let sums = concat(&[&sums[0], &sums[1]], 0)?;
    /// for ((adamw, shard), grad) in both.iter_mut().zip(&mut shards).zip(&grads) {
    ///     adamw.step_shard(0.1, &mut [shard], &[grad], &sums)?;
    /// }
    /// let all = alone.square_sums(&[&grad])?;
    /// alone.step_shard(0.1, &mut [&mut whole], &[&grad], &all)?;
    /// for (shard, expected) in shards.iter().zip(&cut(&whole)) {
    ///     assert_eq!(shard.read_blocking::<f32>()?, expected.read_blocking::<f32>()?);
    /// }
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn step_shard(
        &mut self,
        lr: f64,
        parameters: &mut [&mut Tensor],
        grads: &[&Tensor],
        square_sums: &Tensor,
    ) -> Result<()> {
        let dtype = SquareSums::new(O::OP, self.device()).dtype;
        square_sums.dtype().ensure(dtype, O::OP, "square_sums")?;
        square_sums.device().ensure(self.device(), O::OP, "square_sums")?;
        self.apply(lr, parameters, grads, square_sums)
    }
}
