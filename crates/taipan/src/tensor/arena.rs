//! Tensors next to each other in memory.

use super::{Storage, Tensor};
use crate::cpu::CpuArena;
use crate::error::Result;

/// Memory for tensors that are read together, one after the other, such as the weights of a model
/// that runs on the CPU. On Linux it is of huge pages, so that reading small tensors is as fast as
/// reading large ones: decoding takes up to half the time.
///
/// ```
/// use taipan::{Arena, DType, Device, Tensor};
///
/// let mut arena = Arena::new();
/// let weight = arena.store(&Tensor::randn(&[64, 32], 1, DType::F32, &Device::Cpu)?)?;
/// assert_eq!(weight.shape(), [64, 32]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Default)]
pub struct Arena(CpuArena);

impl Arena {
    /// One without tensors.
    pub fn new() -> Arena {
        Arena::default()
    }

    /// A copy of a tensor, not tracked; a tensor on a GPU is returned as it is. Its memory is freed
    /// together with that of its neighbours.
    pub fn store(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let Storage::Cpu(from) = &tensor.storage else { return Ok(tensor.detached()) };
        let mut to = self.0.take("store", from.bytes().len())?;
        to.bytes_mut().copy_from_slice(from.bytes());
        Ok(Tensor::of(tensor.spec.clone(), Storage::Cpu(to.into())))
    }
}
