//! Fused, differentiable kernels for state-space language models, with tensors and autograd
//! around them.
//!
//! # A tutorial of five steps
//!
//! **1. Tensors** are dense arrays of a type and on a device that are chosen at run time. What can
//! fail returns a [`Result`], and the message says what was found and what was expected.
//!
//! ```
//! use taipan::{DType, Device, Tensor};
//!
//! # fn main() -> taipan::Result {
//! let device = Device::Cpu; // or Device::best()?: a GPU, if the machine has one
//! let a = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
//! let b = Tensor::ones(&[2], DType::F32, &device)?;
//! assert_eq!(a.add(&b)?.sum_dims(&[0])?.read_blocking::<f32>()?, [6.0, 8.0]);
//! let error = a.matmul(&Tensor::ones(&[3, 2], DType::F32, &device)?).unwrap_err();
//! assert!(error.to_string().starts_with("matmul: "));
//! # Ok(())
//! # }
//! ```
//!
//! **2. Gradients** flow from a loss to every [tracked](Tensor::tracked) tensor it depends on.
//!
//! ```
//! # use taipan::{Device, Tensor};
//! # fn main() -> taipan::Result {
//! let w = Tensor::new(&[1f32, -2.0], &[2], &Device::Cpu)?.tracked();
//! let loss = w.mul(&w)?.sum()?;
//! assert_eq!(loss.backward()?.of(&w)?.read_blocking::<f32>()?, [2.0, -4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! **3. A model** is a struct of blocks and tensors. [`module!`] names its parameters, once, for
//! everything below.
//!
//! **4. Training**: an optimiser, with options for parameters by their names, and a loop.
//!
//! **5. Files**: parameters are saved and loaded in the format `safetensors`.
//!
//! ```
//! use taipan::nn::{Initializer, Linear, Module};
//! use taipan::optim::{AdamW, AdamWOptions, Group};
//! use taipan::{Activation, DType, Device, Result, Tensor, safetensors};
//!
//! struct Mlp {
//!     hidden: Linear,
//!     output: Linear,
//! }
//!
//! taipan::module!(Mlp { hidden, output });
//!
//! impl Mlp {
//!     fn new(seed: u64, device: &Device) -> Result<Mlp> {
//!         let init = &mut Initializer::new(seed, DType::F32, device);
//!         Ok(Mlp { hidden: Linear::new(1, 32, init)?, output: Linear::new(32, 1, init)? })
//!     }
//!
//!     /// `[n, 1]` to `[n, 1]`
//!     fn forward(&self, x: &Tensor) -> Result<Tensor> {
//!         self.output.forward(&self.hidden.activated(x, Activation::Gelu)?)
//!     }
//! }
//!
//! fn main() -> Result {
//!     let device = Device::Cpu;
//!     // The task: y = sin(3x) at 64 points.
//!     let points: Vec<f32> = (0..64).map(|i| i as f32 / 32.0 - 1.0).collect();
//!     let targets: Vec<f32> = points.iter().map(|x| (3.0 * x).sin()).collect();
//!     let x = Tensor::new(&points, &[64, 1], &device)?;
//!     let y = Tensor::new(&targets, &[64, 1], &device)?;
//!
//!     let mut model = Mlp::new(1, &device)?;
//!     let groups = [("*.bias", Group::without_decay())];
//!     let mut adamw = AdamW::for_module(AdamWOptions::default(), &model, &groups)?;
//!     let mut losses = Vec::new();
//!     for _ in 0..300 {
//!         let error = model.forward(&x)?.sub(&y)?;
//!         let loss = error.mul(&error)?.mean()?;
//!         losses.push(loss.item()?);
//!         adamw.step_module(0.02, &mut model, &loss.backward()?)?;
//!     }
//!     assert!(losses[299] < 0.01 * losses[0]);
//!
//! #   let path = std::env::temp_dir().join(format!("taipan-{}.safetensors", std::process::id()));
//! #   let path = path.to_str().unwrap();
//! #   /*
//!     let path = "mlp.safetensors";
//! #   */
//!     safetensors::save(path, &model.parameters())?;
//!     let mut other = Mlp::new(2, &device)?;
//!     safetensors::load_into(path, &mut other)?;
//!     assert_eq!(
//!         other.forward(&x)?.read_blocking::<f32>()?,
//!         model.forward(&x)?.read_blocking::<f32>()?
//!     );
//! #   std::fs::remove_file(path).unwrap();
//!     Ok(())
//! }
//! ```
//!
//! `docs/library.md` in the repository has larger examples, with what they print.
//!
//! # What there is
//!
//! - [`Tensor`]: a dense array on a [`Device`], of a [`DType`] chosen at run time.
//! - [`Device::Cpu`], [`Device::gpu`], [`Device::best`]: where it is. See [`gpu`] for more; without
//!   the cargo feature `gpu`, a default one, wgpu is not compiled and there is the CPU alone.
//! - [`linear`]: `φ(A·W + bias)` in one pass, with its whole backward pass; [`linear_recomputing`]
//!   saves less for it, [`linear_backward`] is the backward pass alone.
//! - [`selective_scan`], [`causal_conv1d`], [`rms_norm`], [`gated`], [`embedding`],
//!   [`linear_cross_entropy`]: the ops of a Mamba model, each with its gradient;
//!   [`selective_scan_step`] and [`Tensor::sample`] for decoding.
//! - [`ssd`], [`attention`], [`rope`], [`gated_rms_norm`], [`rotate`], [`turn_sum`]: those of
//!   Mamba-2, Mamba-3 and hybrids.
//! - [`Tensor::tracked`], [`Tensor::backward`], [`no_grad`], [`recompute`]: gradients. [`optim`]:
//!   what to do with them.
//! - [`nn`]: named parameters, and the blocks that models are made of. [`safetensors`]: files.
//! - [`CustomOp`]: operations of your own, on both devices, with their gradients. The module
//!   `check`, of the cargo feature of the same name, tests their values and gradients as it does
//!   those of the built-in ops.
//! - [`profile()`]: where the time goes, op by op. [`roofline`]: how fast the processor could be.
//!
//! Every operation that can fail returns a [`Result`]; the [`Error`] names the operation, what it
//! found and what it expected. Results do not depend on the number of threads, which is that of
//! rayon's current pool. An op called from a rayon task may run other tasks of the pool while it
//! waits: do not hold a lock across it that those take.

