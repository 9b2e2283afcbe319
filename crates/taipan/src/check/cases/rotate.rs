//! Pairs that turn by angles which are data, and the sums of such angles.

use std::f64::consts::TAU;

use super::widened;
use crate::check::{Array, Case, Input, Values, input, input_of};
use crate::{Pairs, Tensor, TurnSum, rotate, turn_sum};

/// The channels of pair `i` of `n` channels.
fn pair(pairs: Pairs, i: usize, n: usize) -> [usize; 2] {
    match pairs {
        Pairs::Adjacent => [2 * i, 2 * i + 1],
        Pairs::Halves => [i, i + n / 2],
    }
}

/// Channels whose pairs are turned by these angles.
pub fn turned(x: &[f64], angles: &[f64], pairs: Pairs) -> Vec<f64> {
    let mut y = x.to_vec();
    for (i, angle) in angles.iter().enumerate() {
        let [a, b] = pair(pairs, i, x.len());
        y[a] = x[a] * angle.cos() - x[b] * angle.sin();
        y[b] = x[a] * angle.sin() + x[b] * angle.cos();
    }
    y
}

/// Pairs of `x` `[b, l, r, h, n]` or `[b, l, h, n]`, turned by `turns` `[b, l, h, s]`.
fn naive_rotate(x: &Array, turns: &Array, pairs: Pairs) -> Array {
    let [h, n] = *x.shape.last_chunk().unwrap();
    let r = if x.shape.len() == 5 { x.shape[2] } else { 1 };
    let s = turns.shape[3];
    let rows = x.data.chunks(n.max(1)).enumerate().flat_map(|(row, x)| {
        let head = row / h / r * h + row % h;
        let angles: Vec<f64> = turns.data[head * s..][..s].iter().map(|t| TAU * t).collect();
        turned(x, &angles, pairs)
    });
    Array { shape: x.shape.clone(), data: rows.collect() }
}

/// The sums of turns `[b, l, n]`, from `[b, n]`, modulo 1.
fn naive_sum(turns: &Array, initial: Option<&Array>, seq_start: Option<&[u32]>) -> Array {
    let (l, n) = (turns.shape[1], turns.shape[2]);
    Array::from_fn(&turns.shape, |index| {
        let &[b, t, i] = index else { unreachable!() };
        let starts = |u: usize| seq_start.is_some_and(|start| start[b * l + u] != 0);
        let first = (0..=t).rev().find(|&u| starts(u));
        let before = initial.filter(|_| first.is_none()).map_or(0.0, |x| x.data[b * n + i]);
        let sum: f64 = (first.unwrap_or(0)..=t).map(|u| turns.at(&[b, u, i])).sum();
        before + sum - (before + sum).round_ties_even()
    })
}

/// The first `s` pairs of channels turned.
pub fn rotation(shape: &[usize], s: usize, pairs: Pairs) -> Case {
    let turns = [shape[0], shape[1], shape[shape.len() - 2], s];
    let case = Case::new(
        format!("rotate {shape:?} {s} {pairs:?}"),
        [input(shape), input_of(&turns, Values::Between(-1.5, 1.5))],
        move |t| rotate(&t[0], &widened(&t[1])?, pairs),
        move |i: &[Array]| naive_rotate(&i[0], &i[1], pairs),
    );
    // Angles of up to 9, of which 7 are whole turns.
    case.cancelling(32)
}

/// Sums of turns `[b, l, n]`, perhaps from an initial angle, and where sequences start.
pub fn sum([b, l, n]: [usize; 3], initial: bool, seq_start: Option<Vec<u32>>) -> Case {
    // No sum is near a half, where rounding would choose another turn.
    let values = Values::Between(0.0, 0.4 / l.max(1) as f64);
    let first = initial.then(|| input_of(&[b, n], Values::Between(-0.4, 0.0)));
    let inputs: Vec<Input> = [input_of(&[b, l, n], values)].into_iter().chain(first).collect();
    let starts = seq_start.clone();
    let case = Case::new(
        format!("turn_sum {:?} {initial} {seq_start:?}", [b, l, n]),
        inputs,
        move |t| {
            let start = starts.as_ref().map(|start| Tensor::new(start, &[b, l], t[0].device()));
            let seq_start = start.transpose()?;
            let (initial, seq_start) = (t.get(1), seq_start.as_ref());
            turn_sum(&TurnSum { turns: &t[0], initial, seq_start })
        },
        move |i: &[Array]| naive_sum(&i[0], i.get(1), seq_start.as_deref()),
    );
    case.cancelling(l)
}

pub(super) fn list() -> Vec<Case> {
    vec![
        rotation(&[1, 70, 2, 4, 32], 8, Pairs::Adjacent),
        rotation(&[2, 3, 3, 7], 3, Pairs::Adjacent),
        rotation(&[1, 5, 3, 2, 8], 3, Pairs::Halves),
        sum([1, 300, 33], true, None),
        sum([2, 40, 5], false, Some(super::starts(&[0, 2, 3, 39, 44], 80))),
    ]
}
