//! The views of the scan of Mamba-2 and Mamba-3: a decay for each head.

use std::f64::consts::LN_2;

use super::{Attention, Histogram, Recurrence, ScanInspection, bin, row_means};

/// What the scan of a text was given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ssd {
    sizes: Sizes,
    a: Vec<f64>,         // [l, h], at most 0
    k: Vec<f64>,         // [l, r, g, n]
    q: Vec<f64>,         // [l, r, g, n]
    scale: Vec<f64>,     // [l, h]
    own_scale: Vec<f64>, // [l, h]
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Sizes {
    l: usize,
    r: usize,
    h: usize,
    p: usize,
    g: usize,
    n: usize,
}

/// From `x`, `a`, `k`, `q`, `scale`, `own_scale`, Δ and the gradient of the output, times `scale`.
pub(super) fn inspect(shapes: &[&[usize]], values: Vec<Vec<f64>>, scale: f64) -> ScanInspection {
    let sizes = match (shapes[0], shapes[2]) {
        (&[_, l, h, p], &[_, _, g, n]) => Sizes { l, r: 1, h, p, g, n },
        (&[_, l, r, h, p], &[_, _, _, g, n]) => Sizes { l, r, h, p, g, n },
        _ => unreachable!("of a scan"),
    };
    let [x, a, k, q, of_input, own_scale, delta, mut dy] =
        values.try_into().expect("eight tensors");
    dy.iter_mut().for_each(|dy| *dy /= scale);
    let mut half_lives = Histogram::new();
    a.iter().for_each(|a| half_lives.count(bin((LN_2 / -a).log2())));
    let ssd = Ssd { sizes, a, k, q, scale: of_input, own_scale };
    ScanInspection {
        mean_delta: row_means(&delta, sizes.l),
        half_lives: half_lives.0,
        state_norm: ssd.state_norm(&x),
        gradient_reach: ssd.gradient_reach(&dy),
        delta,
        recurrence: Recurrence::Ssd(ssd),
    }
}

impl Ssd {
    /// A row of `k` or `q` that a head reads.
    fn of_head<'a>(&self, rows: &'a [f64], t: usize, rank: usize, head: usize) -> &'a [f64] {
        let Sizes { r, h, g, n, .. } = self.sizes;
        &rows[((t * r + rank) * g + head / (h / g)) * n..][..n]
    }

    /// `state += Σ_r x_r ⊗ k_r` of a token and a head: `x` is `[l, r, h, p]`, `k` is `[l, r, g, n]`,
    /// the state `[p, n]`.
    fn add_products(&self, state: &mut [f64], x: &[f64], k: &[f64], (t, head): (usize, usize)) {
        let Sizes { r, h, p, n, .. } = self.sizes;
        for rank in 0..r {
            let x = &x[((t * r + rank) * h + head) * p..][..p];
            let k = self.of_head(k, t, rank, head);
            for (state, x) in state.chunks_exact_mut(n).zip(x) {
                state.iter_mut().zip(k).for_each(|(state, k)| *state += x * k);
            }
        }
    }

    /// Of `h_t = ā_t·H_{t−1} + own_scale_t·W_t`, where `H_t = ā_t·H_{t−1} + scale_t·W_t` and
    /// `W_t = Σ_r x_r ⊗ k_r`.
    fn state_norm(&self, x: &[f64]) -> Vec<f64> {
        let Sizes { l, h, p, n, .. } = self.sizes;
        let mut squares = vec![0.0; l];
        for head in 0..h {
            let mut state = vec![0.0; p * n];
            for (t, squares) in squares.iter_mut().enumerate() {
                let at = t * h + head;
                let (decay, scale, own) = (self.a[at].exp(), self.scale[at], self.own_scale[at]);
                let mut product = vec![0.0; p * n];
                self.add_products(&mut product, x, &self.k, (t, head));
                for (state, product) in state.iter_mut().zip(&product) {
                    let carried = decay * *state;
                    *squares += (carried + own * product).powi(2);
                    *state = carried + scale * product;
                }
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }

    /// Of `g_t = Σ_r dy_r ⊗ q_r + ā_{t+1}·g_{t+1}`.
    fn gradient_reach(&self, dy: &[f64]) -> Vec<f64> {
        let Sizes { l, h, p, n, .. } = self.sizes;
        let mut squares = vec![0.0; l];
        for head in 0..h {
            let mut state = vec![0.0; p * n];
            for t in (0..l).rev() {
                self.add_products(&mut state, dy, &self.q, (t, head));
                squares[t] += state.iter().map(|g| g * g).sum::<f64>();
                let decay = self.a[t * h + head].exp();
                state.iter_mut().for_each(|g| *g *= decay);
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }

    /// The mean of `|M|` over heads and pairs of ranks.
    pub(super) fn attention(&self) -> Attention {
        let Sizes { l, r, h, .. } = self.sizes;
        let mut attention = Attention::of_last(l);
        let Attention { first, len, .. } = attention;
        let count = (h * r * r) as f64;
        for head in 0..h {
            for t in first..l {
                let mut decay = 1.0;
                for s in (first..=t).rev() {
                    let at = s * h + head;
                    let scale = if s == t { self.own_scale[at] } else { self.scale[at] };
                    let mut sum = 0.0;
                    for (out, of) in (0..r).flat_map(|out| (0..r).map(move |of| (out, of))) {
                        let q = self.of_head(&self.q, t, out, head);
                        let k = self.of_head(&self.k, s, of, head);
                        sum += q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>().abs();
                    }
                    let value = sum * decay * scale.abs() / count;
                    attention.values[(t - first) * len + s - first] += value;
                    decay *= self.a[at].exp();
                }
            }
        }
        attention
    }
}
