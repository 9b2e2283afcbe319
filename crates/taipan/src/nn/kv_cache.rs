//! What attention remembers: the keys and values of all steps so far.

use crate::error::{Error, Result, ensure};
use crate::tensor::Tensor;

const OP: &str = "key-value cache";

/// Memory is taken for a multiple of so many steps.
const STEPS: usize = 256;

/// The keys and values of the steps that attention has seen, for each sequence of a batch. It grows
/// with their number.
///
/// There is room for more: a step writes into it, and when there is none left, half of the steps so
/// far is added. Clones share memory; the first step of each then copies it.
#[derive(Clone, Debug)]
pub struct KvCache {
    keys: Tensor,   // [b, capacity, hk, d]
    values: Tensor, // the same
    len: usize,
}

impl KvCache {
    /// A cache of these keys and values, `[b, steps, hk, d]` each.
    pub fn new(keys: Tensor, values: Tensor) -> Result<KvCache> {
        let (found, expected) = (values.shape(), keys.shape());
        ensure!(OP, found == expected, "the values are {found:?}, the keys {expected:?}");
        let &[_, len, _, _] = expected else {
            let why = format!("the keys are {expected:?}, expected [b, steps, hk, d]");
            return Err(Error::Shape { op: OP, why });
        };
        values.dtype().ensure(keys.dtype(), OP, "the values")?;
        Ok(KvCache { keys, values, len })
    }

    /// How many steps of each sequence there are.
    pub fn steps(&self) -> usize {
        self.len
    }

    /// The number of sequences.
    pub fn batch_size(&self) -> usize {
        self.keys.shape()[0]
    }

    /// The keys and values so far, `[b, steps, hk, d]` each.
    pub fn tensors(&self) -> Result<[Tensor; 2]> {
        let used = |cache: &Tensor| match cache.shape()[1] == self.len {
            true => Ok(cache.clone()),
            false => cache.slice(1, 0..self.len),
        };
        Ok([used(&self.keys)?, used(&self.values)?])
    }

    /// The keys and values with room for more behind them.
    pub(super) fn with_room(&self) -> [&Tensor; 2] {
        [&self.keys, &self.values]
    }

    /// With those of further steps, `[b, l, hk, d]` each: not for tensors that are tracked.
    pub(super) fn extended(self, keys: &Tensor, values: &Tensor) -> Result<KvCache> {
        let (start, capacity) = (self.len, self.keys.shape()[1]);
        let len = start + keys.shape().get(1).copied().unwrap_or(0);
        let [mut all_keys, mut all_values] = match len <= capacity {
            true => [self.keys, self.values],
            false => {
                let [keys, values] = self.tensors()?;
                let steps = len.max(start + start / 2);
                [grown(&keys, steps)?, grown(&values, steps)?]
            }
        };
        all_keys.write_slice(1, start, keys)?;
        all_values.write_slice(1, start, values)?;
        Ok(KvCache { keys: all_keys, values: all_values, len })
    }
}

/// The same steps, with room for this many or a few more.
fn grown(used: &Tensor, steps: usize) -> Result<Tensor> {
    let mut shape = used.shape().to_vec();
    shape[1] = steps.next_multiple_of(STEPS);
    let mut all = Tensor::zeros(&shape, used.dtype(), used.device())?;
    all.write_slice(1, 0, used)?;
    Ok(all)
}
