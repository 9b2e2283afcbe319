//! Operations as the mathematics says them: plain loops in f64.

use taipan::Activation;

use super::array::Array;

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    Kn,
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
    let kept: Vec<usize> = (0..x.shape.len()).filter(|d| !dims.contains(d)).collect();
    let shape: Vec<usize> = kept.iter().map(|&d| x.shape[d]).collect();
    let inner: Vec<usize> = dims.iter().map(|&d| x.shape[d]).collect();
    let inner = super::indices(&inner);
    Array::from_fn(&shape, |outer| {
        let mut index = vec![0; x.shape.len()];
        kept.iter().zip(outer).for_each(|(&d, &i)| index[d] = i);
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

/// `exp(x) / Σ exp(x)` along a dimension.
pub fn softmax(x: &Array, dim: usize) -> Array {
    Array::from_fn(&x.shape, |index| {
        let mut other = index.to_vec();
        let exps: Vec<f64> = (0..x.shape[dim])
            .map(|i| {
                other[dim] = i;
                x.at(&other).exp()
            })
            .collect();
        x.at(index).exp() / sum(&exps)
    })
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
