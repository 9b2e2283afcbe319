//! What a state-space model makes of a text: step sizes, memory, states, hidden attention, and how
//! far gradients reach. The formulas are in docs/math.md, "Looking into a model".

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

use taipan::nn::Module;
use taipan::{DType, Tensor, concat};

use crate::error::{Result, ensure};
use crate::{LanguageModel, Role, Ssm};

const OP: &str = "inspect";

/// Bins of half-lives per doubling, and the exponent of the first edge.
const BINS_PER_OCTAVE: usize = 2;
const FIRST_OCTAVE: i32 = -4;

/// The edges of the histogram of half-lives, in tokens: 1/16 to 65536, two bins per doubling. What
/// lies outside is counted in the first and the last bin.
pub const HALF_LIFE_EDGES: [f64; 41] = {
    let (mut edges, mut octave, mut i) = ([0.0; 41], 1.0 / 16.0, 0);
    while i < edges.len() {
        edges[i] = if i % 2 == 0 { octave } else { octave * SQRT_2 };
        octave *= if i % 2 == 0 { 1.0 } else { 2.0 };
        i += 1;
    }
    edges
};

/// What a model makes of a text: see [`LanguageModel::inspect`].
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The tokens of the text.
    pub ids: Vec<u32>,
    /// `−ln p` of the last token, given those before it.
    pub loss: f64,
    /// One for each layer.
    pub layers: Vec<LayerInspection>,
}

/// What one layer makes of a text of `l` tokens, all row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerInspection {
    /// `[l, channels]`: the step sizes Δ, after bias and softplus. A channel with a large Δ writes
    /// the token into its states and forgets what was there; with a small Δ it skips the token.
    pub delta: Vec<f64>,
    /// `[l]`: the mean of Δ over channels.
    pub mean_delta: Vec<f64>,
    /// How many of the `l·channels·n` half-lives `ln 2/(Δ·|A|)` lie between each two of
    /// [`HALF_LIFE_EDGES`].
    pub half_lives: Vec<u64>,
    /// `[l]`: `‖h_t‖`, the norm of all states of the layer after each token.
    pub state_norm: Vec<f64>,
    /// `[l]`: `‖∂loss/∂h_t‖`, how much the prediction of the last token depends on the state after
    /// each token, through the states that follow and through the layers above. It is 0 for the
    /// last token, which comes after its own prediction.
    pub gradient_reach: Vec<f64>,
    a: Vec<f64>, // [channels, n], negative
    b: Vec<f64>, // [l, n]
    c: Vec<f64>, // [l, n]
}

/// The hidden attention of a layer: see [`LayerInspection::attention`].
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

/// The sizes of a scan.
#[derive(Clone, Copy)]
struct Sizes {
    l: usize,
    channels: usize,
    n: usize,
}

/// The tensors of one layer's scan, on the device.
struct Observed {
    /// `u`, `delta`, `z`, `b`, `c`, `a_log` and `delta_bias`.
    scan: [Tensor; 7],
    /// Zeros that are added to the scan's output, for its gradient.
    probe: Tensor,
}

