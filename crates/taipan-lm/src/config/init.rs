//! How the weights of a new model are drawn.

use super::OWNER;
use super::keys::{Keys, invalid};
use crate::InvalidValue;

/// How the weights of a new model are drawn, as far as it can be chosen: `Δ = softplus(W·dt + b)`
/// at the start. A model that is loaded does not use it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Initialization {
    /// Softplus of the bias of Δ is log-uniform between this and `time_step_max`,
    pub time_step_min: f64,
    /// and
    pub time_step_max: f64,
    /// at least this.
    pub time_step_floor: f64,
    /// Times `time_step_rank^-½`, the magnitude of the weights of Δ.
    pub time_step_scale: f64,
    /// How the weights of Δ are drawn.
    pub time_step_init_scheme: TimeStepInit,
    /// The standard deviation of the embedding, and of an untied head. 0.02 as in the paper's code,
    /// where Hugging Face's default is 0.1.
    pub initializer_range: f64,
}

/// The weights of Δ in a new model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeStepInit {
    /// Uniform between minus and plus the magnitude.
    Random,
    /// All of the magnitude.
    Constant,
}

impl Default for Initialization {
    fn default() -> Self {
        Initialization {
            time_step_min: 1e-3,
            time_step_max: 0.1,
            time_step_floor: 1e-4,
            time_step_scale: 1.0,
            time_step_init_scheme: TimeStepInit::Random,
            initializer_range: 0.02,
        }
    }
}

impl Initialization {
    /// With the least and the greatest step size and its floor, as far as these keys say them.
    pub(super) fn with_time_steps(
        self,
        keys: &mut Keys,
        [min, max, floor]: [&'static str; 3],
    ) -> crate::Result<Initialization> {
        Ok(Initialization {
            time_step_min: keys.get_or(min, self.time_step_min)?,
            time_step_max: keys.get_or(max, self.time_step_max)?,
            time_step_floor: keys.get_or(floor, self.time_step_floor)?,
            ..self
        })
    }

    /// An error unless weights can be drawn so.
    pub fn check(&self) -> Result<(), InvalidValue> {
        let (least, most) = (f64::MIN_POSITIVE, 1e3);
        for (name, value, range) in [
            ("time_step_min", self.time_step_min, least..=most),
            ("time_step_max", self.time_step_max, self.time_step_min..=most),
            ("time_step_floor", self.time_step_floor, least..=most),
            ("time_step_scale", self.time_step_scale, 0.0..=most),
            ("initializer_range", self.initializer_range, 0.0..=most),
        ] {
            InvalidValue::check(OWNER, name, value, range)?;
        }
        Ok(())
    }
}

impl TimeStepInit {
    /// As files call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            TimeStepInit::Random => "random",
            TimeStepInit::Constant => "constant",
        }
    }

    pub(super) fn read(keys: &mut Keys, key: &'static str) -> crate::Result<TimeStepInit> {
        match keys.raw(key) {
            None | Some("\"random\"") => Ok(TimeStepInit::Random),
            Some("\"constant\"") => Ok(TimeStepInit::Constant),
            Some(found) => Err(invalid(key, found, "\"random\" or \"constant\"").into()),
        }
    }
}
