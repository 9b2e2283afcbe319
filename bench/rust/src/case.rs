//! What a contestant is told.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::Result;

#[derive(Deserialize)]
pub struct Case {
    pub task: String,
    pub phase: String,
    pub dtype: String,
    pub device: String,
    pub sizes: HashMap<String, usize>,
    /// The directory of the inputs; of a model, in Hugging Face's layout.
    pub inputs: PathBuf,
    /// Of a run of decoding.
    pub tokens: usize,
}

impl Case {
    pub fn size(&self, name: &str) -> Result<usize> {
        let size = self.sizes.get(name).copied();
        Ok(size.ok_or_else(|| format!("the case has no size {name}"))?)
    }

    /// `m`, `k`, `n` of a linear layer.
    pub fn product(&self) -> Result<[usize; 3]> {
        Ok([self.size("m")?, self.size("k")?, self.size("n")?])
    }

    /// `b`, `l`, `d`, `n` of a scan.
    pub fn scan(&self) -> Result<[usize; 4]> {
        Ok([self.size("b")?, self.size("l")?, self.size("d")?, self.size("n")?])
    }

    pub fn input(&self, name: &str) -> Result<Vec<f32>> {
        let bytes = std::fs::read(self.inputs.join(format!("{name}.f32")))?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// The tokens, with one more at the end, which is the target of the last.
    pub fn ids(&self) -> Result<Vec<u32>> {
        let bytes = std::fs::read(self.inputs.join("ids.u32"))?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    pub fn is_backward(&self) -> bool {
        self.phase != "forward"
    }
}

/// As the reference has them.
pub const LEARNING_RATE: f64 = 1e-3;
/// The norm is measured, but never above it.
pub const MAX_NORM: f64 = 1e3;
/// Losses of a training that are compared.
pub const STEPS: usize = 3;

pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.iter().map(|&x| (f64::from(x - max) - sum.ln()) as f32).collect()
}
