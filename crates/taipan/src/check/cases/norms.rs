//! Norms of rows, and softmax.

use crate::check::{Array, Case, Input, Values, input_of, naive};
use crate::{Activation, DType, GateOrder, add_rms_norm, gated_rms_norm, layer_norm, rms_norm};

/// Large, so that the gradient of a row of one does not cancel.
pub const EPS: f64 = 0.5;

fn side(shape: &[usize]) -> Input {
    input_of(shape, Values::Between(-2.0, 2.0))
}

fn weight(shape: &[usize]) -> Input {
    input_of(shape, Values::Between(-1.5, 1.5))
}

fn ones(shape: &[usize]) -> Array {
    Array { shape: shape.to_vec(), data: vec![1.0; shape.iter().product()] }
}

/// RMS norm with a weight that has so many of the last dimensions; of none, without a weight.
pub fn rms(shape: &[usize], dims: usize) -> Case {
    let name = format!("rms_norm {shape:?} with {dims} dimensions of weight");
    match dims {
        0 => Case::new(
            name,
            [side(shape)],
            |t| rms_norm(&t[0], None, EPS),
            |i: &[Array]| naive::rms_norm(&i[0], &ones(&i[0].shape[i[0].shape.len() - 1..]), EPS),
        ),
        _ => Case::new(
            name,
            [side(shape), weight(&shape[shape.len() - dims..])],
            |t| rms_norm(&t[0], &t[1], EPS),
            |i: &[Array]| naive::rms_norm(&i[0], &i[1], EPS),
        ),
    }
}

fn naive_gated(x: &Array, gate: &Array, weight: &Array, order: GateOrder) -> Array {
    let gated = |x: &Array| naive::binary(x, gate, |x, z| x * naive::phi(Activation::Silu, z));
    match order {
        GateOrder::GateFirst => naive::rms_norm(&gated(x), weight, EPS),
        GateOrder::NormFirst => gated(&naive::rms_norm(x, weight, EPS)),
    }
}

/// The same with a gate.
pub fn gated_rms(shape: &[usize], dims: usize, order: GateOrder) -> Case {
    let mut inputs = vec![side(shape), side(shape)];
    inputs.extend((dims > 0).then(|| weight(&shape[shape.len() - dims..])));
    let one = ones(&shape[shape.len() - 1..]);
    Case::new(
        format!("gated_rms_norm {shape:?} {order:?} with {dims} dimensions of weight"),
        inputs,
        move |t| gated_rms_norm(&t[0], &t[1], t.get(2), EPS, order),
        move |i: &[Array]| naive_gated(&i[0], &i[1], i.get(2).unwrap_or(&one), order),
    )
}

/// The stream in the type of the rest, or in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stream {
    /// That of the rest.
    Same,
    /// f32 where the rest is in half precision.
    Wide,
}

/// The norm of a sum, and the sum, concatenated.
pub fn add_rms(shape: &[usize], stream: Stream) -> Case {
    let case = Case::new(
        format!("add_rms_norm {shape:?} {stream:?}"),
        [side(shape), weight(&shape[shape.len() - 1..]), side(shape)],
        move |t| {
            let dtype = t[0].dtype();
            let wide = match dtype {
                DType::F16 | DType::BF16 if stream == Stream::Wide => DType::F32,
                _ => dtype,
            };
            let (y, s) = add_rms_norm(&t[0], &t[2].cast(wide)?, &t[1], EPS)?;
            assert_eq!((y.dtype(), s.dtype()), (dtype, wide));
            crate::concat(&[&y, &s.cast(dtype)?], 0)
        },
        |i: &[Array]| {
            let s = naive::binary(&i[0], &i[2], |a, b| a + b);
            let y = naive::rms_norm(&s, &i[1], EPS);
            let shape = [&[2 * s.shape[0]], &s.shape[1..]].concat();
            Array { shape, data: [y.data, s.data].concat() }
        },
    );
    case.cancelling(2)
}

/// Layer norm, without a bias and with one.
pub fn layer(shape: &[usize], eps: f64) -> [Case; 2] {
    let n = &shape[shape.len() - 1..];
    let [x, weight, bias] = [
        (shape, Values::Between(-1.0, 3.0)),
        (n, Values::Either(0.5, 1.5)),
        (n, Values::Between(-1.0, 1.0)),
    ]
    .map(|(shape, values)| input_of(shape, values));
    [vec![x.clone(), weight.clone()], vec![x, weight, bias]].map(|inputs| {
        let case = Case::new(
            format!("layer_norm {shape:?} {eps} of {} inputs", inputs.len()),
            inputs,
            move |t| layer_norm(&t[0], &t[1], t.get(2), eps),
            move |i: &[Array]| naive::layer_norm(i, eps),
        );
        case.cancelling(64)
    })
}

/// Softmax along a dimension.
pub fn softmax(shape: &[usize], dim: usize) -> Case {
    Case::new(
        format!("softmax {shape:?} {dim}"),
        [side(shape)],
        move |t| t[0].softmax(dim),
        move |i: &[Array]| naive::softmax(&i[0], dim),
    )
}

/// Its logarithm.
pub fn log_softmax(shape: &[usize], dim: usize) -> Case {
    let case = Case::new(
        format!("log_softmax {shape:?} {dim}"),
        [side(shape)],
        move |t| t[0].log_softmax(dim),
        move |i: &[Array]| naive::softmax(&i[0], dim).map(f64::ln),
    );
    case.cancelling(8)
}

pub(super) fn list() -> Vec<Case> {
    let norms = [
        rms(&[65, 300], 1),
        rms(&[3, 513], 1),
        rms(&[70, 2, 33], 2),
        rms(&[5, 1], 0),
        gated_rms(&[65, 300], 1, GateOrder::GateFirst),
        gated_rms(&[3, 513], 1, GateOrder::NormFirst),
        gated_rms(&[70, 2, 33], 2, GateOrder::NormFirst),
        add_rms(&[65, 300], Stream::Wide),
        add_rms(&[3, 513], Stream::Same),
    ];
    let softmaxes = [
        softmax(&[33, 1025], 1),
        softmax(&[2, 3, 5], 1),
        log_softmax(&[3, 1030], 1),
        log_softmax(&[2, 3, 5], 0),
    ];
    norms.into_iter().chain(layer(&[7, 1030], 1e-5)).chain(softmaxes).collect()
}
