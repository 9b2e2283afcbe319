//! Training: AdamW and SGD, clipping by the global norm, loss scaling, learning rates.
//!
//! A step runs on the device from beginning to end and reads nothing back:
//!
//! 1. `square_sums`: partial sums of the squares of all gradients, in a fixed order;
//! 2. `decide`: their norm, which decides whether the step is applied, clipped or skipped;
//! 3. `update`: moments and parameters, each parameter in one pass, in place.
//!
//! ```
//! use taipan::optim::{AdamW, AdamWOptions, Curve, Group, Schedule};
//! use taipan::{DType, Device, Tensor};
//!
//! let mut w = Tensor::ones(&[8], DType::F32, &Device::Cpu)?.tracked();
//! let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
//! let mut adamw = AdamW::new(options, &[(&w, Group::default())])?;
//! let schedule = Schedule { peak: 0.1, min: 0.01, warmup: 10, total: 100, curve: Curve::Cosine };
//! for step in 0..schedule.total {
//!     let loss = w.mul(&w)?.mean()?;
//!     let grads = loss.backward_from(adamw.loss_scale())?;
//!     adamw.step(schedule.lr(step), &mut [&mut w], &grads)?;
//! }
//! let status = adamw.status_blocking()?;
//! assert_eq!((status.steps, status.skipped), (100, 0));
//! assert!(w.mul(&w)?.mean()?.item()? < 1e-2);
//! # Ok::<(), taipan::Error>(())
//! ```
//!
//! **Accumulation.** The gradients of `n` micro-batches are summed by
//! [`Grads::accumulate`](crate::Grads::accumulate); for their mean, the upstream of each is
//! `adamw.loss_scale().scale(1.0 / n as f64)?`.
//!
//! **Shards.** Processes that train together need not have all moments each: an optimiser of a
//! shard, see [`Optimizer::step_shard`], updates its part of the parameters to the same bits.

mod adamw;
mod decide;
mod optimizer;
mod schedule;
mod sgd;
mod shard;
mod slab;
mod square_sums;
mod update;

pub use self::adamw::{AdamW, AdamWOptions};
pub use self::optimizer::{Group, LossScale, Optimizer, Options, Status};
pub use self::schedule::{Curve, Schedule};
pub use self::sgd::{Momentum, Sgd, SgdOptions};
pub use self::shard::shard_alignment;

/// Every program of the optimiser.
#[cfg(test)]
pub(crate) fn programs() -> Vec<crate::gpu::Program> {
    let mut all = vec![decide::program()];
    all.extend(square_sums::programs());
    all.extend(update::programs());
    all
}
