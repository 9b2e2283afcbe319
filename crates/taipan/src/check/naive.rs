//! Operations as the mathematics says them: plain loops in f64, which every op is compared with.

use super::array::{Array, indices};
use crate::{Activation, Discretization, Sampling, StepSize};

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// `[k, n]`
    Kn,
    /// `[n, k]`
    Nk,
}

/// `φ(x)`
pub fn phi(activation: Activation, x: f64) -> f64 {
    use std::f64::consts::{FRAC_2_PI, SQRT_2};
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => {
            0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x / SQRT_2)),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::LeakyRelu(slope) => x.max(slope * x),
        Activation::Softcap(cap) => cap * (x / cap).tanh(),
    }
}

/// `φ(x·w + bias)` for `x` `[…, m, k]`; `w` has two dimensions or those of `x` in front of them.
pub fn linear(
    x: &Array,
    w: &Array,
    bias: Option<&Array>,
    layout: Layout,
    activation: Activation,
) -> Array {
    let rank = x.shape.len();
    let (m, k) = (x.shape[rank - 2], x.shape[rank - 1]);
    let n = match layout {
        Layout::Kn => w.shape[w.shape.len() - 1],
        Layout::Nk => w.shape[w.shape.len() - 2],
    };
    let entries: usize = x.shape[..rank - 2].iter().product();
    let mut data = Vec::with_capacity(entries * m * n);
    for entry in 0..entries {
        let w = if w.shape.len() == 2 { &w.data[..] } else { &w.data[entry * k * n..] };
        for i in 0..m {
            let x = &x.data[(entry * m + i) * k..][..k];
            for j in 0..n {
                let mut pre = bias.map_or(0.0, |bias| bias.data[j]);
                for (p, x) in x.iter().enumerate() {
                    pre += x * match layout {
                        Layout::Kn => w[p * n + j],
                        Layout::Nk => w[j * k + p],
                    };
                }
                data.push(phi(activation, pre));
            }
        }
    }
    Array { shape: [&x.shape[..rank - 1], &[n]].concat(), data }
}

/// `f` of two arrays, sizes of 1 and missing leading dimensions repeated.
pub fn binary(a: &Array, b: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
    let shape = broadcast(&a.shape, &b.shape);
    Array::from_fn(&shape, |i| f(a.at_broadcast(i), b.at_broadcast(i)))
}

/// The shape of two, sizes of 1 and missing leading dimensions repeated.
pub fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank).map(|i| if size(a, i) == 1 { size(b, i) } else { size(a, i) }).collect()
}

/// `f` of the elements that differ in the given dimensions only.
pub fn reduce(x: &Array, dims: &[usize], f: impl Fn(&[f64]) -> f64) -> Array {
    let remaining: Vec<usize> = (0..x.shape.len()).filter(|d| !dims.contains(d)).collect();
    let shape: Vec<usize> = remaining.iter().map(|&d| x.shape[d]).collect();
    let inner: Vec<usize> = dims.iter().map(|&d| x.shape[d]).collect();
    let inner = indices(&inner);
    Array::from_fn(&shape, |outer| {
        let mut index = vec![0; x.shape.len()];
        remaining.iter().zip(outer).for_each(|(&d, &i)| index[d] = i);
        let elements: Vec<f64> = inner
            .iter()
            .map(|inner| {
                dims.iter().zip(inner).for_each(|(&d, &i)| index[d] = i);
                x.at(&index)
            })
            .collect();
        f(&elements)
    })
}

