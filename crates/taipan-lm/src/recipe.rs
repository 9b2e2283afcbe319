//! How a model is trained.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};

use serde::{Deserialize, Serialize};
use taipan::optim::{Curve, Schedule};

use crate::{Activations, Error, InvalidValue, Parameter, Result, Role};

/// Everything that decides what a run computes, besides the model it begins with and the data.
///
/// ```
/// use taipan_lm::Recipe;
///
/// let recipe = Recipe { batch_size: 0, ..Recipe::default() };
/// assert_eq!(recipe.check().unwrap_err().to_string(), "recipe: batch_size is 0, expected 1 or more");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Rows of a batch.
    pub batch_size: usize,
    /// Tokens of a row.
    pub block_size: usize,
    /// Batches of a step: their gradients are added, as if they were one.
    pub grad_accum: usize,
    /// The learning rate of every step.
    #[serde(with = "ScheduleFields")]
    pub schedule: Schedule,
    /// The part of each matrix that a step takes off, times the learning rate.
    pub weight_decay: f64,
    /// The share of the old mean of gradients in the new one.
    pub beta1: f64,
    /// The same for the mean of their squares.
    pub beta2: f64,
    /// What the root of the mean of squares is increased by.
    pub eps: f64,
    /// The norm of all gradients that they are scaled down to.
    pub grad_clip: Option<f64>,
    /// What the order of the data follows from.
    pub seed: u64,
    /// Patterns of names of parameters that stay as they are; `*` stands for anything.
    pub freeze: Vec<String>,
    /// What layers keep for backward: memory or time, never the result.
    #[serde(with = "ActivationsNames")]
    pub activations: Activations,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Schedule", deny_unknown_fields)]
