//! The whole model in f64, in plain loops, one token after the other.

mod mixers;

use std::collections::HashMap;

use taipan_lm::{Config, LanguageModel, Ssm};

pub use self::mixers::{Heads, Scan};

/// A model, read into vectors.
pub struct Naive {
    config: Config,
    parameters: HashMap<String, Vec<f64>>,
}

/// What of a layer is nudged.
#[derive(Clone, Copy, PartialEq)]
pub enum Memory {
    /// The state of its scan, after the step of a token.
    State,
    /// The key and the value of a token.
    KeyAndValue,
}

/// A number added to one element of what a layer remembers of a token.
#[derive(Clone, Copy)]
pub struct Nudge {
    pub layer: usize,
    pub memory: Memory,
    pub token: usize,
    pub element: usize,
    pub by: f64,
}

/// What a layer computes for each token.
#[derive(Clone, Default)]
pub struct Layer {
    pub scan: Option<Scan>,
    pub heads: Option<Heads>,
}

/// What the model computes for a text.
pub struct Run {
    pub layers: Vec<Layer>,
    /// `−ln p` of the last token, given those before it.
    pub loss: f64,
}

/// What families call the same things, and their names here.
const NAMES: [(&str, &str); 21] = [
    ("backbone.embeddings.weight", "embedding"),
    ("backbone.embedding.weight", "embedding"),
    ("model.embed_tokens.weight", "embedding"),
    ("backbone.norm_f.weight", "norm_f"),
    ("model.norm.weight", "norm_f"),
    ("model.final_layernorm.weight", "norm_f"),
    ("backbone.layers.", ""),
    ("model.layers.", ""),
    ("input_layernorm.weight", "norm.weight"),
    ("post_attention_layernorm.weight", "norm2.weight"),
    ("pre_ff_layernorm.weight", "norm2.weight"),
    ("mamba.", "mixer."),
    ("shared_mlp.input_linear.weight[gate]", "gate"),
    ("shared_mlp.input_linear.weight[up]", "up"),
    ("shared_mlp.output_linear.weight", "down"),
    ("feed_forward.gate_proj.weight", "gate"),
    ("feed_forward.up_proj.weight", "up"),
    ("feed_forward.down_proj.weight", "down"),
    ("mlp.fc1.weight[gate]", "gate"),
    ("mlp.fc1.weight[up]", "up"),
    ("mlp.fc2.weight", "down"),
];

impl Naive {
    pub fn new(model: &LanguageModel) -> Naive {
        let values = |p: taipan_lm::Parameter| {
            let replace = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
            (NAMES.iter().fold(p.name.clone(), replace), crate::read(&p))
        };
        let parameters = model.parameters().into_iter().map(values).collect();
        Naive { config: model.config().clone(), parameters }
    }

    fn get(&self, name: &str) -> &[f64] {
        self.parameters.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// `W·x + bias` with `W` stored row by row, and a bias if there is one.
    fn project(&self, weight: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.get(weight).chunks(x.len());
        let named = weight.contains(".weight").then(|| weight.replace(".weight", ".bias"));
        let bias = named.and_then(|bias| self.parameters.get(&bias));
        rows.enumerate().map(|(i, row)| dot(row, x) + bias.map_or(0.0, |bias| bias[i])).collect()
    }

    fn norm(&self, weight: &str, x: &[f64]) -> Vec<f64> {
        let normed = rms_normed(x, self.config.layer_norm_epsilon);
        normed.iter().zip(self.get(weight)).map(|(x, w)| x * w).collect()
    }

    pub fn run(&self, ids: &[u32], nudge: Option<Nudge>) -> Run {
        let (d, factors) = (self.config.hidden_size, self.config.multipliers);
        let row =
            |id: &u32| scaled(&self.get("embedding")[*id as usize * d..][..d], factors.embedding);
        let mut stream: Vec<Vec<f64>> = ids.iter().map(row).collect();
        let mut layers = Vec::new();
        for i in 0..self.config.layers.len() {
            let nudge = nudge.filter(|nudge| nudge.layer == i);
            layers.push(self.layer(i, &mut stream, nudge));
        }
        let normed = self.norm("norm_f", &stream[ids.len() - 2]);
        let logits = scaled(&self.project("lm_head.weight", &normed), factors.logits);
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        Run { layers, loss: sum.ln() - logits[ids[ids.len() - 1] as usize] }
    }

    /// One layer, added to the residual stream.
    fn layer(&self, i: usize, stream: &mut [Vec<f64>], nudge: Option<Nudge>) -> Layer {
        let (kind, factors) = (self.config.layers[i], self.config.multipliers);
        let normed = |stream: &[Vec<f64>], factor: f64| -> Vec<Vec<f64>> {
            let norm = |r: &Vec<f64>| scaled(&self.norm(&format!("{i}.norm.weight"), r), factor);
            stream.iter().map(norm).collect()
        };
        let of = |memory| nudge.filter(|nudge| nudge.memory == memory);
        let (mut layer, mut sums) = (Layer::default(), Vec::new());
        if kind.has_ssm() {
            let u = normed(stream, factors.ssm_in);
            let (out, scan) = match self.config.ssm {
                Ssm::Mamba { .. } => self.mamba(i, &u, of(Memory::State)),
                Ssm::Mamba2 { .. } => self.mamba2(i, &u, of(Memory::State)),
                Ssm::Mamba3(_) => self.mamba3(i, &u, of(Memory::State)),
            };
            (layer.scan, sums) = (Some(scan), vec![(out, factors.ssm_out)]);
        }
        if kind.has_attention() {
            let u = normed(stream, factors.attention_in);
            let (out, heads) = self.attention(i, &u, of(Memory::KeyAndValue));
            layer.heads = Some(heads);
            sums.push((out, factors.attention_out));
        }
        for (out, factor) in sums {
            stream.iter_mut().zip(out).for_each(|(r, out)| add(r, &scaled(&out, factor)));
        }
        if self.config.mlp.is_some() {
            for r in stream {
                let w = self.norm(&format!("{i}.norm2.weight"), r);
                let project = |name: &str, x: &[f64]| self.project(&format!("{i}.{name}"), x);
                let gate = scaled(&project("gate", &w), factors.mlp_gate);
                let up = project("up", &w);
                let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, up)| silu(*g) * up).collect();
                add(r, &scaled(&project("down", &hidden), factors.mlp_out));
            }
        }
        layer
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

fn scaled(x: &[f64], factor: f64) -> Vec<f64> {
    x.iter().map(|x| x * factor).collect()
}

fn add(sum: &mut [f64], x: &[f64]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

fn rms_normed(x: &[f64], eps: f64) -> Vec<f64> {
    scaled(x, 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt())
}
