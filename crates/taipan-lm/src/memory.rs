//! The memory that training takes, and running a model.

use taipan::DType;

use crate::{Activations, AttentionConfig, Config, LayerKind, MlpConfig, Recipe, Role, Ssm};

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
    /// Their gradients, and with more than one batch per step sums of these.
    pub gradients: u64,
    /// Two moments of each parameter, and its master copy if it is of half precision.
    pub optimizer: u64,
    /// What backward needs of a batch besides gradients of parameters.
    pub activations: u64,
}

impl Memory {
    /// That of training such a model: what the recipe freezes has no gradients and no moments.
    pub fn of_training(config: &Config, dtype: DType, recipe: &Recipe) -> Memory {
        Memory::of_ranks(config, dtype, recipe, 1)
    }

    /// That of each of several processes that [train together](crate::Trainer::join): each has its
    /// share of the moments and of a step's batches.
    ///
    /// ```
    /// use taipan::DType;
    /// use taipan_lm::{Memory, Preset, Recipe};
    ///
    /// let config = Preset::M130.config(50280);
    /// let recipe = Recipe { grad_accum: 8, ..Recipe::default() };
    /// let of = |ranks| Memory::of_ranks(&config, DType::F32, &recipe, ranks);
    /// assert_eq!(of(1).optimizer, 8 * of(8).optimizer);
    /// ```
    pub fn of_ranks(config: &Config, dtype: DType, recipe: &Recipe, ranks: usize) -> Memory {
        // In f64, since a product of nonsensical sizes must be large, not wrong.
        let size = |dtype: DType| dtype.size() as f64;
        let small = size(dtype);
        let wide = size(Role::Recurrence.dtype(dtype));
        let d = config.hidden_size as f64;
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
        // Partial sums, see `train/tree.rs`; and, of other processes, what they send.
        let own = recipe.grad_accum.div_ceil(ranks);
        let partial = own.next_power_of_two().ilog2() + u32::from(ranks > 1);
        let sums = f64::from(partial) * wide * (others + recurrence);

        let stream = if config.residual_in_fp32 { wide } else { small } * d;
        let layers = Layers { config, stream, sizes: [small, wide], length: recipe.block_size };
        // The gradients of what a layer computes, and the two ends of the model.
        let work = layers.most(Bytes::gradients) + 4.0 * wide * d;
        let saved = match recipe.activations {
            Activations::Saved => layers.sum(Bytes::saved),
            Activations::Recomputed => {
                config.layers.len() as f64 * (stream + small * d) + layers.most(Bytes::saved)
            }
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
            optimizer: ((moments + masters) / ranks as f64) as u64,
            activations: (tokens * (saved + work) + logits).max(uses) as u64,
        }
    }

    /// That of running such a model on `batch_size` texts at once: of each its state, before and
    /// after a token, and of a prompt 256 tokens at a time. Attention also keeps the keys and values
    /// of all tokens, which are not in it: see [`of_tokens`](Memory::of_tokens).
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
        // Besides the states: those of the convolution, or what Mamba-3 remembers of the last step.
        let (keys, last) = match config.ssm {
            Ssm::Mamba { .. } | Ssm::Mamba2 { .. } => (0.0, mixed * (k - 1.0) * small),
            Ssm::Mamba3(mamba3) => {
                let heads = inner / mamba3.head_dim as f64;
                let (keys, turns) =
                    (mamba3.ranks() as f64 * heads * n, mamba3.angles(config.state_size));
                (keys, (inner + keys) * small + heads * turns as f64 * wide)
            }
        };
        let layer = inner * n * wide + last;
        let with_ssm = config.layers.iter().filter(|layer| layer.has_ssm()).count();
        let state = with_ssm as f64 * layer;
        // Of a layer: the residual stream and its norm; x, z, Δ and y, and keys by head, or gate, up
        // and their product. Behind the last: logits.
        let hidden = config.mlp.map_or(0.0, |mlp| mlp.size as f64);
        let mixer = 6.0 * inner + 4.0 * keys;
        let token = 2.0 * (wide + small) * d + small * mixer.max(4.0 * hidden);
        let logits = config.vocab_size as f64 * (small + wide);
        let text = 2.0 * state + 256.0 * token + logits;
        let activations = (batch_size as f64 * text) as u64;
        Memory { weights, gradients: 0, optimizer: 0, activations }
    }

    /// The bytes that a text of so many tokens adds to running a model of this shape: the keys and
    /// values of attention, with the half that a cache may have of room for more.
    ///
    /// ```
    /// use taipan::DType;
    /// use taipan_lm::{Memory, Preset};
    ///
    /// assert_eq!(Memory::of_tokens(&Preset::M130.config(50280), DType::F32, 1000), 0);
    /// ```
    pub fn of_tokens(config: &Config, dtype: DType, tokens: u64) -> u64 {
        let Some(AttentionConfig { num_key_value_heads, head_dim, .. }) = config.attention else {
            return 0;
        };
        let layers = config.layers.iter().filter(|layer| layer.has_attention()).count() as f64;
        let token = 2.0 * (num_key_value_heads * head_dim * dtype.size()) as f64;
        (1.5 * layers * token * tokens as f64) as u64
    }

    /// All of it, and half of the gradients and activations once more, for buffers that wait to be used
    /// again.
    pub fn total(&self) -> u64 {
        let Memory { weights, gradients, optimizer, activations } = *self;
        let idle = gradients.saturating_add(activations) / 2;
        let parts = [weights, gradients, optimizer, activations, idle];
        parts.into_iter().fold(0u64, u64::saturating_add)
    }
}

