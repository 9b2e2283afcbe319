//! Losses. They are of the wider type, where a case wants results of the type of its inputs.

use crate::check::naive::{self, Layout};
use crate::check::{Array, Case, Values, input, input_of};
use crate::{
    Activation, Tensor, Weight, binary_cross_entropy_with_logits, cross_entropy,
    linear_cross_entropy, mse_loss,
};

/// Targets below `v` in some order.
pub fn some_targets(count: usize, v: usize) -> Vec<u32> {
    (0..count).map(|i| (i * i * 5 + i / 2) as u32 % v as u32).collect()
}

/// The loss of logits of a shape, which has a target for each row.
pub fn cross_entropy_of(shape: &[usize], targets: Vec<u32>, ignore: Option<u32>) -> Case {
    let known = targets.clone();
    let case = Case::new(
        format!("cross_entropy {shape:?} ignoring {ignore:?}"),
        [input_of(shape, Values::Between(-3.0, 3.0))],
        move |t| {
            let shape = &t[0].shape()[..t[0].rank() - 1];
            let targets = Tensor::new(&targets, shape, t[0].device())?;
            cross_entropy(&t[0], &targets, ignore)?.cast(t[0].dtype())
        },
        move |i: &[Array]| naive::cross_entropy(&i[0], &known, ignore),
    );
    case.cancelling(4)
}

/// The loss of `x` of a shape with a weight for `v` classes.
pub fn linear_cross_entropy_of(
    shape: &[usize],
    v: usize,
    layout: Layout,
    targets: &[u32],
    ignore: Option<u32>,
) -> Case {
    let k = shape[shape.len() - 1];
    let w = match layout {
        Layout::Kn => [k, v],
        Layout::Nk => [v, k],
    };
    let (targets, known) = (targets.to_vec(), targets.to_vec());
    let case = Case::new(
        format!("linear_cross_entropy {shape:?} {v} {layout:?} ignoring {ignore:?}"),
        [input(shape), input(&w)],
        move |t| {
            let shape = &t[0].shape()[..t[0].rank() - 1];
            let targets = Tensor::new(&targets, shape, t[0].device())?;
            let w = match layout {
                Layout::Kn => Weight::kn(&t[1]),
                Layout::Nk => Weight::nk(&t[1]),
            };
            linear_cross_entropy(&t[0], w, &targets, ignore)?.cast(t[0].dtype())
        },
        move |i: &[Array]| {
            let x = Array { shape: [&[1], &i[0].shape[..]].concat(), ..i[0].clone() };
            let logits = naive::linear(&x, &i[1], None, layout, Activation::None);
            naive::cross_entropy(&logits, &known, ignore)
        },
    );
    case.cancelling(4 + k)
}

/// The mean of `f` over the pairs of elements.
fn mean_of(i: &[Array], f: impl Fn(f64, f64) -> f64) -> Array {
    let losses: Vec<f64> = i[0].data.iter().zip(&i[1].data).map(|(x, t)| f(*x, *t)).collect();
    Array { shape: vec![], data: vec![naive::mean(&losses)] }
}

/// The mean square of differences.
pub fn mse(shape: &[usize]) -> Case {
    Case::new(
        format!("mse_loss {shape:?}"),
        [input(shape), input(shape)],
        |t| mse_loss(&t[0], &t[1])?.cast(t[0].dtype()),
        |i| mean_of(i, |x, t| (x - t).powi(2)),
    )
}

/// The loss of two classes.
pub fn binary_cross_entropy(shape: &[usize]) -> Case {
    let values = [Values::Between(-4.0, 4.0), Values::Between(0.0, 1.0)];
    Case::new(
        format!("binary_cross_entropy_with_logits {shape:?}"),
        values.map(|values| input_of(shape, values)),
        |t| binary_cross_entropy_with_logits(&t[0], &t[1])?.cast(t[0].dtype()),
        |i| {
            mean_of(i, |x, t| {
                let p = 1.0 / (1.0 + (-x).exp());
                -t * p.ln() - (1.0 - t) * (1.0 - p).ln()
            })
        },
    )
}

pub(super) fn list() -> Vec<Case> {
    vec![
        cross_entropy_of(&[65, 513], some_targets(65, 513), Some(7)),
        cross_entropy_of(&[3, 1025], some_targets(3, 1025), None),
        linear_cross_entropy_of(&[33, 6], 130, Layout::Nk, &some_targets(33, 130), Some(7)),
        linear_cross_entropy_of(&[3, 2], 4097, Layout::Kn, &[4095, 4096, 5], None),
        mse(&[40, 511]),
        binary_cross_entropy(&[40, 511]),
    ]
}