/// The sum, with what each addition loses added at the end (Neumaier), so that the error of the
/// reference does not count.
pub fn sum(x: &[f64]) -> f64 {
    let (mut sum, mut lost) = (0.0, 0.0);
    for &x in x {
        let next: f64 = sum + x;
        lost += if f64::abs(sum) >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    sum + lost
}

/// The mean; NaN of nothing.
pub fn mean(x: &[f64]) -> f64 {
    sum(x) / x.len() as f64
}

/// The largest.
pub fn max(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The smallest.
pub fn min(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The element of `x` at the index, but for dimension `dim`, where it is `at`.
pub fn moved(x: &Array, index: &[usize], dim: usize, at: usize) -> f64 {
    let mut index = index.to_vec();
    index[dim] = at;
    x.at(&index)
}

/// `exp(x) / Σ exp(x)` along a dimension.
pub fn softmax(x: &Array, dim: usize) -> Array {
    let exps = x.map(f64::exp);
    let sums = reduce(&exps, &[dim], sum);
    Array::from_fn(&x.shape, |index| {
        exps.at(index) / sums.at(&[&index[..dim], &index[dim + 1..]].concat())
    })
}

/// Which optional tensors a selective scan has, and how it discretises.
#[derive(Clone, Debug)]
pub struct Scan {
    /// How the step size becomes a factor of B.
    pub discretization: Discretization,
    /// What `delta` is.
    pub step: StepSize,
    /// The skip, `[d]`.
    pub d: bool,
    /// `[d]`
    pub delta_bias: bool,
    /// The gate, `[b, l, d]`.
    pub z: bool,
    /// `[b, d, n]`
    pub initial_state: bool,
    /// `[b, l]`
    pub seq_start: Option<Vec<u32>>,
}

/// The output `[b, l, d]` and the final state `[b, d, n]`, from the inputs in the order of
/// [`crate::Scan`], by the recurrence.
pub fn scan(scan: &Scan, inputs: &[Array]) -> (Array, Array) {
    let mut optional = inputs[5..].iter();
    let mut next = |given: bool| given.then(|| optional.next().unwrap());
    let [d, delta_bias, z, initial_state] =
        [next(scan.d), next(scan.delta_bias), next(scan.z), next(scan.initial_state)];
    let [u, delta, a_log, b, c] = [0, 1, 2, 3, 4].map(|i| &inputs[i]);
    let (batch, len, channels, states) = (u.shape[0], u.shape[1], u.shape[2], a_log.shape[1]);
    let mut y = Array { shape: u.shape.clone(), data: vec![0.0; u.data.len()] };
    let mut final_state =
        Array::from_fn(&[batch, channels, states], |i| initial_state.map_or(0.0, |h| h.at(i)));
    for i in 0..batch {
        for j in 0..channels {
            let h = &mut final_state.data[(i * channels + j) * states..][..states];
            for t in 0..len {
                if scan.seq_start.as_ref().is_some_and(|seq_start| seq_start[i * len + t] != 0) {
                    h.fill(0.0);
                }
                let raw = delta.at(&[i, t, j]) + delta_bias.map_or(0.0, |bias| bias.at(&[j]));
                let size = match scan.step {
                    StepSize::Softplus => raw.max(0.0) + (-raw.abs()).exp().ln_1p(),
                    StepSize::Plain => raw,
                };
                let input = u.at(&[i, t, j]);
                let mut sum = 0.0;
                for (k, h) in h.iter_mut().enumerate() {
                    let a = -a_log.at(&[j, k]).exp();
                    let b_factor = match scan.discretization {
                        Discretization::Euler => size,
                        Discretization::ZeroOrderHold => (size * a).exp_m1() / a,
                    };
                    *h = (size * a).exp() * *h + b_factor * b.at(&[i, t, k]) * input;
                    sum += c.at(&[i, t, k]) * *h;
                }
                sum += d.map_or(0.0, |d| d.at(&[j]) * input);
                sum *= z.map_or(1.0, |z| phi(Activation::Silu, z.at(&[i, t, j])));
                y.data[(i * len + t) * channels + j] = sum;
            }
        }
    }
    (y, final_state)
}

/// Which optional tensors an SSD scan has.
#[derive(Clone, Debug, Default)]
pub struct Ssd {
    /// `[b, l, h]`
    pub scale: bool,
    /// The factor of a step's own input, `[b, l, h]`.
    pub own_scale: bool,
    /// The skip, `[h]`.
    pub d: bool,
    /// `[b, h, p, n]`
    pub initial_state: bool,
    /// `[b, l]`
    pub seq_start: Option<Vec<u32>>,
}

/// The output, of the shape of `x`, and the final state `[b, h, p, n]`, from the inputs in the order
/// of [`crate::Ssd`], by the recurrence.
pub fn ssd(form: &Ssd, inputs: &[Array]) -> (Array, Array) {
    let mut optional = inputs[4..].iter();
    let mut next = |given: bool| given.then(|| optional.next().unwrap());
    let [scale, own_scale, d, initial_state] =
        [form.scale, form.own_scale, form.d, form.initial_state].map(&mut next);
    let [x, a, k, q] = [0, 1, 2, 3].map(|i| &inputs[i]);
    let (batch, len) = (x.shape[0], x.shape[1]);
    let ranks = if x.shape.len() == 5 { x.shape[2] } else { 1 };
    let [heads, channels] = *x.shape.last_chunk().unwrap();
    let [groups, states] = *k.shape.last_chunk().unwrap();
    let mut y = Array { shape: x.shape.clone(), data: vec![0.0; x.data.len()] };
    let shape = [batch, heads, channels, states];
    let mut state = Array::from_fn(&shape, |i| initial_state.map_or(0.0, |h| h.at(i)));
    for (i, t) in indices(&[batch, len]).iter().map(|index| (index[0], index[1])) {
        let starts = form.seq_start.as_ref().is_some_and(|start| start[i * len + t] != 0);
        for j in 0..heads {
            let group = j / (heads / groups);
            let decay = if starts { 0.0 } else { a.at(&[i, t, j]).exp() };
            let scale = scale.map_or(1.0, |scale| scale.at(&[i, t, j]));
            let own = own_scale.map_or(scale, |own_scale| own_scale.at(&[i, t, j]));
            for c in 0..channels {
                let h = &mut state.data[((i * heads + j) * channels + c) * states..][..states];
                let row = |rank: usize| (i * len + t) * ranks + rank;
                let input = |rank: usize| x.data[(row(rank) * heads + j) * channels + c];
                let of = |from: &Array, rank: usize, s: usize| {
                    from.data[(row(rank) * groups + group) * states + s]
                };
                let entering =
                    |s: usize| -> f64 { (0..ranks).map(|rank| input(rank) * of(k, rank, s)).sum() };
                h.iter_mut().for_each(|h| *h *= decay);
                let seen: Vec<f64> = (0..states).map(|s| h[s] + own * entering(s)).collect();
                (0..states).for_each(|s| h[s] += scale * entering(s));
                for rank in 0..ranks {
                    let seen: f64 = (0..states).map(|s| of(q, rank, s) * seen[s]).sum();
                    y.data[(row(rank) * heads + j) * channels + c] =
                        seen + d.map_or(0.0, |d| d.at(&[j]) * input(rank));
                }
            }
        }
    }
    (y, state)
}

/// Channels `j` and `j + d/2` of step `t` of `[b, l, h, d]`, turned by
/// `(position + t)·base^(−2j/d)`.
pub fn rope(x: &Array, base: f64, position: usize) -> Array {
    let half = x.shape[3] / 2;
    Array::from_fn(&x.shape, |i| {
        let j = i[3] % half;
        let angle = (position + i[1]) as f64 * base.powf(-(j as f64) / half as f64);
        let [a, b] = [j, j + half].map(|j| x.at(&[i[0], i[1], i[2], j]));
        match i[3] < half {
            true => a * angle.cos() - b * angle.sin(),
            false => b * angle.cos() + a * angle.sin(),
        }
    })
}

/// What [`attention`] has besides `q`, `k` and `v`.
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// Of the products; `1/√d` if none.
    pub scale: Option<f64>,
    /// Of the first query among the keys; if none, the last query is at the last key.
    pub position: Option<usize>,
    /// `[b, s]`
    pub seq_start: Option<Vec<u32>>,
}

/// Causal attention of `q` `[b, l, hq, d]` to `k` and `v` `[b, s, hk, d]`.
pub fn attention(form: &Attention, inputs: &[Array]) -> Array {
    let [q, k, v] = [0, 1, 2].map(|i| &inputs[i]);
    let (l, d, s) = (q.shape[1], q.shape[3], k.shape[1]);
    let scale = form.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let position = form.position.unwrap_or(s - l);
    let mut o = Vec::with_capacity(q.data.len());
    for i in indices(&q.shape[..3]) {
        let (here, head) = (position + i[1], i[2] / (q.shape[2] / k.shape[2]));
        let starts = |j: usize| form.seq_start.as_ref().is_some_and(|x| x[i[0] * s + j] != 0);
        let first = (0..=here).rev().find(|j| starts(*j)).unwrap_or(0);
        let weights: Vec<f64> = (first..=here)
            .map(|j| {
                let products =
                    (0..d).map(|c| q.at(&[i[0], i[1], i[2], c]) * k.at(&[i[0], j, head, c]));
                (scale * products.sum::<f64>()).exp()
            })
            .collect();
        for c in 0..d {
            let values = (first..=here).map(|j| v.at(&[i[0], j, head, c]));
            let sum: f64 = weights.iter().zip(values).map(|(weight, value)| weight * value).sum();
            o.push(sum / weights.iter().sum::<f64>());
        }
    }
    Array { shape: q.shape.clone(), data: o }
}

/// The `k` largest elements along the last dimension and their indices: the largest first, equal
/// ones by their index, NaN before all.
pub fn topk(x: &Array, k: usize) -> (Array, Array) {
    let (n, rows) = x.shape.split_last().unwrap();
    let largest = |row: usize| {
        let row = &x.data[row * n..][..*n];
        let mut order: Vec<usize> = (0..*n).collect();
        // The sort is stable. Adding 0 makes a 0 of -0.
        let key = |i: usize| if row[i].is_nan() { f64::NAN } else { row[i] + 0.0 };
        order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
        order.truncate(k);
        order
    };
    let shape = [rows, &[k]].concat();
    let indices: Vec<Vec<usize>> = (0..rows.iter().product()).map(largest).collect();
    let values = indices
        .iter()
        .enumerate()
        .flat_map(|(row, indices)| indices.iter().map(move |i| x.data[row * n + i]));
    let indices = indices.iter().flatten().map(|&i| i as f64).collect();
    (Array { shape: shape.clone(), data: values.collect() }, Array { shape, data: indices })
}

/// 64 random bits: Threefry-2x32 with so many rounds.
pub fn threefry(rounds: usize, [k0, k1]: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [k0, k1, 0x1bd1_1bda ^ k0 ^ k1];
    let mut x = [counter[0].wrapping_add(k0), counter[1].wrapping_add(k1)];
    for round in 0..rounds {
        let rotation = [13, 15, 26, 6, 17, 29, 16, 24][round % 8];
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(rotation) ^ x[0];
        if round % 4 == 3 {
            let i = round / 4 + 1;
            x[0] = x[0].wrapping_add(keys[i % 3]);
            x[1] = x[1].wrapping_add(keys[(i + 1) % 3]).wrapping_add(i as u32);
        }
    }
    x
}

/// Whether dropout keeps element `i`: if its word is not below `p·2³²`. Of every 128 elements, the
/// first 64 have the first words of as many counters, and the others their second words.
pub fn is_kept(i: usize, p: f64, seed: u64) -> bool {
    let counter = i / 128 * 64 + i % 64;
    let key = [seed as u32, (seed >> 32) as u32];
    let bits = threefry(13, key, [counter as u32, 0])[i / 64 % 2];
    bits as f64 >= p * 2f64.powi(32)
}

/// A token for each row of logits, by Gumbel's trick.
pub fn sample(logits: &Array, sampling: &Sampling) -> Vec<u32> {
    let n = *logits.shape.last().unwrap();
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let key = threefry(20, words(sampling.seed), words(sampling.step));
    let (values, tokens) = topk(logits, sampling.top_k.map_or(n, |k| k.min(n)));
    let k = *values.shape.last().unwrap();
    let rows = values.data.chunks(k).zip(tokens.data.chunks(k)).enumerate();
    rows.map(|(row, (values, tokens))| {
        let most = values.iter().fold(f64::NEG_INFINITY, |most, x| most.max(*x));
        let weights: Vec<f64> =
            values.iter().map(|x| ((x - most) / sampling.temperature).exp()).collect();
        // The sum of those above each: the largest come first, equal ones have the same.
        let (mut sum, mut likelier) = (0.0, Vec::with_capacity(k));
        for i in 0..k {
            let equal = i > 0 && values[i] == values[i - 1];
            likelier.push(if equal { likelier[i - 1] } else { sum });
            sum += weights[i];
        }
        let may_be_drawn = |i: usize| {
            weights[i] >= sampling.min_p
                && (sampling.top_p == 1.0 || likelier[i] < sampling.top_p * sum)
        };
        let score = |i: usize| {
            let bits = threefry(20, key, [tokens[i] as u32, row as u32])[0] | 1;
            let digits =
                bits >> (8 - bits.leading_zeros().min(8)) << (8 - bits.leading_zeros().min(8));
            values[i] / sampling.temperature - (-(-(digits as f64) / 2f64.powi(32)).ln_1p()).ln()
        };
        let drawn = (0..k).filter(|&i| may_be_drawn(i));
        let best = drawn.max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap();
        tokens[best] as u32
    })
    .collect()
}

/// `x·weight / √(mean(x²) + eps)` along the last dimension; `weight` has the shape of the last ones.
pub fn rms_norm(x: &Array, weight: &Array, eps: f64) -> Array {
    let last = x.shape.len() - 1;
    let squares = reduce(&x.map(|x| x * x), &[last], mean);
    Array::from_fn(&x.shape, |index| {
        x.at(index) * weight.at_broadcast(index) / (squares.at(&index[..last]) + eps).sqrt()
    })
}

/// `(x − mean)·weight / √(variance + eps) + bias` along the last dimension, from `x`, the weight and
/// perhaps the bias.
pub fn layer_norm(i: &[Array], eps: f64) -> Array {
    let (x, last) = (&i[0], i[0].shape.len() - 1);
    let means = reduce(x, &[last], mean);
    let centred = Array::from_fn(&x.shape, |at| x.at(at) - means.at(&at[..last]));
    let variances = reduce(&centred.map(|x| x * x), &[last], mean);
    Array::from_fn(&x.shape, |at| {
        let y = centred.at(at) * i[1].data[at[last]] / (variances.at(&at[..last]) + eps).sqrt();
        y + i.get(2).map_or(0.0, |bias| bias.data[at[last]])
    })
}

/// A causal depthwise convolution of `x` `[b, l, d]` with `weight` `[d, k]`.
pub struct Conv<'a> {
    /// `[b, l, d]`
    pub x: &'a Array,
    /// `[d, k]`
    pub weight: &'a Array,
    /// `[d]`
    pub bias: Option<&'a Array>,
    /// `[b, k − 1, d]`
    pub conv_state: Option<&'a Array>,
    /// `[b, l]`
    pub seq_start: Option<&'a [u32]>,
    /// Of the sums.
    pub activation: Activation,
}

impl Conv<'_> {
    /// The result and, concatenated along time, the next conv_state: `[b, l + k − 1, d]`.
    pub fn eval(&self) -> Array {
        let [b, l, d] = self.x.shape[..] else { panic!("x is [b, l, d]") };
        let k = self.weight.shape[1];
        Array::from_fn(&[b, l + k - 1, d], |index| {
            let [b, t, c] = index[..] else { unreachable!() };
            if t >= l {
                let at = t as isize - (k as isize - 1);
                return self.seen(b, at, l as isize - 1, c);
            }
            let mut pre = self.bias.map_or(0.0, |bias| bias.data[c]);
            for j in 0..k {
                let at = t as isize - (k as isize - 1) + j as isize;
                pre += self.weight.at(&[c, j]) * self.seen(b, at, t as isize, c);
            }
            phi(self.activation, pre)
        })
    }

    /// The input at a time, as used by a result at another: 0 if a sequence starts in between.
    fn seen(&self, b: usize, at: isize, from: isize, c: usize) -> f64 {
        let (l, k) = (self.x.shape[1], self.weight.shape[1]);
        let started = |t: isize| {
            t >= 0 && self.seq_start.is_some_and(|seq_start| seq_start[b * l + t as usize] != 0)
        };
        if (at + 1..=from).any(started) {
            return 0.0;
        }
        match at {
            0.. => self.x.at(&[b, at as usize, c]),
            _ => self
                .conv_state
                .map_or(0.0, |state| state.at(&[b, (at + k as isize - 1) as usize, c])),
        }
    }
}

/// The rows of `table`, `[v, d]`, that `ids` name; `shape` is theirs.
pub fn embedding(table: &Array, ids: &[u32], shape: &[usize]) -> Array {
    let d = table.shape[1];
    let data = ids.iter().flat_map(|&id| table.data[id as usize * d..][..d].to_vec()).collect();
    Array { shape: [shape, &[d]].concat(), data }
}

/// The mean of `ln Σ exp(x) − x[target]` over the rows of `logits`, `[…, v]`, whose targets are not
/// ignored; 0 if there are none.
pub fn cross_entropy(logits: &Array, targets: &[u32], ignore: Option<u32>) -> Array {
    let v = logits.shape[logits.shape.len() - 1];
    let losses: Vec<f64> = (targets.iter().enumerate())
        .filter(|(_, target)| Some(**target) != ignore)
        .map(|(row, &target)| {
            let x = &logits.data[row * v..][..v];
            let greatest = max(x);
            let exps: Vec<f64> = x.iter().map(|x| (x - greatest).exp()).collect();
            sum(&exps).ln() + (greatest - x[target as usize])
        })
        .collect();
    let loss = if losses.is_empty() { 0.0 } else { mean(&losses) };
    Array { shape: vec![], data: vec![loss] }
}
