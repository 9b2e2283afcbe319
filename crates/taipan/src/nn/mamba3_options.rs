//! The sizes of Mamba-3's block.

use super::Init;
use crate::error::{Result, ensure};
use crate::ops::ssd::Ssd;

pub(super) const OP: &str = "mamba-3 block";

/// The sizes of a [`Mamba3Block`](super::Mamba3Block), and its initialisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba3Options {
    /// The width of inputs and outputs, `d`.
    pub d_model: usize,
    /// The number of channels inside, `inner`; 2·d_model.
    pub d_inner: usize,
    /// Channels of a head, `p`; 64. There are `h = inner/p` heads.
    pub head_dim: usize,
    /// Groups of heads that share B and C, `g`; 1.
    pub groups: usize,
    /// States per channel, `n`; 128.
    pub d_state: usize,
    /// Inputs and outputs of a channel, `r`: MIMO, up to [`Mamba3Options::MAX_RANKS`]. None: SISO,
    /// which has one of each, and other pairs of states that turn.
    pub ranks: Option<usize>,
    /// Pairs of states that turn, `s`; a quarter of d_state, so that half of the states do.
    pub angles: usize,
    /// The function that makes a decay of α; the heavy tail.
    pub a_activation: DecayActivation,
    /// The least decay rate; 1e-4.
    pub a_floor: f64,
    /// Whether the output of each head and rank is normed before the gate; no.
    pub use_out_norm: bool,
    /// The initialisation of Δ's bias; step sizes from 0.001 to 0.1.
    pub step_init: Init,
    /// The initialisation of `out_proj.weight`; uniform between ±1/√inner.
    pub out_init: Init,
}

/// The function `f` of Mamba-3's decay rate `−A = max(f(α), A_floor)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayActivation {
    /// `1 + α` from 0 on, `1/(1 − α)` below.
    HeavyTail,
    /// `ln(1 + e^α)`, as in earlier versions of the paper's code.
    Softplus,
}

impl Mamba3Options {
    /// The largest number of ranks.
    pub const MAX_RANKS: usize = Ssd::MAX_RANKS / 2;

    /// The paper's sizes for a width.
    pub fn new(d_model: usize) -> Mamba3Options {
        let d_inner = d_model.saturating_mul(2);
        Mamba3Options {
            d_model,
            d_inner,
            head_dim: 64,
            groups: 1,
            d_state: 128,
            ranks: None,
            angles: 32,
            a_activation: DecayActivation::HeavyTail,
            a_floor: 1e-4,
            use_out_norm: false,
            step_init: Init::StepBias { min: 1e-3, max: 0.1, floor: 1e-4 },
            out_init: Init::fan_in(d_inner),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let Mamba3Options { d_inner, head_dim, groups, d_state: n, angles, .. } = *self;
        let heads = d_inner.checked_div(head_dim).unwrap_or(0);
        let whole = heads > 0 && heads * head_dim == d_inner;
        ensure!(OP, whole, "{d_inner} channels in heads of {head_dim}, expected whole heads");
        let shared = groups > 0 && heads.is_multiple_of(groups);
        ensure!(OP, shared, "{groups} groups of {heads} heads, expected a divisor");
        let fits = angles > 0 && angles <= n / 2;
        ensure!(OP, fits, "{angles} angles of {n} states, expected 1 to one for each pair");
        if let Some(ranks) = self.ranks {
            let most = Mamba3Options::MAX_RANKS;
            ensure!(OP, (1..=most).contains(&ranks), "{ranks} ranks, expected 1 to {most}");
            ensure!(OP, n.is_multiple_of(2), "{n} states with ranks, expected an even number");
        }
        let floor = self.a_floor;
        ensure!(OP, floor >= 0.0 && floor.is_finite(), "A_floor is {floor}, expected 0 or more");
        Ok(())
    }

    pub(super) fn heads(&self) -> usize {
        self.d_inner / self.head_dim
    }

    /// The rows of `in_proj` for z, x, B, C and the rest: dt, α and τ of each head, and angles.
    pub(super) fn in_rows(&self) -> [usize; 5] {
        let bc = self.ranks.unwrap_or(1) * self.groups * self.d_state;
        [self.d_inner, self.d_inner, bc, bc, 3 * self.heads() + self.angles]
    }
}