impl LanguageModel {
    /// What the model makes of a text, layer by layer, from one pass forward and one backward. The
    /// views are computed on the host, in f64, in time proportional to the number of states.
    ///
    /// The loss whose gradient is followed is that of predicting the last token from those before
    /// it, which is why there must be two tokens or more. Not for models
    /// [in 8 bits](LanguageModel::quantized), which have no gradient.
    ///
    /// ```
    /// use taipan::{DType, Device};
    /// use taipan_lm::{Config, LanguageModel, Preset};
    ///
    /// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
    /// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let inspection = pollster::block_on(model.inspect(&[3, 1, 4, 1, 5]))?;
    /// let layer = &inspection.layers[1];
    /// assert!(layer.mean_delta.iter().all(|delta| (1e-3..0.2).contains(delta)), "a new model");
    /// assert!(layer.state_norm[4] > layer.state_norm[0], "which hardly forgets");
    /// assert_eq!(layer.attention().values.len(), 5 * 5);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub async fn inspect(&self, ids: &[u32]) -> Result<Inspection> {
        let (l, v) = (ids.len(), self.config().vocab_size);
        ensure!(l > 1, OP, "{l} tokens, expected 2 or more");
        if let Some(id) = ids.iter().find(|id| **id as usize >= v) {
            ensure!(false, OP, "token {id}, expected less than {v}");
        }
        let family = self.config().family.title();
        let is_mamba = matches!(self.config().ssm, Ssm::Mamba { .. });
        ensure!(is_mamba, OP, "a model of {family}, expected the scans of Mamba");
        let floats = !self.is_quantized();
        ensure!(floats, OP, "the weights are in 8 bits, expected floats: there is no gradient");
        // Gradients of weights are not needed, and take as much memory as the model.
        let mut model = self.clone();
        for (_, parameter) in model.parameters_mut() {
            *parameter = parameter.detached();
        }
        let mut observed = Vec::new();
        let loss = model.last_loss(ids, &mut |scan, y| {
            let probe = Tensor::zeros(y.shape(), y.dtype(), y.device())?.tracked();
            let y = y.add(&probe)?;
            let [z, bias] = [scan.z, scan.delta_bias].map(|given| given.expect("in every layer"));
            let scan = [scan.u, scan.delta, z, scan.b, scan.c, scan.a_log, bias];
            observed.push(Observed { scan: scan.map(Tensor::detached), probe });
            Ok(y)
        })?;
        // The gradient of a single token is small for f16.
        let scale = if self.dtype() == DType::F16 { 1024.0 } else { 1.0 };
        let upstream = Tensor::full(loss.shape(), scale, loss.dtype(), loss.device())?;
        let grads = loss.backward_from(&upstream)?;
        let sizes = Sizes { l, channels: self.config().inner_size(), n: self.config().state_size };
        let mut layers = Vec::with_capacity(observed.len());
        for (i, Observed { scan, probe }) in observed.into_iter().enumerate() {
            let wide = Role::Recurrence.dtype(self.dtype());
            let dy = grads.of(&probe)?;
            let flat = |tensor: &Tensor| tensor.reshape(&[tensor.len()])?.cast(wide);
            let flat = scan.iter().chain([dy]).map(flat).collect::<taipan::Result<Vec<_>>>()?;
            // One tensor, since each read waits for the device.
            let values = read(&concat(&flat.iter().collect::<Vec<_>>(), 0)?).await?;
            let finite = values.iter().all(|value| value.is_finite());
            ensure!(finite, OP, "layer {i} has values that are not finite numbers");
            layers.push(LayerInspection::new(sizes, values, scale));
        }
        Ok(Inspection { ids: ids.to_vec(), loss: read(&loss).await?[0], layers })
    }
}

/// The elements of a tensor in f32 or f64.
async fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::F64 => tensor.read::<f64>().await?,
        _ => tensor.read::<f32>().await?.into_iter().map(f64::from).collect(),
    })
}

impl LayerInspection {
    /// From the elements of [`Observed::scan`] and the gradient of the scan's output, times `scale`.
    fn new(sizes: Sizes, values: Vec<f64>, scale: f64) -> LayerInspection {
        let Sizes { l, channels, n } = sizes;
        let mut values = values.into_iter();
        let mut next = |len: usize| values.by_ref().take(len).collect::<Vec<f64>>();
        let [u, mut delta, z] = [(); 3].map(|()| next(l * channels));
        let [b, c] = [(); 2].map(|()| next(l * n));
        let (mut a, bias, mut dy) = (next(channels * n), next(channels), next(l * channels));
        // Limited as in the scan.
        a.iter_mut().for_each(|a| *a = -a.clamp(-80.0, 88.0).exp());
        for row in delta.chunks_exact_mut(channels) {
            row.iter_mut().zip(&bias).for_each(|(delta, bias)| *delta = softplus(*delta + bias));
        }
        // Before the gate.
        dy.iter_mut().zip(&z).for_each(|(dy, z)| *dy *= z / (1.0 + (-z).exp()) / scale);
        let mean = |row: &[f64]| row.iter().sum::<f64>() / channels as f64;
        let mean_delta = delta.chunks_exact(channels).map(mean).collect();
        let half_lives = half_lives(&delta, &a, n);
        let mut layer = LayerInspection {
            delta,
            mean_delta,
            half_lives,
            state_norm: vec![0.0; l],
            gradient_reach: vec![0.0; l],
            a,
            b,
            c,
        };
        layer.follow_states(&u, &dy);
        layer
    }

