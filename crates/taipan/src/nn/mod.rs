//! Building blocks: what names its parameters, and the layers that people start from.
//!
//! A block is a struct with a method `forward`. The trait [`Module`], which
//! [`module!`](crate::module) implements, names its parameters once, for the
//! [optimiser](crate::optim), freezing, files and counting.
//!
//! ```
//! use taipan::nn::{Initializer, Linear, Module};
//! use taipan::{Activation, DType, Device, Result, Tensor};
//!
//! struct Mlp {
//!     hidden: Linear,
//!     output: Linear,
//! }
//!
//! taipan::module!(Mlp { hidden, output });
//!
//! impl Mlp {
//!     fn forward(&self, x: &Tensor) -> Result<Tensor> {
//!         self.output.forward(&self.hidden.activated(x, Activation::Gelu)?)
//!     }
//! }
//!
//! let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
//! let (hidden, output) = (Linear::new(2, 64, &mut init)?, Linear::new(64, 3, &mut init)?);
//! let model = Mlp { hidden, output };
//! let y = model.forward(&Tensor::zeros(&[5, 2], DType::F32, &Device::Cpu)?)?;
//! assert_eq!((y.shape(), model.num_parameters()), (&[5, 3][..], 387));
//! # Ok::<(), taipan::Error>(())
//! ```

mod adapter;
mod attention;
mod block;
mod dropout;
mod init;
mod kv_cache;
mod linear;
mod mamba;
mod mamba2;
mod mamba3;
mod mamba3_options;
mod mlp;
mod module;
mod norm;

pub use self::adapter::Adapter;
pub use self::attention::{AttentionBlock, AttentionOptions};
pub use self::block::{BlockParameter, Mixing, Observer, Precision};
pub use self::dropout::Dropout;
pub use self::init::{Init, Initializer};
pub use self::kv_cache::KvCache;
pub use self::linear::{Embedding, Linear, Matrix, RowBlock};
pub use self::mamba::{MambaBlock, MambaOptions, MambaState};
pub use self::mamba2::{GatedNorm, Mamba2Block, Mamba2Options};
pub use self::mamba3::{Mamba3Block, Mamba3State};
pub use self::mamba3_options::{DecayActivation, Mamba3Options};
pub use self::mlp::{GatedMlp, GatedMlpOptions, MlpLayout};
pub(crate) use self::module::unmatched;
pub use self::module::{Module, Visitor, matches, stored_name};
pub use self::norm::{LayerNorm, RmsNorm};
