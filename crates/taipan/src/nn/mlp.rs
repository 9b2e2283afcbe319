//! The block of a gated MLP, SwiGLU (Shazeer 2020, arXiv 2002.05202).

use super::block::{LinearSpec, Parameters};
use super::{BlockParameter, Init, Initializer, Linear, Module, Visitor};
use crate::Activation;
use crate::error::{Error, Result};
use crate::ops::gated::gated;
use crate::tensor::Tensor;

/// `down(up(x) ⊙ silu(gate(x)))`. What its matrices are called is said by an [`MlpLayout`].
///
/// ```
/// use taipan::nn::{GatedMlp, GatedMlpOptions, Initializer};
/// use taipan::{DType, Device, Tensor};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let mlp = GatedMlp::new(&GatedMlpOptions::new(32, 64), &mut init)?;
/// let x = Tensor::randn(&[2, 10, 32], 1, DType::F32, &Device::Cpu)?;
/// assert_eq!(mlp.forward(&x)?.shape(), [2, 10, 32]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GatedMlp {
    /// Gate and up: two matrices, or two blocks of rows of one.
    inputs: Vec<(&'static str, Linear)>,
    down: (&'static str, Linear), // [d, hidden]
    options: GatedMlpOptions,
}

/// The matrices of a [`GatedMlp`] in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpLayout {
    /// `gate_proj`, `up_proj` and `down_proj`.
    Separate,
    /// `input_linear`, the rows of gate above those of up, and `output_linear`.
    GateFirst,
    /// `fc1`, the rows of up above those of gate, and `fc2`.
    GateLast,
}

/// The sizes of a [`GatedMlp`], and its initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedMlpOptions {
    /// The width of inputs and outputs, `d`.
    pub d_model: usize,
    /// The width inside.
    pub d_hidden: usize,
    /// Whether the matrices have biases; no.
    pub use_bias: bool,
    /// What the matrices are called; separate ones.
    pub layout: MlpLayout,
    /// The factor of the gate, before silu; 1.
    pub gate_multiplier: f64,
    /// The initialisation of the matrix behind the gate; uniform between `±1/√hidden`.
    pub out_init: Init,
}

/// A matrix as files call it.
struct Names {
    module: &'static str,
    weight: &'static str,
    bias: &'static str,
}

macro_rules! names {
    ($module:literal) => {
        Names {
            module: $module,
            weight: concat!($module, ".weight"),
            bias: concat!($module, ".bias"),
        }
    };
}

impl GatedMlpOptions {
    /// A width, and that inside.
    pub fn new(d_model: usize, d_hidden: usize) -> GatedMlpOptions {
        GatedMlpOptions {
            d_model,
            d_hidden,
            use_bias: false,
            layout: MlpLayout::Separate,
            gate_multiplier: 1.0,
            out_init: Init::fan_in(d_hidden),
        }
    }
}

impl GatedMlp {
    /// One with random weights, uniform as PyTorch's layers.
    pub fn new(options: &GatedMlpOptions, init: &mut Initializer) -> Result<GatedMlp> {
        GatedMlp::build::<Error>(options, &mut |parameter| init.block_parameter(&parameter))
    }

    /// One of the tensors that `make` returns, for example from a file.
    pub fn build<E: From<Error>>(
        options: &GatedMlpOptions,
        make: &mut dyn FnMut(BlockParameter) -> Result<Tensor, E>,
    ) -> Result<GatedMlp, E> {
        let &GatedMlpOptions { d_model: d, d_hidden: hidden, .. } = options;
        let (mut parameters, use_bias) = (Parameters(make), options.use_bias);
        let mut linear = |names: Names, labels: &[&'static str], [n, k]: [usize; 2], init| {
            let blocks: Vec<_> = labels.iter().map(|label| (*label, n)).collect();
            let spec = LinearSpec::new([names.weight, names.bias], &blocks, k);
            let linear = parameters.linear(LinearSpec { use_bias, init, ..spec })?;
            Ok::<_, E>((names.module, linear))
        };
        let (size, init) = ([hidden, d], Init::fan_in(d));
        let (inputs, down) = match options.layout {
            MlpLayout::Separate => (
                vec![
                    linear(names!("gate_proj"), &[""], size, init)?,
                    linear(names!("up_proj"), &[""], size, init)?,
                ],
                names!("down_proj"),
            ),
            MlpLayout::GateFirst => {
                let input = linear(names!("input_linear"), &["gate", "up"], size, init)?;
                (vec![input], names!("output_linear"))
            }
            MlpLayout::GateLast => {
                (vec![linear(names!("fc1"), &["up", "gate"], size, init)?], names!("fc2"))
            }
        };
        let down = linear(down, &[""], [d, hidden], options.out_init)?;
        Ok(GatedMlp { inputs, down, options: *options })
    }

    /// `x`, `[…, d]`, to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut parts = Vec::with_capacity(2);
        for (_, linear) in &self.inputs {
            parts.extend(linear.forward_blocks(x)?);
        }
        let [gate, up] = match self.options.layout {
            MlpLayout::Separate | MlpLayout::GateFirst => [&parts[0], &parts[1]],
            MlpLayout::GateLast => [&parts[1], &parts[0]],
        };
        let gate = gate.scale(self.options.gate_multiplier)?;
        self.down.1.forward(&gated(up, &gate, Activation::Silu)?)
    }

    /// Its projections, by name, in the order of its parameters.
    pub fn projections(&self) -> impl Iterator<Item = (&'static str, &Linear)> {
        self.inputs.iter().chain([&self.down]).map(|(name, linear)| (*name, linear))
    }

    /// [`projections`](GatedMlp::projections), to be changed.
    pub fn projections_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Linear)> {
        self.inputs.iter_mut().chain([&mut self.down]).map(|(name, linear)| (*name, linear))
    }
}

impl Module for GatedMlp {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        self.projections().for_each(|(name, linear)| visitor.field(name, linear));
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        self.projections_mut().for_each(|(name, linear)| visitor.field(name, linear));
    }
}
