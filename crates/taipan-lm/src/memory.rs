//! The memory that training takes, and running a model.

use taipan::DType;

use crate::{Activations, Config, Recipe, Role, Ssm};

/// An estimate of what a run takes, in bytes: more than it has at any time, by up to a half.
///
/// ```
/// use taipan::DType;
/// use taipan_lm::{Memory, Preset, Recipe};
///
/// let recipe = Recipe { batch_size: 8, block_size: 2048, ..Recipe::default() };
/// let memory = Memory::of_training(&Preset::M130.config(50280), DType::F32, &recipe);
/// assert_eq!(memory.weights, 4 * 129_135_360);
/// assert!(memory.total() > 16 << 30, "8 sequences of 2048 tokens do not fit a laptop");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The parameters.
    pub weights: u64,
    /// Their gradients, and with more than one batch per step the sums of these.
    pub gradients: u64,
    /// Two moments of each parameter, and its master copy if it is of half precision.
    pub optimizer: u64,
    /// What backward needs of a batch besides gradients of parameters.
    pub activations: u64,
}

impl Memory {
    /// That of training such a model: what the recipe freezes has no gradients and no moments.
    pub fn of_training(config: &Config, dtype: DType, recipe: &Recipe) -> Memory {
        // In f64, since a product of nonsensical sizes must be large, not wrong.
        let size = |dtype: DType| dtype.size() as f64;
        let small = size(dtype);
        let wide = size(Role::Recurrence.dtype(dtype));
        let [d, layers] = [config.hidden_size, config.num_hidden_layers].map(|size| size as f64);
        let recurrence = config.parameters_of(Role::Recurrence) as f64;
        let others = config.parameters() as f64 - recurrence;
        let adapters = recipe.lora.as_ref().map_or(0, |lora| lora.parameters(config)) as f64;
        let stored = others * small + (recurrence + adapters) * wide;
        // What is trained, in the model's type and in f32.
        let [others, recurrence] = match &recipe.lora {
            Some(_) => [0.0, adapters],
            None => recipe
                .trained(config)
                .map_or([others, recurrence], |trained| trained.map(|count| count as f64)),
        };
        let gradients = others * small + recurrence * wide;
        let moments = 2.0 * wide * (others + recurrence);
        let masters = if small < wide { wide * others } else { 0.0 };
        let sums = if recipe.grad_accum > 1 { wide * (others + recurrence) } else { 0.0 };

        let stream = if config.residual_in_fp32 { wide } else { small } * d;
        let (mixer, mixer_gradients) = mixer(config, [small, wide], recipe.block_size);
        // Per token: the residual stream; its norm; what the mixer saves.
        let layer = stream + small * d + mixer;
        // The gradients of what a layer computes, and the two ends of the model.
        let work = mixer_gradients + 4.0 * wide * d;
        let saved = match recipe.activations {
            Activations::Saved => layers * layer,
            Activations::Recomputed => layers * (stream + small * d) + layer,
        };
        // In the end, when no activations are left, the gradients of the two uses of a tied table
        // and their sum.
        let table = config.vocab_size as f64 * d * small;
        let is_twice = config.tie_word_embeddings && recipe.trains(&config.embeddings());
        let uses = if is_twice { 2.0 * table } else { 0.0 };
        let tokens = recipe.batch_size as f64 * recipe.block_size as f64;
        // The blocks that the loss is computed in, see `taipan::linear_cross_entropy`.
        let columns = (config.vocab_size as f64).min((2097152.0 / tokens).clamp(256.0, 4096.0));
        let logits = 2.0 * wide * tokens * columns;
        Memory {
            weights: stored as u64,
            gradients: (gradients + sums) as u64,
            optimizer: (moments + masters) as u64,
            activations: (tokens * (saved + work) + logits).max(uses) as u64,
        }
    }

