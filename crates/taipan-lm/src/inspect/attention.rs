//! The views of attention, and the map of which token draws on which.

/// How much tokens contribute to the outputs at others: see [`AttentionInspection::attention`] and
/// [`ScanInspection::hidden_attention`](super::ScanInspection::hidden_attention).
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The first token of the text that it is about.
    pub first: usize,
    /// The number of tokens.
    pub len: usize,
    /// `[len, len]`: how much token `first + s` contributes to the output at token `first + t`.
    /// Zero for `s > t`.
    pub values: Vec<f64>,
}

impl Attention {
    /// Of a longer text the last tokens are shown.
    pub const MAX_TOKENS: usize = 128;

    /// Zeros, for the last of `l` tokens.
    pub(super) fn of_last(l: usize) -> Attention {
        let first = l.saturating_sub(Attention::MAX_TOKENS);
        let len = l - first;
        Attention { first, len, values: vec![0.0; len * len] }
    }
}

/// What the attention of a layer makes of a text of `l` tokens. It has no step sizes, no half-lives
/// and no state of fixed size: what it remembers are the keys and values of all tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionInspection {
    /// `[l]`: `‖∂loss/∂(k_t, v_t)‖`, how much the prediction of the last token depends on the key
    /// and the value of each token in this layer. It is 0 for the last token, which comes after its
    /// own prediction.
    pub gradient_reach: Vec<f64>,
    sizes: Sizes,
    scale: f64,
    q: Vec<f64>, // [l, hq, d]
    k: Vec<f64>, // [l, hk, d]
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Sizes {
    l: usize,
    hq: usize,
    hk: usize,
    d: usize,
}

/// From `q`, `k`, `v`, `dk` and `dv`, the last two times `gradient_scale`; `scale` is the factor of
/// the products.
pub(super) fn inspect(
    shapes: &[&[usize]],
    values: Vec<Vec<f64>>,
    scale: Option<f64>,
    gradient_scale: f64,
) -> AttentionInspection {
    let (&[_, l, hq, d], &[_, _, hk, _]) = (shapes[0], shapes[1]) else {
        unreachable!("of attention")
    };
    let [q, k, _, dk, dv] = values.try_into().expect("five tensors");
    let squares = |rows: &[f64]| rows.iter().map(|x| x * x).sum::<f64>();
    let rows = dk.chunks_exact(hk * d).zip(dv.chunks_exact(hk * d));
    let norm = |(dk, dv)| (squares(dk) + squares(dv)).sqrt() / gradient_scale;
    AttentionInspection {
        gradient_reach: rows.map(norm).collect(),
        sizes: Sizes { l, hq, hk, d },
        scale: scale.unwrap_or_else(|| (d as f64).powf(-0.5)),
        q,
        k,
    }
}

impl AttentionInspection {
    /// The weights `exp(scale·q_t·k_s)/Σ_s exp(scale·q_t·k_s)`, the mean over heads, for the last
    /// [`Attention::MAX_TOKENS`] tokens. A row sums to 1, less what goes to tokens before these.
    /// Computed when it is asked for, in time `len·l·heads·d`.
    pub fn attention(&self) -> Attention {
        let Sizes { l, hq, hk, d } = self.sizes;
        let mut attention = Attention::of_last(l);
        let Attention { first, len, .. } = attention;
        for (t, head) in (first..l).flat_map(|t| (0..hq).map(move |head| (t, head))) {
            let q = &self.q[(t * hq + head) * d..][..d];
            let product = |s: usize| {
                let k = &self.k[(s * hk + head / (hq / hk)) * d..][..d];
                self.scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()
            };
            let mut weights: Vec<f64> = (0..=t).map(product).collect();
            let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
            let sum = weights.iter().sum::<f64>() * hq as f64;
            let row = &mut attention.values[(t - first) * len..][..len];
            row.iter_mut().zip(&weights[first..]).for_each(|(row, weight)| *row += weight / sum);
        }
        attention
    }
}