/// The layers of a model that is trained.
struct Layers<'a> {
    config: &'a Config,
    /// Bytes of a token in the residual stream.
    stream: f64,
    /// Of elements of the model's type, and of sums.
    sizes: [f64; 2],
    /// Tokens of a sequence.
    length: usize,
}

/// Bytes per token.
#[derive(Clone, Copy, Default)]
struct Bytes {
    /// That backward needs.
    saved: f64,
    /// Of the gradients of what is computed, of which no more than half are there at a time.
    gradients: f64,
}

impl Bytes {
    fn saved(self) -> f64 {
        self.saved
    }

    fn gradients(self) -> f64 {
        self.gradients
    }
}

impl Layers<'_> {
    fn sum(&self, bytes: fn(Bytes) -> f64) -> f64 {
        self.kinds().map(|(count, layer)| count * bytes(layer)).iter().sum()
    }

    fn most(&self, bytes: fn(Bytes) -> f64) -> f64 {
        let kinds = self.kinds().into_iter().filter(|(count, _)| *count > 0.0);
        kinds.map(|(_, layer)| bytes(layer)).fold(0.0, f64::max)
    }

    /// How many layers there are of each kind.
    fn kinds(&self) -> [(f64, Bytes); 3] {
        [LayerKind::Ssm, LayerKind::Attention, LayerKind::Both].map(|kind| {
            let count = self.config.layers.iter().filter(|layer| **layer == kind).count();
            (count as f64, self.layer(kind))
        })
    }

    fn layer(&self, kind: LayerKind) -> Bytes {
        let [small, _] = self.sizes;
        let normed = self.stream + small * self.config.hidden_size as f64;
        let mixers = [
            kind.has_ssm().then(|| self.ssm()),
            self.config.attention.filter(|_| kind.has_attention()).map(|of| self.attention(of)),
        ];
        // The residual stream; its norm; what the mixers save; the same of an MLP.
        let mut all = Bytes { saved: normed, gradients: 0.0 };
        for mixer in mixers.into_iter().flatten() {
            all.saved += mixer.saved;
            all.gradients = all.gradients.max(mixer.gradients);
        }
        if let Some(MlpConfig { size, .. }) = self.config.mlp {
            let hidden = small * size as f64;
            // Gate, up and their product.
            all.saved += normed + 3.0 * hidden;
            all.gradients = all.gradients.max(3.0 * hidden);
        }
        all
    }

    fn attention(&self, attention: AttentionConfig) -> Bytes {
        let AttentionConfig { num_heads, num_key_value_heads, head_dim, .. } = attention;
        let ([small, wide], heads) = (self.sizes, num_heads as f64);
        let [q, k] = [num_heads, num_key_value_heads].map(|heads| (heads * head_dim) as f64);
        // Queries and keys, before and after they are turned, values, the result; a sum for each
        // query.
        let saved = small * (3.0 * q + 3.0 * k) + wide * heads;
        Bytes { saved, gradients: small * (2.0 * q + 2.0 * k) }
    }

    fn ssm(&self) -> Bytes {
        let (config, [small, wide]) = (self.config, self.sizes);
        let [inner, n] = [config.inner_size(), config.state_size].map(|size| size as f64);
        let chunks = |steps| self.length.div_ceil(steps) as f64 / self.length.max(1) as f64;
        match config.ssm {
            Ssm::Mamba { time_step_rank, .. } => {
                // x, before and after the convolution, z, Δ and y; dt, B and C; the states before
                // each chunk.
                let saved = small * (5.0 * inner + time_step_rank as f64 + 2.0 * n);
                let saved = saved + wide * n * inner * chunks(16);
                Bytes { saved, gradients: 5.0 * small * inner }
            }
            Ssm::Mamba2 { head_dim, .. } => {
                let (heads, mixed) = (inner / head_dim as f64, config.conv_channels() as f64);
                // z, y and its norm; x, B and C, before and after the convolution and apart; dt, Δ
                // and the decay; the states before each chunk.
                let saved = small * (3.0 * inner + 3.0 * mixed + heads) + 3.0 * wide * heads;
                let saved = saved + wide * n * inner * chunks(64);
                Bytes { saved, gradients: small * (3.0 * inner + 2.0 * mixed) }
            }
            Ssm::Mamba3(mamba3) => {
                let (heads, r) = (inner / mamba3.head_dim as f64, mamba3.ranks() as f64);
                let (keys, bc) = (r * heads * n, r * mamba3.n_groups as f64 * n);
                let angles = mamba3.angles(config.state_size) as f64;
                // x, z and the result; with ranks, those of x and z, y and its gate, or else y.
                let by_rank = if mamba3.mimo_rank.is_some() { 4.0 * r * inner } else { inner };
                // B and C; k and q of each head; dt and all that follows from it; angles; the
                // states before each chunk.
                let saved = small * (3.0 * inner + by_rank + 2.0 * bc + 2.0 * keys);
                let saved = saved + wide * (heads * (12.0 + angles) + angles);
                let saved = saved + wide * n * inner * chunks((64 / mamba3.ranks()).max(1));
                Bytes { saved, gradients: small * (3.0 * inner + by_rank + 4.0 * keys) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_keeps_masters_and_moments_in_f32() {
        let config = Config { layers: vec![LayerKind::Ssm], ..Config::default() };
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
            layers: vec![LayerKind::Ssm; most],
            expand: 1,
            ..Config::default()
        };
        let recipe = Recipe { batch_size: most, block_size: most, ..Recipe::default() };
        assert_eq!(Memory::of_training(&config, DType::F32, &recipe).total(), u64::MAX);
    }
}