    /// That of running such a model on `batch_size` texts at once, however long they are: of each
    /// its state, before and after a token, and of a prompt 256 tokens at a time.
    ///
    /// ```
    /// use taipan::DType;
    /// use taipan_lm::{Memory, Preset};
    ///
    /// let memory = Memory::of_running(&Preset::M130.config(50280), DType::BF16, 1);
    /// assert!(memory.weights < 262 << 20 && memory.total() < 380 << 20);
    /// ```
    pub fn of_running(config: &Config, dtype: DType, batch_size: usize) -> Memory {
        let Memory { weights, .. } = Memory::of_training(config, dtype, &Recipe::default());
        let [small, wide] = [dtype, Role::Recurrence.dtype(dtype)].map(|dtype| dtype.size() as f64);
        let [d, inner, mixed] = [config.hidden_size, config.inner_size(), config.conv_channels()]
            .map(|size| size as f64);
        let [n, k] = [config.state_size, config.conv_kernel].map(|size| size as f64);
        let layer = inner * n * wide + mixed * (k - 1.0) * small;
        let state = config.num_hidden_layers as f64 * layer;
        // Of a layer: the residual stream and its norm; x, z, Δ and y. Behind the last: logits.
        let token = 2.0 * (wide + small) * d + 6.0 * small * inner;
        let logits = config.vocab_size as f64 * (small + wide);
        let text = 2.0 * state + 256.0 * token + logits;
        let activations = (batch_size as f64 * text) as u64;
        Memory { weights, gradients: 0, optimizer: 0, activations }
    }

    /// All of it, with the quarter that buffers waiting to be used again may take.
    pub fn total(&self) -> u64 {
        let Memory { weights, gradients, optimizer, activations } = *self;
        let parts = [weights, gradients, optimizer, activations];
        let used = parts.into_iter().fold(0u64, u64::saturating_add);
        used.saturating_add(used / 4)
    }
}

/// Bytes per token that backward needs of a mixer, and of the gradients of what it computes, of
/// which no more than half are there at a time; in types of these sizes.
fn mixer(config: &Config, [small, wide]: [f64; 2], length: usize) -> (f64, f64) {
    let [inner, n] = [config.inner_size(), config.state_size].map(|size| size as f64);
    match config.ssm {
        Ssm::Mamba { time_step_rank, .. } => {
            let chunks = length.div_ceil(16) as f64 / length.max(1) as f64;
            // x, before and after the convolution, z, Δ and y; dt, B and C; the states before each
            // chunk.
            let saved = small * (5.0 * inner + time_step_rank as f64 + 2.0 * n);
            (saved + wide * n * inner * chunks, 5.0 * small * inner)
        }
        Ssm::Mamba2 { head_dim, .. } => {
            let (heads, mixed) = (inner / head_dim as f64, config.conv_channels() as f64);
            let chunks = length.div_ceil(64) as f64 / length.max(1) as f64;
            // z, y and its norm; x, B and C, before and after the convolution and apart; dt, Δ and
            // the decay; the states before each chunk.
            let saved = small * (3.0 * inner + 3.0 * mixed + heads) + 3.0 * wide * heads;
            (saved + wide * n * inner * chunks, small * (3.0 * inner + 2.0 * mixed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_keeps_masters_and_moments_in_f32() {
        let config = Config { num_hidden_layers: 1, ..Config::default() };
        let of = |dtype| Memory::of_training(&config, dtype, &Recipe::default());
        let (single, half) = (of(DType::F32), of(DType::BF16));
        let recurrence = 1536 * 18;
        let all = config.parameters() as u64;
        assert_eq!(half.weights, 2 * all + 2 * recurrence);
        assert_eq!(single.optimizer, 8 * all);
        assert_eq!(half.optimizer, 12 * all - 4 * recurrence);
    }

    #[test]
    fn no_size_is_too_large_to_be_estimated() {
        let most = 1 << 18;
        let config = Config {
            vocab_size: most,
            hidden_size: most,
            num_hidden_layers: most,
            expand: 1,
            ..Config::default()
        };
        let recipe = Recipe { batch_size: most, block_size: most, ..Recipe::default() };
        assert_eq!(Memory::of_training(&config, DType::F32, &recipe).total(), u64::MAX);
    }
}