    fn sizes(&self) -> Sizes {
        let l = self.mean_delta.len();
        let (channels, n) = (self.delta.len() / l, self.b.len() / l);
        Sizes { l, channels, n }
    }

    /// `ā = exp(Δ·A)` of a channel, `[l, n]`.
    fn decays(&self, channel: usize) -> Vec<f64> {
        let Sizes { channels, n, .. } = self.sizes();
        let a = &self.a[channel * n..][..n];
        let deltas = self.delta.iter().skip(channel).step_by(channels);
        deltas.flat_map(|delta| a.iter().map(move |a| (delta * a).exp())).collect()
    }

    /// The norms of the states, `h_t = ā_t·h_{t−1} + Δ_t·B_t·u_t`, and of their gradients,
    /// `g_t = C_t·dy_t + ā_{t+1}·g_{t+1}`. `u` and `dy` are `[l, channels]`.
    fn follow_states(&mut self, u: &[f64], dy: &[f64]) {
        let Sizes { l, channels, n } = self.sizes();
        let (mut h_squares, mut g_squares) = (vec![0.0; l], vec![0.0; l]);
        for channel in 0..channels {
            let decays = self.decays(channel);
            let mut h = vec![0.0; n];
            for t in 0..l {
                let input = self.delta[t * channels + channel] * u[t * channels + channel];
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
        self.state_norm = h_squares.into_iter().map(f64::sqrt).collect();
        self.gradient_reach = g_squares.into_iter().map(f64::sqrt).collect();
    }

    /// The scan as attention: `y_t = Σ_{s ≤ t} M[t, s]·u_s` for each channel, with
    ///
    /// ```text
    /// M[t, s] = Σ_n C_t[n]·(Π_{r = s+1..t} ā_r[n])·Δ_s·B_s[n]
    /// ```
    ///
    /// and the mean of `|M|` over channels is returned, for the last
    /// [`Attention::MAX_TOKENS`] tokens. The skip connection `D·u_t` and the gate are not in it.
    /// Computed when it is asked for, in time `len²·channels·n`.
    pub fn attention(&self) -> Attention {
        let Sizes { l, channels, n } = self.sizes();
        let first = l.saturating_sub(Attention::MAX_TOKENS);
        let len = l - first;
        let mut values = vec![0.0; len * len];
        for channel in 0..channels {
            let decays = self.decays(channel);
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
                    let m = m * self.delta[s * channels + channel];
                    values[(t - first) * len + s - first] += m.abs() / channels as f64;
                }
            }
        }
        Attention { first, len, values }
    }
}

impl Attention {
    /// Of a longer text the last tokens are shown.
    pub const MAX_TOKENS: usize = 128;
}

/// `ln(1 + exp(x))`
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// How many half-lives `ln 2/(Δ·|A|)` are in each bin. `delta` is `[l, channels]`, `a` is
/// `[channels, n]`.
fn half_lives(delta: &[f64], a: &[f64], n: usize) -> Vec<u64> {
    let last = HALF_LIFE_EDGES.len() - 2;
    let mut counts = vec![0; last + 1];
    // The position of a half-life among the bins is that of 1/Δ plus that of ln 2/|A|.
    let bins = |octaves: f64| octaves * BINS_PER_OCTAVE as f64;
    let of_a: Vec<f64> =
        a.iter().map(|a| bins((LN_2 / -a).log2() - f64::from(FIRST_OCTAVE))).collect();
    for row in delta.chunks_exact(of_a.len() / n) {
        for (delta, of_a) in row.iter().zip(of_a.chunks_exact(n)) {
            let of_delta = bins(-delta.ln() * LOG2_E);
            for of_a in of_a {
                // Below the first edge it is negative, which becomes 0.
                counts[((of_a + of_delta) as usize).min(last)] += 1;
            }
        }
    }
    counts
}