struct ScheduleFields {
    peak: f64,
    min: f64,
    warmup: u64,
    total: u64,
    #[serde(with = "CurveNames")]
    curve: Curve,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Curve", rename_all = "snake_case", deny_unknown_fields)]
enum CurveNames {
    Constant,
    Cosine,
    StableDecay { decay: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Activations", rename_all = "snake_case")]
enum ActivationsNames {
    Kept,
    Recomputed,
}

/// What the paper trains with, for a short run.
impl Default for Recipe {
    fn default() -> Self {
        let curve = Curve::Cosine;
        Recipe {
            batch_size: 8,
            block_size: 256,
            grad_accum: 1,
            schedule: Schedule { peak: 2e-3, min: 2e-4, warmup: 50, total: 1000, curve },
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            grad_clip: Some(1.0),
            seed: 0,
            freeze: Vec::new(),
            activations: Activations::Kept,
        }
    }
}

impl Recipe {
    /// Tokens of a step.
    pub fn tokens(&self) -> usize {
        self.batch_size * self.block_size * self.grad_accum
    }

    /// An error unless every field has a value that it can have.
    pub fn check(&self) -> std::result::Result<(), InvalidValue> {
        fn within<T: PartialOrd + Display>(
            name: &'static str,
            value: T,
            range: impl RangeBounds<T>,
        ) -> std::result::Result<(), InvalidValue> {
            InvalidValue::check("recipe", name, value, range)
        }
        let positive = (Bound::Excluded(0.0), Bound::Excluded(f64::INFINITY));
        let Recipe { batch_size, block_size, grad_accum, .. } = *self;
        within("batch_size", batch_size, 1..)?;
        within("block_size", block_size, 1..)?;
        within("grad_accum", grad_accum, 1..)?;
        let tokens = batch_size.saturating_mul(block_size).saturating_mul(grad_accum);
        within("batch_size × block_size × grad_accum", tokens, 1..=1 << 31)?;
        let Schedule { peak, min, warmup, total, curve } = self.schedule;
        within("schedule.peak", peak, positive)?;
        within("schedule.min", min, 0.0..=peak)?;
        // So that the number of a batch does not overflow.
        within("schedule.total", total, 1..=1 << 40)?;
        within("schedule.warmup", warmup, 0..=total)?;
        if let Curve::StableDecay { decay } = curve {
            within("schedule.decay", decay, 0..=total - warmup)?;
        }
        within("weight_decay", self.weight_decay, 0.0..f64::INFINITY)?;
        within("beta1", self.beta1, 0.0..1.0)?;
        within("beta2", self.beta2, 0.0..1.0)?;
        within("eps", self.eps, positive)?;
        self.grad_clip.map_or(Ok(()), |norm| within("grad_clip", norm, positive))
    }

    /// An error unless a run by `self` can go on by `other`: with a longer or shorter schedule, and with more or
    /// less memory, but with nothing else.
    pub(crate) fn check_continuation(&self, other: &Recipe) -> Result<()> {
        let curve = match (self.schedule.curve, other.schedule.curve) {
            (Curve::StableDecay { .. }, Curve::StableDecay { decay }) => {
                Curve::StableDecay { decay }
            }
            (curve, _) => curve,
        };
        let continued = Recipe {
            schedule: Schedule { total: other.schedule.total, curve, ..self.schedule },
            activations: other.activations,
            ..self.clone()
        };
        let [before, after] =
            [&continued, other].map(|recipe| match serde_json::to_value(recipe) {
                Ok(serde_json::Value::Object(settings)) => settings,
                _ => unreachable!("a struct of numbers and strings is a map"),
            });
        match before.iter().find(|(name, value)| after[*name] != **value) {
            None => Ok(()),
            Some((name, value)) => {
                let why = format!(
                    "{name} is {}, but the run began with {value}; to go on, only the length of the schedule and \
                     activations may change",
                    after[name]
                );
                Err(Error::invalid("recipe", why))
            }
        }
    }

    /// Whether a parameter stays as it is.
    pub(crate) fn freezes(&self, parameter: &Parameter) -> bool {
        self.freeze.iter().any(|pattern| fits(pattern, parameter))
    }

    /// An error unless every pattern of `freeze` fits a parameter.
    pub(crate) fn check_freeze(&self, parameters: &[&Parameter]) -> Result<()> {
        let fits_none =
            |pattern: &&String| !parameters.iter().any(|parameter| fits(pattern, parameter));
        match self.freeze.iter().find(fits_none) {
            None => Ok(()),
            Some(pattern) => {
                let (first, last) = (parameters.first(), parameters.last());
                let names: Vec<_> = first.into_iter().chain(last).map(|p| &*p.name).collect();
                let why = format!(
                    "freeze has {pattern:?}, which fits no parameter, expected names like {}",
                    names.join(" or ")
                );
                Err(Error::invalid("recipe", why))
            }
        }
    }

    /// The weight decay of a parameter.
    pub(crate) fn decay_of(&self, parameter: &Parameter) -> f64 {
        if parameter.role == Role::Matrix { self.weight_decay } else { 0.0 }
    }
}

fn fits(pattern: &str, parameter: &Parameter) -> bool {
    matches(pattern, &parameter.stored) || matches(pattern, &parameter.name)
}

/// Whether `name` is `pattern`, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, behind)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().any(|(i, _)| matches(behind, &rest[i..])) || matches(behind, "")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name) in [
            ("a.b", "a.b"),
            ("*", ""),
            ("*", "a.b"),
            ("a*", "a"),
            ("*b", "a.b"),
            ("a*c*e", "abcde"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("b", "ab"), ("a*c", "ab"), ("*a", "ab"), ("", "a")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let error = |change: fn(&mut Recipe)| {
            let mut recipe = Recipe::default();
            change(&mut recipe);
            recipe.check().unwrap_err().to_string()
        };
        Recipe::default().check().unwrap();
        for (found, expected) in [
            (error(|r| r.block_size = 0), "block_size is 0, expected 1 or more"),
            (error(|r| r.grad_accum = 0), "grad_accum is 0, expected 1 or more"),
            (
                error(|r| r.schedule.peak = f64::NAN),
                "schedule.peak is NaN, expected above 0 and below inf",
            ),
            (error(|r| r.schedule.min = 1.0), "schedule.min is 1, expected 0 to 0.002"),
            (error(|r| r.schedule.total = 0), "schedule.total is 0, expected 1 to 1099511627776"),
            (error(|r| r.schedule.warmup = 1001), "schedule.warmup is 1001, expected 0 to 1000"),
            (
                error(|r| r.schedule.curve = Curve::StableDecay { decay: 1001 }),
                "schedule.decay is 1001, expected 0 to 950",
            ),
            (
                error(|r| r.weight_decay = -0.1),
                "weight_decay is -0.1, expected at least 0 and below inf",
            ),
            (error(|r| r.beta1 = 1.0), "beta1 is 1, expected at least 0 and below 1"),
            (error(|r| r.beta2 = -0.5), "beta2 is -0.5, expected at least 0 and below 1"),
            (error(|r| r.eps = 0.0), "eps is 0, expected above 0 and below inf"),
            (error(|r| r.grad_clip = Some(0.0)), "grad_clip is 0, expected above 0 and below inf"),
            (
                error(|r| r.batch_size = 1 << 24),
                "batch_size × block_size × grad_accum is 4294967296, expected 1 to 2147483648",
            ),
        ] {
            assert_eq!(found, format!("recipe: {expected}"));
        }
    }

    #[test]
    fn a_recipe_is_stored_to_the_bit() {
        let curve = Curve::StableDecay { decay: 7 };
        let recipe = Recipe {
            schedule: Schedule { peak: 0.1 + 0.2, min: 1e-300, warmup: 3, total: 9, curve },
            grad_clip: None,
            freeze: vec!["*".into()],
            activations: Activations::Recomputed,
            ..Recipe::default()
        };
        let json = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&json).unwrap(), recipe);
        let unknown = json.replace("\"seed\"", "\"sead\"");
        let error = serde_json::from_str::<Recipe>(&unknown).unwrap_err().to_string();
        assert!(error.starts_with("unknown field `sead`"), "{error}");
    }

    #[test]
    fn a_run_goes_on_with_what_decides_its_result() {
        let recipe = Recipe::default();
        let longer = Schedule { total: 2000, ..recipe.schedule };
        let activations = Activations::Recomputed;
        let other = Recipe { schedule: longer, activations, ..recipe.clone() };
        recipe.check_continuation(&other).unwrap();
        let other = Recipe { batch_size: 9, ..recipe.clone() };
        assert_eq!(
            recipe.check_continuation(&other).unwrap_err().to_string(),
            "recipe: batch_size is 9, but the run began with 8; to go on, only the length of the schedule and \
             activations may change"
        );
        let warmer = Schedule { peak: 1.0, ..recipe.schedule };
        let other = Recipe { schedule: warmer, ..recipe.clone() };
        let error = recipe.check_continuation(&other).unwrap_err().to_string();
        assert!(error.starts_with("recipe: schedule is {"), "{error}");
        let [stable, longer] =
            [7, 9].map(|decay| Schedule { curve: Curve::StableDecay { decay }, ..recipe.schedule });
        let [stable, longer] =
            [stable, longer].map(|schedule| Recipe { schedule, ..recipe.clone() });
        stable.check_continuation(&longer).unwrap();
        recipe.check_continuation(&stable).unwrap_err();
        let other = Recipe { grad_clip: None, ..recipe.clone() };
        let error = recipe.check_continuation(&other).unwrap_err().to_string();
        assert!(
            error.starts_with("recipe: grad_clip is null, but the run began with 1.0"),
            "{error}"
        );
    }
}
