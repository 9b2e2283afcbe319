//! The tensors a model is made of: what files call them, and what they are before training.

use std::ops::{Deref, Range};

use taipan::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::random::parameter_seed;

/// One trained tensor of a model. Where a `&Tensor` is expected, it is one.
///
/// A tensor of a file may be several parameters: `in_proj.weight`, `[2·inner, d]`, is two matrices in
/// memory, since what they compute goes separate ways. These parameters follow each other, with the same
/// `stored` name, and the file has one below the other.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// `backbone.layers.0.mixer.in_proj.weight[x]`: the stored name, and which part of it this is.
    pub name: String,
    /// `backbone.layers.0.mixer.in_proj.weight`
    pub stored: String,
    /// The shape in the file, of this part. A convolution's is `[inner, 1, k]`, and `[inner, k]` in memory.
    pub stored_shape: Vec<usize>,
    /// What it is to the optimiser, and in half precision.
    pub role: Role,
    /// The values.
    pub tensor: Tensor,
}

impl Deref for Parameter {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

/// Kinds of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A matrix or a table. Weight decay is for these alone.
    Matrix,
    /// The weight of a norm, or a bias.
    Vector,
    /// A part of the recurrence, `A_log`, `D` or the bias of Δ: does not fit half precision, so it is f32 in
    /// such a model.
    Recurrence,
}

impl Role {
    /// The type of such a parameter in a model of the given type.
    pub fn dtype(self, model: DType) -> DType {
        match (self, model) {
            (Role::Recurrence, DType::F16 | DType::BF16) => DType::F32,
            _ => model,
        }
    }
}

/// A parameter that is to be made.
pub(super) struct Blank {
    pub(super) stored: String,
    /// Of the tensor in the file.
    pub(super) shape: Vec<usize>,
    /// The rows of it that this is, and their name.
    pub(super) part: Option<(&'static str, Range<usize>)>,
    pub(super) role: Role,
    pub(super) init: Init,
}

/// What a parameter is before training.
#[derive(Clone, Copy)]
pub(super) enum Init {
    Zeros,
    Ones,
    /// Normal, with this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this.
    Uniform(f64),
    /// `ln 1, ln 2, … ln n` for each channel.
    LogOfStates,
    /// Such that softplus of it is spread evenly, by its logarithm, over this range.
    StepBias {
        least: f64,
        most: f64,
    },
}

/// Makes parameters, one after the other.
pub(super) struct Maker<'a> {
    pub(super) dtype: DType,
    pub(super) device: &'a Device,
    pub(super) source: Source<'a>,
}

/// Where values come from.
pub(super) enum Source<'a> {
    /// Drawn at random; every parameter takes the next seed.
    Random { seed: u64, made: u64 },
    /// From a file: the tensor of this name, which must have this shape.
    Stored(&'a mut dyn FnMut(&str, &[usize]) -> Result<Tensor>),
}

impl Maker<'_> {
    pub(super) fn make(&mut self, blank: Blank) -> Result<Parameter> {
        let Blank { stored, shape, part, role, init } = blank;
        let mut stored_shape = shape.clone();
        if let Some((_, rows)) = &part {
            stored_shape[0] = rows.len();
        }
        let values = match &mut self.source {
            Source::Random { seed, made } => {
                *made += 1;
                init.values(&stored_shape, parameter_seed(*seed, *made))?
            }
            Source::Stored(find) => {
                let whole = find(&stored, &shape)?;
                if whole.shape() != shape {
                    let why = format!("{stored} is {:?}, expected {shape:?}", whole.shape());
                    return Err(Error::invalid("model", why));
                }
                match &part {
                    Some((_, rows)) => whole.slice(0, rows.clone())?,
                    None => whole,
                }
            }
        };
        // The middle dimension of a depthwise convolution is 1.
        let values = match stored_shape[..] {
            [d, 1, k] => values.reshape(&[d, k])?,
            _ => values,
        };
        let tensor = values.cast(role.dtype(self.dtype))?.to(self.device)?.detached().tracked();
        let name = match part {
            Some((label, _)) => format!("{stored}[{label}]"),
            None => stored.clone(),
        };
        Ok(Parameter { name, stored, stored_shape, role, tensor })
    }
}

impl Init {
    /// In f64 on the CPU, so that models of every type and on every device begin alike.
    fn values(self, shape: &[usize], seed: u64) -> taipan::Result<Tensor> {
        const CPU: Device = Device::Cpu;
        let constant = |value| Tensor::full(shape, value, DType::F64, &CPU);
        let uniform = |least: f64, most: f64| {
            let unit = Tensor::rand(shape, seed, DType::F64, &CPU)?;
            unit.scale(most - least)?.add(&constant(least)?)
        };
        match self {
            Init::Zeros => constant(0.0),
            Init::Ones => constant(1.0),
            Init::Normal(deviation) => {
                Tensor::randn(shape, seed, DType::F64, &CPU)?.scale(deviation)
            }
            Init::Uniform(bound) => uniform(-bound, bound),
            Init::LogOfStates => {
                let states = Tensor::arange(1, shape[1] as i64 + 1, DType::F64, &CPU)?;
                states.log()?.broadcast_to(shape)
            }
            // softplus⁻¹(Δ) = Δ + ln(1 − exp(−Δ))
            Init::StepBias { least, most } => {
                let step = uniform(least.ln(), most.ln())?.exp()?;
                let rest = constant(1.0)?.sub(&step.scale(-1.0)?.exp()?)?;
                step.add(&rest.log()?)
            }
        }
    }
}