// Without GPUs, what only they call is not called.
#![cfg_attr(not(feature = "gpu"), allow(unused))]

#[macro_use]
mod wgsl;

mod autograd;
#[cfg(feature = "check")]
pub mod check;
mod cpu;
mod custom;
mod device;
mod dtype;
mod error;
mod function;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "gpu/absent.rs"]
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
#[cfg(not(target_family = "wasm"))]
pub mod roofline;
pub mod safetensors;
#[cfg(test)]
mod shaders;
mod spec;
mod tensor;
mod terms;

pub use autograd::{Grads, no_grad};
pub use cpu::threads::with_threads_awake;
pub use custom::{BackwardReads, CustomOp, Number, SavedTensors, custom};
pub use device::Device;
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use function::Activation;
pub use ops::attention::{Attention, attention};
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
pub use ops::rms_norm::{GateOrder, add_rms_norm, gated_rms_norm, rms_norm};
pub use ops::rope::rope;
pub use ops::rotate::{Pairs, rotate};
pub use ops::sample::Sampling;
pub use ops::scan::{Discretization, Scan, StepSize, selective_scan, selective_scan_step};
pub use ops::shapes::stack;
pub use ops::ssd::{Ssd, ssd};
pub use ops::turn_sum::{TurnSum, turn_sum};
pub use pool::Memory;
#[cfg(not(target_family = "wasm"))]
pub use profile::profile;
pub use recompute::recompute;
pub use spec::MAX_RANK;
pub use tensor::{Arena, Tensor};
#[cfg(feature = "gpu")]
pub use wgpu;
