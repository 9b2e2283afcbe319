//! The views of Mamba's scan: a decay for each channel and state.

use std::f64::consts::{LN_2, LOG2_E};

use super::{Attention, BINS_PER_OCTAVE, Histogram, Recurrence, ScanInspection, bin, row_means};

/// What the scan of a text was given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mamba {
    sizes: Sizes,
    a: Vec<f64>, // [channels, n], negative
    b: Vec<f64>, // [l, n]
    c: Vec<f64>, // [l, n]
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Sizes {
    l: usize,
    channels: usize,
    n: usize,
}

/// From `u`, `delta`, `z`, `b`, `c`, `a_log`, `delta_bias` and the gradient of the output, times
/// `scale`.
pub(super) fn inspect(shapes: &[&[usize]], values: Vec<Vec<f64>>, scale: f64) -> ScanInspection {
    let (&[_, l, channels], &[_, n]) = (shapes[0], shapes[5]) else { unreachable!("of a scan") };
    let [u, mut delta, z, b, c, mut a, bias, mut dy] = values.try_into().expect("eight tensors");
    // Limited as in the scan.
    a.iter_mut().for_each(|a| *a = -a.clamp(-80.0, 88.0).exp());
    for row in delta.chunks_exact_mut(channels) {
        row.iter_mut().zip(&bias).for_each(|(delta, bias)| *delta = softplus(*delta + bias));
    }
    // Before the gate.
    dy.iter_mut().zip(&z).for_each(|(dy, z)| *dy *= z / (1.0 + (-z).exp()) / scale);
    let mamba = Mamba { sizes: Sizes { l, channels, n }, a, b, c };
    let (state_norm, gradient_reach) = mamba.norms(&delta, &u, &dy);
    ScanInspection {
        mean_delta: row_means(&delta, l),
        half_lives: mamba.half_lives(&delta),
        state_norm,
        gradient_reach,
        delta,
        recurrence: Recurrence::Mamba(mamba),
    }
}

impl Mamba {
    /// `ā = exp(Δ·A)` of a channel, `[l, n]`.
    fn decays(&self, delta: &[f64], channel: usize) -> Vec<f64> {
        let Sizes { channels, n, .. } = self.sizes;
        let a = &self.a[channel * n..][..n];
        let deltas = delta.iter().skip(channel).step_by(channels);
        deltas.flat_map(|delta| a.iter().map(move |a| (delta * a).exp())).collect()
    }

    /// The norms of the states, `h_t = ā_t·h_{t−1} + Δ_t·B_t·u_t`, and of their gradients,
    /// `g_t = C_t·dy_t + ā_{t+1}·g_{t+1}`. `delta`, `u` and `dy` are `[l, channels]`.
    fn norms(&self, delta: &[f64], u: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let Sizes { l, channels, n } = self.sizes;
        let (mut h_squares, mut g_squares) = (vec![0.0; l], vec![0.0; l]);
        for channel in 0..channels {
            let decays = self.decays(delta, channel);
            let mut h = vec![0.0; n];
            for t in 0..l {
                let input = delta[t * channels + channel] * u[t * channels + channel];
                let (b, decays) = (&self.b[t * n..][..n], &decays[t * n..][..n]);
                for ((h, b), decay) in h.iter_mut().zip(b).zip(decays) {
                    *h = decay * *h + input * b;
                    h_squares[t] += *h * *h;
                }
            }
            let mut g = vec![0.0; n];
            for t in (0..l).rev() {
                let dy = dy[t * channels + channel];
                let (c, decays) = (&self.c[t * n..][..n], &decays[t * n..][..n]);
                for ((g, c), decay) in g.iter_mut().zip(c).zip(decays) {
                    *g += c * dy;
                    g_squares[t] += *g * *g;
                    *g *= decay;
                }
            }
        }
        let roots = |squares: Vec<f64>| squares.into_iter().map(f64::sqrt).collect();
        (roots(h_squares), roots(g_squares))
    }

    /// How many half-lives `ln 2/(Δ·|A|)` are in each bin. `delta` is `[l, channels]`.
    fn half_lives(&self, delta: &[f64]) -> Vec<u64> {
        let Sizes { channels, n, .. } = self.sizes;
        let mut histogram = Histogram::new();
        // The position of a half-life among the bins is that of ln 2/|A| plus that of 1/Δ.
        let of_a: Vec<f64> = self.a.iter().map(|a| bin((LN_2 / -a).log2())).collect();
        for row in delta.chunks_exact(channels) {
            for (delta, of_a) in row.iter().zip(of_a.chunks_exact(n)) {
                let of_delta = -delta.ln() * LOG2_E * BINS_PER_OCTAVE as f64;
                of_a.iter().for_each(|of_a| histogram.count(of_a + of_delta));
            }
        }
        histogram.0
    }

    /// The mean of `|M|` over channels.
    pub(super) fn attention(&self, delta: &[f64]) -> Attention {
        let Sizes { l, channels, n } = self.sizes;
        let mut attention = Attention::of_last(l);
        let Attention { first, len, .. } = attention;
        for channel in 0..channels {
            let decays = self.decays(delta, channel);
            for t in first..l {
                // C_t·Π ā, which only shrinks on the way back to earlier tokens.
                let mut carried = self.c[t * n..][..n].to_vec();
                for s in (first..=t).rev() {
                    let (b, decays) = (&self.b[s * n..][..n], &decays[s * n..][..n]);
                    let mut m = 0.0;
                    for ((carried, b), decay) in carried.iter_mut().zip(b).zip(decays) {
                        m += *carried * b;
                        *carried *= decay;
                    }
                    let m = m * delta[s * channels + channel];
                    attention.values[(t - first) * len + s - first] += m.abs() / channels as f64;
                }
            }
        }
        attention
    }
}

/// `ln(1 + exp(x))`
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
