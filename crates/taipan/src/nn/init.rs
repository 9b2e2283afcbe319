//! The initial values of parameters.

use crate::error::Result;
use crate::tensor::Tensor;
use crate::{DType, Device};

/// How a parameter is initialised.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// All of this value.
    Constant(f64),
    /// Normal, with this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this.
    Uniform(f64),
    /// `ln 1, ln 2, … ln n` in each row: `A_log` of Mamba.
    LogArange,
    /// The logarithm of a uniform number: `A_log` of Mamba-2.
    LogOfUniform {
        /// The least number.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// Such that softplus of it is log-uniform between `min` and `max`, and at least `floor`: the
    /// bias of Mamba's step sizes.
    StepBias {
        /// The least step size.
        min: f64,
        /// The greatest.
        max: f64,
        /// What smaller ones are raised to.
        floor: f64,
    },
}

impl Init {
    /// Uniform between `±1/√inputs`: the initialisation of PyTorch's layers.
    pub fn fan_in(inputs: usize) -> Init {
        Init::Uniform(1.0 / (inputs as f64).sqrt())
    }

    /// The values, in f64 on the CPU, so that models of every dtype and device start with the same.
    pub fn values(self, shape: &[usize], seed: u64) -> Result<Tensor> {
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
                let n = shape.last().copied().unwrap_or(1);
                let states = Tensor::arange(1, n as i64 + 1, DType::F64, &CPU)?;
                states.log()?.broadcast_to(shape)
            }
            Init::LogOfUniform { min, max } => uniform(min, max)?.log(),
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

/// Makes the parameters of a new model, one after the other, each with random numbers of its own.
///
/// ```
/// use taipan::nn::{Init, Initializer};
/// use taipan::{DType, Device};
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let weight = init.parameter(&[4, 3], Init::Normal(0.02))?;
/// assert!(weight.is_tracked());
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Initializer {
    seed: u64,
    count: u64,
    dtype: DType,
    device: Device,
}

impl Initializer {
    /// For parameters of this type, on this device. The same seed gives the same model on every
    /// device; one in half precision is that of f32, rounded.
    pub fn new(seed: u64, dtype: DType, device: &Device) -> Initializer {
        Initializer { seed, count: 0, dtype, device: device.clone() }
    }

    /// A new parameter, tracked.
    pub fn parameter(&mut self, shape: &[usize], init: Init) -> Result<Tensor> {
        self.typed(shape, init, self.dtype)
    }

    /// A new parameter for which half precision is not enough: f32 in a model of f16 or bf16.
    pub fn wide_parameter(&mut self, shape: &[usize], init: Init) -> Result<Tensor> {
        self.typed(shape, init, self.dtype.wider())
    }

    fn typed(&mut self, shape: &[usize], init: Init, dtype: DType) -> Result<Tensor> {
        dtype.ensure_float("initializer", "the type of a parameter")?;
        let seed = self.next_seed();
        Ok(init.values(shape, seed)?.cast(dtype)?.to(&self.device)?.tracked())
    }

    /// Another seed with every call.
    pub(crate) fn next_seed(&mut self) -> u64 {
        self.count += 1;
        self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(self.count)
    }
}
