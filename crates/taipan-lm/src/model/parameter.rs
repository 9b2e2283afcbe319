//! The parameters of a model: their names in files, and their initialisation.

use std::ops::{Deref, Range};

use taipan::{Arena, DType, Device, Tensor};

use crate::Result;

/// One trained tensor of a model. Where a `&Tensor` is expected, it is one.
///
/// A tensor of a file may be several parameters: `in_proj.weight`, `[2·inner, d]`, is two matrices
/// in memory, since their results are used separately. These parameters follow each other, with the
/// same `stored` name, and are concatenated in the file along the first dimension.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// `backbone.layers.0.mixer.in_proj.weight[x]`: the stored name, and which of its slices this
    /// is.
    pub name: String,
    /// `backbone.layers.0.mixer.in_proj.weight`
    pub stored: String,
    /// The shape in the file, of this slice. A convolution's is `[inner, 1, k]`, and `[inner, k]`
    /// in memory.
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
    /// `A_log`, `D` or the bias of Δ: half precision is not enough for the recurrence, so that
    /// these are f32 in such a model.
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

/// What a parameter is made from.
pub(crate) struct ParameterSpec<'a> {
    pub(crate) stored: String,
    /// Of the tensor in the file.
    pub(crate) shape: &'a [usize],
    /// The rows of it that this is, and their name; all of them if there is none.
    pub(crate) rows: Option<(&'static str, Range<usize>)>,
    pub(crate) role: Role,
    pub(super) init: Init,
}

/// The initialisation of a parameter.
#[derive(Clone, Copy)]
pub(super) enum Init {
    Zeros,
    Ones,
    /// Normal, with this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this.
    Uniform(f64),
    /// `ln 1, ln 2, … ln n` for each channel.
    LogArange,
    /// All of this value.
    Constant(f64),
    /// Such that softplus of it is log-uniform between `min` and `max`, and at least `floor`.
    StepBias {
        min: f64,
        max: f64,
        floor: f64,
    },
}

/// Makes parameters, one after the other.
pub(super) struct ParameterBuilder<'a> {
    pub(super) dtype: DType,
    pub(super) device: &'a Device,
    /// Gives the values, in the shape of the slice in the file.
    pub(super) values: &'a mut dyn FnMut(&ParameterSpec) -> Result<Tensor>,
    arena: Arena,
}

impl ParameterSpec<'_> {
    /// The shape of the slice in the file.
    pub(super) fn stored_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.to_vec();
        if let Some((_, rows)) = &self.rows {
            shape[0] = rows.len();
        }
        shape
    }
}

impl<'a> ParameterBuilder<'a> {
    pub(super) fn new(
        dtype: DType,
        device: &'a Device,
        values: &'a mut dyn FnMut(&ParameterSpec) -> Result<Tensor>,
    ) -> ParameterBuilder<'a> {
        ParameterBuilder { dtype, device, values, arena: Arena::new() }
    }

    /// A parameter that is all of a stored tensor.
    pub(super) fn whole(
        &mut self,
        stored: impl Into<String>,
        shape: &[usize],
        role: Role,
        init: Init,
    ) -> Result<Parameter> {
        self.build(ParameterSpec { stored: stored.into(), shape, rows: None, role, init })
    }

    pub(super) fn build(&mut self, spec: ParameterSpec) -> Result<Parameter> {
        let (values, stored_shape) = ((self.values)(&spec)?, spec.stored_shape());
        let ParameterSpec { stored, rows, role, .. } = spec;
        // The middle dimension of a depthwise convolution is 1.
        let values = match stored_shape[..] {
            [d, 1, k] => values.reshape(&[d, k])?,
            _ => values,
        };
        let values = values.cast(role.dtype(self.dtype))?.to(self.device)?;
        let tensor = self.arena.store(&values)?.tracked();
        let name = match rows {
            Some((label, _)) => format!("{stored}[{label}]"),
            None => stored.clone(),
        };
        Ok(Parameter { name, stored, stored_shape, role, tensor })
    }
}

impl Init {
    /// In f64 on the CPU, so that models of every dtype and device start with the same values.
    pub(super) fn values(self, shape: &[usize], seed: u64) -> taipan::Result<Tensor> {
        const CPU: Device = Device::Cpu;
        let constant = |value| Tensor::full(shape, value, DType::F64, &CPU);
        let uniform = |min: f64, max: f64| {
            let unit = Tensor::rand(shape, seed, DType::F64, &CPU)?;
            unit.scale(max - min)?.add(&constant(min)?)
        };
        match self {
            Init::Zeros => constant(0.0),
            Init::Ones => constant(1.0),
            Init::Constant(value) => constant(value),
            Init::Normal(deviation) => {
                Tensor::randn(shape, seed, DType::F64, &CPU)?.scale(deviation)
            }
            Init::Uniform(bound) => uniform(-bound, bound),
            Init::LogArange => {
                let states = Tensor::arange(1, shape[1] as i64 + 1, DType::F64, &CPU)?;
                states.log()?.broadcast_to(shape)
            }
            // softplus⁻¹(Δ) = Δ + ln(1 − exp(−Δ))
            Init::StepBias { min, max, floor } => {
                let mut step = uniform(min.ln(), max.ln())?.exp()?;
                if min < floor {
                    step = step.sub(&constant(floor)?)?.relu()?.add(&constant(floor)?)?;
                }
                let rest = constant(1.0)?.sub(&step.scale(-1.0)?.exp()?)?;
                step.add(&rest.log()?)
            }
        }
    }
}
