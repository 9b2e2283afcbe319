//! What the layers of a model have.

/// The mixers of a layer, which adds the sum of what they make of `norm(r)` to the residual stream
/// `r`. Their sizes are those of the [`Config`](crate::Config), the same in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// A state-space mixer.
    Ssm,
    /// Attention.
    Attention,
    /// Both, side by side.
    Both,
}

impl LayerKind {
    /// Whether there is a state-space mixer.
    pub fn has_ssm(self) -> bool {
        self != LayerKind::Attention
    }

    /// Whether there is attention.
    pub fn has_attention(self) -> bool {
        self != LayerKind::Ssm
    }
}

/// Causal attention, with grouped heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values, each of which is read by equally many heads of queries.
    pub num_key_value_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Whether the projections have a bias.
    pub use_bias: bool,
    /// The factor of the products of queries and keys.
    pub scale: f64,
    /// The base of rotary positions; without one, attention does not know of positions.
    pub rope_theta: Option<f64>,
}

impl AttentionConfig {
    /// This many heads, which share those of keys and values, with the usual scale and without
    /// positions.
    pub fn new(num_heads: usize, num_key_value_heads: usize, head_dim: usize) -> AttentionConfig {
        AttentionConfig {
            num_heads,
            num_key_value_heads,
            head_dim,
            use_bias: false,
            scale: AttentionConfig::usual_scale(head_dim),
            rope_theta: None,
        }
    }

    /// `1/√head_dim`
    pub(super) fn usual_scale(head_dim: usize) -> f64 {
        (head_dim as f64).powf(-0.5)
    }
}

/// A gated MLP behind the mixers of every layer: `r += down(up(w) ⊙ silu(gate(w)))`, `w = norm'(r)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpConfig {
    /// The width inside.
    pub size: usize,
    /// Whether its matrices have biases.
    pub use_bias: bool,
}

/// Factors between the parts of a model, which some families have; 1 in the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Of the vectors of tokens.
    pub embedding: f64,
    /// Of the logits.
    pub logits: f64,
    /// Of what a state-space mixer reads.
    pub ssm_in: f64,
    /// Of z, x, B, C and dt, as they come from its projection.
    pub ssm: [f64; 5],
    /// Of what a state-space mixer adds to the residual stream.
    pub ssm_out: f64,
    /// Of what attention reads.
    pub attention_in: f64,
    /// Of keys.
    pub key: f64,
    /// Of what attention adds to the residual stream.
    pub attention_out: f64,
    /// Of the MLP's gate, before silu.
    pub mlp_gate: f64,
    /// Of what the MLP adds to the residual stream.
    pub mlp_out: f64,
}

impl Default for Multipliers {
    fn default() -> Self {
        Multipliers {
            embedding: 1.0,
            logits: 1.0,
            ssm_in: 1.0,
            ssm: [1.0; 5],
            ssm_out: 1.0,
            attention_in: 1.0,
            key: 1.0,
            attention_out: 1.0,
            mlp_gate: 1.0,
            mlp_out: 1.0,
        }
    }
}

impl Multipliers {
    /// All of them, by name.
    pub(super) fn named(&self) -> [(&'static str, f64); 14] {
        let [z, x, b, c, dt] = self.ssm;
        [
            ("multipliers.embedding", self.embedding),
            ("multipliers.logits", self.logits),
            ("multipliers.ssm_in", self.ssm_in),
            ("multipliers.ssm[0]", z),
            ("multipliers.ssm[1]", x),
            ("multipliers.ssm[2]", b),
            ("multipliers.ssm[3]", c),
            ("multipliers.ssm[4]", dt),
            ("multipliers.ssm_out", self.ssm_out),
            ("multipliers.attention_in", self.attention_in),
            ("multipliers.key", self.key),
            ("multipliers.attention_out", self.attention_out),
            ("multipliers.mlp_gate", self.mlp_gate),
            ("multipliers.mlp_out", self.mlp_out),
        ]
    }
}
