//! The hyper-parameters of training.

use std::ops::Bound;

use serde::{Deserialize, Serialize};
use taipan::nn::matches;
use taipan::optim::{Curve, Schedule};

use crate::{Activations, Config, Error, InvalidValue, Lora, Result, Role};

/// Its name in errors.
const OWNER: &str = "recipe";

/// Everything that determines the result of a run, besides the initial model and the data.
///
/// ```
/// use taipan_lm::Recipe;
///
/// let recipe = Recipe { batch_size: 0, ..Recipe::default() };
/// let error = recipe.check().unwrap_err();
/// assert_eq!(error.to_string(), "recipe: batch_size is 0, expected 1 or more");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Sequences per batch.
    pub batch_size: usize,
    /// Tokens per sequence.
    pub block_size: usize,
    /// Batches per step: their gradients are accumulated, as if they were one batch.
    pub grad_accum: usize,
    /// The learning rate of every step.
    #[serde(with = "ScheduleFields")]
    pub schedule: Schedule,
    /// AdamW's weight decay, of matrices only.
    pub weight_decay: f64,
    /// AdamW's decay rate of the mean gradient.
    pub beta1: f64,
    /// AdamW's decay rate of the mean squared gradient.
    pub beta2: f64,
    /// What AdamW adds to the denominator.
    pub eps: f64,
    /// The global norm that gradients are clipped to.
    pub grad_clip: Option<f64>,
    /// The seed of the order of the data.
    pub seed: u64,
    /// Patterns of names of parameters that are not trained; `*` matches anything.
    pub freeze: Vec<String>,
    /// If there are any, patterns of names of the only parameters that are trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train_only: Vec<String>,
    /// Train adapters, and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// What layers save for backward: a trade of memory for time, never the result.
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
            train_only: Vec::new(),
            lora: None,
            activations: Activations::Saved,
        }
    }
}

impl Recipe {
    /// Tokens per step.
    pub fn tokens(&self) -> usize {
        self.batch_size * self.block_size * self.grad_accum
    }

    /// An error unless every field has a value that it can have.
    pub fn check(&self) -> std::result::Result<(), InvalidValue> {
        let positive = (Bound::Excluded(0.0), Bound::Excluded(f64::INFINITY));
        let Recipe { batch_size, block_size, grad_accum, .. } = *self;
        InvalidValue::check(OWNER, "batch_size", batch_size, 1..)?;
        InvalidValue::check(OWNER, "block_size", block_size, 1..)?;
        InvalidValue::check(OWNER, "grad_accum", grad_accum, 1..)?;
        let tokens = batch_size.saturating_mul(block_size).saturating_mul(grad_accum);
        InvalidValue::check(OWNER, "batch_size × block_size × grad_accum", tokens, 1..=1 << 31)?;
        let Schedule { peak, min, warmup, total, curve } = self.schedule;
        InvalidValue::check(OWNER, "schedule.peak", peak, positive)?;
        InvalidValue::check(OWNER, "schedule.min", min, 0.0..=peak)?;
        // So that the number of a batch does not overflow.
        InvalidValue::check(OWNER, "schedule.total", total, 1..=1 << 40)?;
        InvalidValue::check(OWNER, "schedule.warmup", warmup, 0..=total)?;
        if let Curve::StableDecay { decay } = curve {
            InvalidValue::check(OWNER, "schedule.decay", decay, 0..=total - warmup)?;
        }
        InvalidValue::check(OWNER, "weight_decay", self.weight_decay, 0.0..f64::INFINITY)?;
        InvalidValue::check(OWNER, "beta1", self.beta1, 0.0..1.0)?;
        InvalidValue::check(OWNER, "beta2", self.beta2, 0.0..1.0)?;
        InvalidValue::check(OWNER, "eps", self.eps, positive)?;
        self.grad_clip
            .map_or(Ok(()), |norm| InvalidValue::check(OWNER, "grad_clip", norm, positive))?;
        self.lora.as_ref().map_or(Ok(()), Lora::check)
    }

    /// Whether a tensor of a model is trained.
    pub(crate) fn trains(&self, name: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
        let chosen = self.train_only.is_empty() || any(&self.train_only);
        self.lora.is_none() && chosen && !any(&self.freeze)
    }

    /// How many elements of a model are trained, of its type and of f32; none if all are.
    pub(crate) fn trained(&self, config: &Config) -> Option<[usize; 2]> {
        if self.train_only.is_empty() && self.freeze.is_empty() {
            return None;
        }
        let mut counts = [0; 2];
        for tensor in config.tensors().into_iter().filter(|tensor| self.trains(&tensor.name)) {
            let is_wide = tensor.role == Role::Recurrence;
            counts[usize::from(is_wide)] += tensor.shape.iter().product::<usize>();
        }
        Some(counts)
    }

