//! Fused, differentiable kernels for state-space language models, with tensors and autograd
//! around them.
//!
//! A network that learns, in full:
//!
//! ```
//! use taipan::optim::{AdamW, AdamWOptions, Group};
//! use taipan::{Activation, DType, Device, Tensor, linear};
//!
//! let device = Device::Cpu;
//! // The task: y = sin(3x) at 64 points.
//! let points: Vec<f32> = (0..64).map(|i| i as f32 / 32.0 - 1.0).collect();
//! let targets: Vec<f32> = points.iter().map(|x| (3.0 * x).sin()).collect();
//! let x = Tensor::new(&points, &[64, 1], &device)?;
//! let y = Tensor::new(&targets, &[64, 1], &device)?;
//!
//! let mut w1 = Tensor::randn(&[1, 32], 1, DType::F32, &device)?.scale(2.0)?.tracked();
//! let mut b1 = Tensor::randn(&[32], 2, DType::F32, &device)?.tracked();
//! let mut w2 = Tensor::zeros(&[32, 1], DType::F32, &device)?.tracked();
//!
//! let parameters = [&w1, &b1, &w2].map(|p| (p, Group::default()));
//! let mut adamw = AdamW::new(AdamWOptions::default(), &parameters)?;
//! let mut losses = Vec::new();
//! for _ in 0..200 {
//!     let hidden = linear(&x, &w1, Some(&b1), Activation::Gelu)?;
//!     let error = linear(&hidden, &w2, None, Activation::None)?.sub(&y)?;
//!     let loss = error.mul(&error)?.mean()?;
//!     losses.push(loss.item()?);
//!     adamw.step(0.01, &mut [&mut w1, &mut b1, &mut w2], &loss.backward()?)?;
//! }
//! assert!(losses[199] < 0.01 * losses[0]);
//! # Ok::<(), taipan::Error>(())
//! ```
//!
//! - [`Tensor`]: a dense array on a [`Device`], of a [`DType`] chosen at run time.
//! - [`Device::Cpu`], [`Device::gpu`], [`Device::best`]: where it is. In the program above,
//!   `let device = Device::best()?;` is all that changes. See [`gpu`] for more.
//! - [`linear`]: `φ(A·W + bias)` in one pass, with its whole backward pass; [`linear_recomputing`]
//!   saves less for it, [`linear_backward`] is the backward pass alone.
//! - [`selective_scan`], [`causal_conv1d`], [`rms_norm`], [`gated`], [`embedding`],
//!   [`linear_cross_entropy`]: the ops of a Mamba model, each with its gradient;
//!   [`selective_scan_step`] and [`Tensor::sample`] for decoding.
//! - [`Tensor::tracked`], [`Tensor::backward`], [`no_grad`], [`recompute`]: gradients. [`optim`]:
//!   what to do with them.
//! - [`CustomOp`]: operations of your own, on both devices, with their gradients. The module
//!   `check`, of the cargo feature of the same name, tests their values and gradients as it does
//!   those of the built-in ops.
//! - [`profile()`]: where the time goes, op by op. [`roofline`]: how fast the processor could be.
//!
//! Every operation that can fail returns a [`Result`]; the [`Error`] names the operation, what it
//! found and what it expected. Results do not depend on the number of threads, which is that of
//! rayon's current pool. An op called from a rayon task may run other tasks of the pool while it
//! waits: do not hold a lock across it that those take.

mod autograd;
#[cfg(all(feature = "check", not(target_family = "wasm")))]
pub mod check;
mod cpu;
mod custom;
mod device;
mod dtype;
mod error;
mod function;
pub mod gpu;
mod grad_mode;
mod kernel;
pub mod nn;
mod ops;
pub mod optim;
mod pool;
mod product;
pub mod profile;
mod recompute;
mod reduction;
pub mod roofline;
pub mod safetensors;
#[cfg(test)]
mod shaders;
mod spec;
mod tensor;
mod terms;

pub use autograd::{Grads, no_grad};
pub use custom::{BackwardReads, CustomOp, Number, SavedTensors, custom};
pub use device::Device;
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use function::Activation;
pub use ops::broadcast::Operand;
pub use ops::concat::concat;
pub use ops::conv1d::{CausalConv1d, causal_conv1d};
pub use ops::cross_entropy::cross_entropy;
pub use ops::embedding::embedding;
pub use ops::gated::gated;
pub use ops::layer_norm::layer_norm;
pub use ops::linear::{
    Int8, LinearGrads, Weight, linear, linear_backward, linear_recomputing, linear_residual,
};
pub use ops::linear_cross_entropy::linear_cross_entropy;
pub use ops::losses::{binary_cross_entropy_with_logits, mse_loss};
pub use ops::rms_norm::{add_rms_norm, rms_norm};
pub use ops::sample::Sampling;
pub use ops::scan::{Discretization, Scan, StepSize, selective_scan, selective_scan_step};
pub use ops::shapes::stack;
#[cfg(not(target_family = "wasm"))]
pub use profile::profile;
pub use recompute::recompute;
pub use spec::MAX_RANK;
pub use tensor::{Arena, Tensor};
pub use wgpu;
