//! The whole model in f64, in plain loops, one token after the other.

use std::collections::HashMap;

use taipan_lm::{Config, LanguageModel, Ssm};

/// A model, read into vectors.
pub struct Naive {
    config: Config,
    parameters: HashMap<String, Vec<f64>>,
}

/// A number added to one element of one state, after its step.
#[derive(Clone, Copy)]
pub struct Nudge {
    pub layer: usize,
    pub token: usize,
    /// Channel and state.
    pub element: (usize, usize),
    pub by: f64,
}

/// What a layer computes for each token.
#[derive(Clone, Default)]
pub struct Layer {
    /// `[channels][n]`, negative.
    pub a: Vec<Vec<f64>>,
    /// `[l][channels]`
    pub delta: Vec<Vec<f64>>,
    /// `[l][channels]`: the input of the scan.
    pub u: Vec<Vec<f64>>,
    /// `[l][n]`
    pub b: Vec<Vec<f64>>,
    /// `[l][n]`
    pub c: Vec<Vec<f64>>,
    /// `[l][channels][n]`
    pub h: Vec<Vec<Vec<f64>>>,
    /// `[l][channels]`: `Σ_n C·h`, without skip and gate.
    pub y: Vec<Vec<f64>>,
}

/// What the model computes for a text.
pub struct Run {
    pub layers: Vec<Layer>,
    /// `−ln p` of the last token, given those before it.
    pub loss: f64,
}

impl Naive {
    pub fn new(model: &LanguageModel) -> Naive {
        let values = |p: taipan_lm::Parameter| (p.name.clone(), crate::read(&p));
        let parameters = model.parameters().into_iter().map(values).collect();
        Naive { config: model.config().clone(), parameters }
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.parameters[name]
    }

    /// `W·x + bias` with `W` stored row by row.
    fn project(&self, weight: &str, bias: Option<&str>, x: &[f64]) -> Vec<f64> {
        let rows = self.get(weight).chunks(x.len());
        let bias = bias.and_then(|bias| self.parameters.get(bias));
        rows.enumerate().map(|(i, row)| dot(row, x) + bias.map_or(0.0, |bias| bias[i])).collect()
    }

    fn norm(&self, weight: &str, x: &[f64]) -> Vec<f64> {
        let mean_square = dot(x, x) / x.len() as f64;
        let rms = (mean_square + self.config.layer_norm_epsilon).sqrt();
        x.iter().zip(self.get(weight)).map(|(x, w)| x / rms * w).collect()
    }

    pub fn run(&self, ids: &[u32], nudge: Option<Nudge>) -> Run {
        let d = self.config.hidden_size;
        let row = |id: &u32| &self.get("backbone.embeddings.weight")[*id as usize * d..][..d];
        let mut stream: Vec<Vec<f64>> = ids.iter().map(|id| row(id).to_vec()).collect();
        let mut layers = Vec::new();
        for i in 0..self.config.layers.len() {
            let nudge = nudge.filter(|nudge| nudge.layer == i);
            layers.push(self.layer(i, &mut stream, nudge));
        }
        let normed = self.norm("backbone.norm_f.weight", &stream[ids.len() - 2]);
        let logits = self.project("lm_head.weight", None, &normed);
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        Run { layers, loss: sum.ln() - logits[ids[ids.len() - 1] as usize] }
    }

    /// One layer, added to the residual stream.
    fn layer(&self, i: usize, stream: &mut [Vec<f64>], nudge: Option<Nudge>) -> Layer {
        let Ssm::Mamba { time_step_rank: r, .. } = self.config.ssm else { panic!("no Mamba") };
        let (n, k) = (self.config.state_size, self.config.conv_kernel);
        let channels = self.config.inner_size();
        let name = |name: &str| format!("backbone.layers.{i}.{name}");
        let mixer = |part: &str| name(&format!("mixer.{part}"));
        let a_log = self.get(&mixer("A_log")).chunks(n);
        let a: Vec<Vec<f64>> = a_log.map(|row| row.iter().map(|x| -x.exp()).collect()).collect();
        let mut layer = Layer { a, ..Layer::default() };
        let mut inputs: Vec<Vec<f64>> = Vec::new();
        let mut state = vec![vec![0.0; n]; channels];
        for (t, residual) in stream.iter_mut().enumerate() {
            let normed = self.norm(&name("norm.weight"), residual);
            let half = |half: &str| {
                let bias = mixer(&format!("in_proj.bias[{half}]"));
                self.project(&mixer(&format!("in_proj.weight[{half}]")), Some(&bias), &normed)
            };
            inputs.push(half("x"));
            let z = half("z");
            let taps = self.get(&mixer("conv1d.weight"));
            let u: Vec<f64> = (0..channels)
                .map(|d| {
                    let past = (0..k).filter(|tap| t + tap + 1 >= k);
                    let sum: f64 =
                        past.map(|tap| taps[d * k + tap] * inputs[t + tap + 1 - k][d]).sum();
                    silu(sum + self.get(&mixer("conv1d.bias"))[d])
                })
                .collect();
            let selected = self.project(&mixer("x_proj.weight"), None, &u);
            let (b, c) = (selected[r..r + n].to_vec(), selected[r + n..].to_vec());
            let bias = mixer("dt_proj.bias");
            let delta = self.project(&mixer("dt_proj.weight"), Some(&bias), &selected[..r]);
            let delta: Vec<f64> = delta.iter().map(|x| x.exp().ln_1p()).collect();
            for d in 0..channels {
                for s in 0..n {
                    let decay = (delta[d] * layer.a[d][s]).exp();
                    state[d][s] = decay * state[d][s] + delta[d] * b[s] * u[d];
                }
            }
            if let Some(Nudge { element: (d, s), by, .. }) = nudge.filter(|n| n.token == t) {
                state[d][s] += by;
            }
            let y: Vec<f64> = state.iter().map(|h| dot(&c, h)).collect();
            let skip = self.get(&mixer("D"));
            let gated: Vec<f64> =
                (0..channels).map(|d| (y[d] + skip[d] * u[d]) * silu(z[d])).collect();
            let bias = mixer("out_proj.bias");
            let out = self.project(&mixer("out_proj.weight"), Some(&bias), &gated);
            residual.iter_mut().zip(out).for_each(|(residual, out)| *residual += out);
            layer.delta.push(delta);
            layer.u.push(u);
            layer.b.push(b);
            layer.c.push(c);
            layer.h.push(state.clone());
            layer.y.push(y);
        }
        layer
    }
}

impl Layer {
    /// `M[t][s]` of one channel, by its definition: every product anew.
    pub fn attention(&self, d: usize) -> Vec<Vec<f64>> {
        let l = self.delta.len();
        let entry = |t: usize, s: usize| -> f64 {
            let states = 0..self.b[0].len();
            states
                .map(|n| {
                    let decay: f64 =
                        (s + 1..=t).map(|r| (self.delta[r][d] * self.a[d][n]).exp()).product();
                    self.c[t][n] * decay * self.delta[s][d] * self.b[s][n]
                })
                .sum()
        };
        (0..l).map(|t| (0..l).map(|s| if s <= t { entry(t, s) } else { 0.0 }).collect()).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