    /// The final learning rate that suits a peak: a tenth of it, without the noise of binary
    /// fractions.
    ///
    /// ```
    /// assert_ne!(0.003 / 10.0, 0.0003);
    /// assert_eq!(taipan_lm::Recipe::min_lr(0.003), 0.0003);
    /// ```
    pub fn min_lr(peak: f64) -> f64 {
        // The parser that a page has anyway: the standard library's has 10 kB of tables. JSON has
        // no infinite numbers, which are not rounded.
        serde_json::from_str(&format!("{:.14e}", peak / 10.0)).unwrap_or(peak / 10.0)
    }

    /// This recipe with what `other` may change when a run is resumed: the length of the schedule,
    /// and the activations.
    pub fn continued(&self, other: &Recipe) -> Recipe {
        let curve = match (self.schedule.curve, other.schedule.curve) {
            (Curve::StableDecay { .. }, curve @ Curve::StableDecay { .. }) => curve,
            (curve, _) => curve,
        };
        Recipe {
            schedule: Schedule { total: other.schedule.total, curve, ..self.schedule },
            activations: other.activations,
            ..self.clone()
        }
    }

    /// An error unless a run of this recipe can be [continued](Recipe::continued) with `other`.
    pub(crate) fn check_continuation(&self, other: &Recipe) -> Result<()> {
        let [before, after] = [&self.continued(other), other]
            .map(|recipe| serde_json::to_value(recipe).expect("numbers and strings"));
        let names = [&before, &after].map(|recipe| recipe.as_object().into_iter().flatten());
        let mut names = names.into_iter().flatten().map(|(name, _)| name);
        let Some(name) = names.find(|name| before[*name] != after[*name]) else {
            return Ok(());
        };
        let why = format!("{name} is {}, but the run began with {}", after[name], before[name]);
        let only = "when it is resumed, only the length of the schedule and activations may change";
        Err(Error::invalid(OWNER, format!("{why}; {only}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_refused_by_name() {
        Recipe::default().check().unwrap();
        type Change = fn(&mut Recipe);
        let cases: [(Change, &str); 13] = [
            (|r| r.block_size = 0, "block_size is 0, expected 1 or more"),
            (|r| r.grad_accum = 0, "grad_accum is 0, expected 1 or more"),
            (|r| r.schedule.peak = f64::NAN, "schedule.peak is NaN, expected a positive number"),
            (|r| r.schedule.min = 1.0, "schedule.min is 1, expected 0 to 0.002"),
            (|r| r.schedule.total = 0, "schedule.total is 0, expected 1 to 1099511627776"),
            (|r| r.schedule.warmup = 1001, "schedule.warmup is 1001, expected 0 to 1000"),
            (
                |r| r.schedule.curve = Curve::StableDecay { decay: 1001 },
                "schedule.decay is 1001, expected 0 to 950",
            ),
            (
                |r| r.weight_decay = -0.1,
                "weight_decay is -0.1, expected a finite number of 0 or more",
            ),
            (|r| r.beta1 = 1.0, "beta1 is 1, expected at least 0 and below 1"),
            (|r| r.beta2 = -0.5, "beta2 is -0.5, expected at least 0 and below 1"),
            (|r| r.eps = 0.0, "eps is 0, expected a positive number"),
            (|r| r.grad_clip = Some(0.0), "grad_clip is 0, expected a positive number"),
            (
                |r| r.batch_size = 1 << 24,
                "batch_size × block_size × grad_accum is 4294967296, expected 1 to 2147483648",
            ),
        ];
        for (change, expected) in cases {
            let mut recipe = Recipe::default();
            change(&mut recipe);
            assert_eq!(recipe.check().unwrap_err().to_string(), format!("recipe: {expected}"));
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
    fn only_what_does_not_change_the_result_may_differ_on_resume() {
        let recipe = Recipe::default();
        let longer = Schedule { total: 2000, ..recipe.schedule };
        let activations = Activations::Recomputed;
        let other = Recipe { schedule: longer, activations, ..recipe.clone() };
        recipe.check_continuation(&other).unwrap();
        let other = Recipe { batch_size: 9, ..recipe.clone() };
        assert_eq!(
            recipe.check_continuation(&other).unwrap_err().to_string(),
            "recipe: batch_size is 9, but the run began with 8; when it is resumed, only the \
             length of the schedule and activations may change"
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
