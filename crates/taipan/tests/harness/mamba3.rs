//! Mamba-3 as its recurrence says, step by step, in f64.

use std::f64::consts::{PI, TAU};

use taipan::Pairs;
use taipan::check::cases::rotate::turned;
use taipan::check::{Array, indices};

/// The sizes of a block, and what it has.
#[derive(Clone, Debug)]
pub struct Block {
    pub heads: usize,
    pub groups: usize,
    pub states: usize,
    /// None: SISO.
    pub ranks: Option<usize>,
    pub angles: usize,
    pub softplus: bool,
    pub floor: f64,
    pub out_norm: bool,
    pub initial: bool,
    pub seq_start: Option<Vec<u32>>,
}

/// The parameters of a block and its other inputs, by name.
pub struct Inputs<'a>(pub Vec<(&'static str, &'a Array)>);

impl<'a> Inputs<'a> {
    fn get(&self, name: &str) -> &'a Array {
        self.0.iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("no {name}")).1
    }
}

/// What a block returns.
pub struct Outputs {
    pub y: Array,
    /// In radians.
    pub angles: Array,
    pub ssm_state: Array,
    pub k: Array,
    pub x: Array,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn normed(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, weight)| x * weight / (mean + 1e-5).sqrt()).collect()
}

/// `W·x`, of `W` `[m, n]`.
fn times(weight: &Array, x: &[f64]) -> Vec<f64> {
    let rows = weight.data.chunks(x.len());
    rows.map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

impl Block {
    pub fn eval(&self, inputs: &Inputs) -> Outputs {
        let u = inputs.get("u");
        let (batch, l, inner) = (u.shape[0], u.shape[1], inputs.get("out_proj.weight").shape[1]);
        let (h, n, s) = (self.heads, self.states, self.angles);
        let (p, r) = (inner / h, self.ranks.unwrap_or(1));
        let zeros = |shape: &[usize]| Array::from_fn(shape, |_| 0.0);
        let state = |name: &str, shape: &[usize]| match self.initial {
            true => inputs.get(name).clone(),
            false => zeros(shape),
        };
        let mut out = Outputs {
            y: zeros(&u.shape),
            angles: state("turns", &[batch, h, s]).map(|turns| TAU * turns),
            ssm_state: state("ssm_state", &[batch, h, p, n]),
            k: state("k", &[batch, r, h, n]),
            x: state("x", &[batch, h, p]),
        };
        for index in indices(&[batch, l]) {
            self.step(inputs, [index[0], index[1]], [p, r], &mut out);
        }
        out
    }

    fn step(&self, inputs: &Inputs, [b, t]: [usize; 2], [p, r]: [usize; 2], out: &mut Outputs) {
        let (h, g, n, s) = (self.heads, self.groups, self.states, self.angles);
        let u = inputs.get("u");
        let (l, d) = (u.shape[1], u.shape[2]);
        let row = times(inputs.get("in_proj.weight"), &u.data[(b * l + t) * d..][..d]);
        let mut rest = &row[..];
        let mut next = |len: usize| rest.split_off(..len).unwrap();
        let [z, x, bm, cm] = [h * p, h * p, r * g * n, r * g * n].map(&mut next);
        let [dt, alpha, tau, theta] = [h, h, h, s].map(&mut next);
        assert!(rest.is_empty());
        let starts = self.seq_start.as_ref().is_some_and(|start| start[b * l + t] != 0);
        let mimo = |name: &str, head: usize, rank: usize, c: usize| match self.ranks {
            Some(_) => inputs.get(name).at(&[head, rank, c]),
            None => 1.0,
        };
        let pairs = if self.ranks.is_some() { Pairs::Halves } else { Pairs::Adjacent };
        let mut merged = vec![0.0; h * p];
        for head in 0..h {
            let delta = softplus(dt[head] + inputs.get("dt_bias").data[head]);
            let f = match self.softplus {
                true => softplus(alpha[head]),
                false if alpha[head] >= 0.0 => 1.0 + alpha[head],
                false => 1.0 / (1.0 - alpha[head]),
            };
            let decay = (-f.max(self.floor) * delta).exp();
            let (gamma, beta) = (sigmoid(tau[head]) * delta, (1.0 - sigmoid(tau[head])) * delta);
            let angles = &mut out.angles.data[(b * h + head) * s..][..s];
            for (angle, theta) in angles.iter_mut().zip(theta) {
                *angle = if starts { 0.0 } else { *angle } + PI * theta.tanh() * delta;
            }
            let keys = |from: &[f64], norm: &str, bias: &str, rank: usize| {
                let at = (rank * g + head / (h / g)) * n;
                let normed = normed(&from[at..][..n], &inputs.get(norm).data);
                let bias = &inputs.get(bias).data[(head * r + rank) * n..][..n];
                let biased: Vec<f64> = normed.iter().zip(bias).map(|(x, bias)| x + bias).collect();
                turned(&biased, angles, pairs)
            };
            let of_rank =
                |bm, norm, bias| (0..r).map(|rank| keys(bm, norm, bias, rank)).collect::<Vec<_>>();
            let k = of_rank(bm, "B_norm.weight", "B_bias");
            let q = of_rank(cm, "C_norm.weight", "C_bias");
            let before = |rank: usize, i: usize| out.k.data[((b * r + rank) * h + head) * n + i];
            let mut y = vec![vec![0.0; p]; r];
            for c in 0..p {
                let last = out.x.data[(b * h + head) * p + c];
                let here = x[head * p + c];
                let state = &mut out.ssm_state.data[((b * h + head) * p + c) * n..][..n];
                for (i, state) in state.iter_mut().enumerate() {
                    let mut w_last = 0.0;
                    let mut w = 0.0;
                    for (rank, k) in k.iter().enumerate() {
                        let factor = mimo("mimo_x", head, rank, c);
                        w_last += factor * last * before(rank, i);
                        w += factor * here * k[i];
                    }
                    let earlier = if starts { 0.0 } else { decay * (*state + beta * w_last) };
                    *state = earlier + gamma * w;
                }
                for rank in 0..r {
                    let seen: f64 = state.iter().zip(&q[rank]).map(|(h, q)| h * q).sum();
                    let skip = inputs.get("D").data[head] * mimo("mimo_x", head, rank, c) * here;
                    y[rank][c] = seen + skip;
                }
            }
            for (rank, y) in y.iter().enumerate() {
                let y = match self.out_norm {
                    true => normed(y, &inputs.get("norm.weight").data[head * p..][..p]),
                    false => y.clone(),
                };
                for (c, y) in y.iter().enumerate() {
                    let gate = z[head * p + c] * mimo("mimo_z", head, rank, c);
                    let out = y * gate * sigmoid(gate) * mimo("mimo_o", head, rank, c);
                    merged[head * p + c] += out;
                }
            }
            for (rank, k) in k.iter().enumerate() {
                out.k.data[((b * r + rank) * h + head) * n..][..n].copy_from_slice(k);
            }
            out.x.data[(b * h + head) * p..][..p].copy_from_slice(&x[head * p..][..p]);
        }
        let y = times(inputs.get("out_proj.weight"), &merged);
        out.y.data[(b * l + t) * d..][..d].copy_from_slice(&y);
    }
}
