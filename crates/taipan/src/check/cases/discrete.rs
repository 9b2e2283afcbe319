//! Cases of ops without a gradient: indices, masks, integers, and what is written in place.

use super::super::{Array, Case, Values, input, input_of, naive, round};
use crate::{DType, Result, Sampling, Tensor};

/// Whole numbers, of which many are equal: the parts before the point.
fn whole(x: &Tensor) -> Result<Tensor> {
    x.cast(DType::U32)?.cast(x.dtype())
}

/// The index of the first largest of elements that are often equal, along a dimension.
pub fn argmax(shape: &[usize], dim: usize) -> Case {
    let first = |x: &[f64]| x.iter().position(|&v| v == naive::max(x)).expect("not empty") as f64;
    let reference = move |i: &[Array]| naive::reduce(&i[0].map(f64::trunc), &[dim], first);
    let inputs = [input_of(shape, Values::Between(0.0, 9.0))];
    let name = format!("argmax {shape:?} {dim}");
    Case::new(name, inputs, move |t| whole(&t[0])?.argmax(dim), reference).discrete()
}

/// The indices of the `k` largest elements of rows, of which many are equal.
pub fn topk_indices(shape: &[usize], k: usize) -> Case {
    let reference = move |i: &[Array]| naive::topk(&i[0].map(f64::trunc), k).1;
    let call = move |t: &[Tensor]| Ok(whole(&t[0])?.topk(k)?.1);
    let inputs = [input_of(shape, Values::Between(0.0, 9.0))];
    Case::new(format!("topk_indices {shape:?} {k}"), inputs, call, reference).discrete()
}

/// Tokens drawn from rows of logits.
pub fn sample(shape: &[usize], sampling: Sampling) -> Case {
    let Sampling { top_k, top_p, .. } = sampling;
    let name = format!("sample {shape:?} top_k {top_k:?} top_p {top_p}");
    let (own, rows) = (sampling.clone(), shape[..shape.len() - 1].to_vec());
    let reference = move |i: &[Array]| {
        let tokens = naive::sample(&i[0], &own).into_iter().map(f64::from);
        Array { shape: rows.clone(), data: tokens.collect() }
    };
    let inputs = [input_of(shape, Values::Between(-4.0, 4.0))];
    Case::new(name, inputs, move |t| t[0].sample(&sampling), reference).discrete()
}

/// A comparison, and what it says of two numbers.
struct Comparison {
    name: &'static str,
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    math: fn(&f64, &f64) -> bool,
}

const COMPARISONS: [Comparison; 6] = [
    Comparison { name: "eq", call: |a, b| a.eq(b), math: f64::eq },
    Comparison { name: "ne", call: |a, b| a.ne(b), math: f64::ne },
    Comparison { name: "lt", call: |a, b| a.lt(b), math: f64::lt },
    Comparison { name: "le", call: |a, b| a.le(b), math: f64::le },
    Comparison { name: "gt", call: |a, b| a.gt(b), math: f64::gt },
    Comparison { name: "ge", call: |a, b| a.ge(b), math: f64::ge },
];

impl Comparison {
    /// Of elements that are often equal, in two shapes that broadcast.
    fn case(&self, a: &[usize], b: &[usize]) -> Case {
        let Comparison { name, call, math } = *self;
        let reference = move |i: &[Array]| {
            let [a, b] = [&i[0], &i[1]].map(|x| x.map(f64::trunc));
            Array::from_fn(&naive::broadcast(&a.shape, &b.shape), |at| {
                math(&a.at_broadcast(at), &b.at_broadcast(at)).into()
            })
        };
        let inputs = [a, b].map(|shape| input_of(shape, Values::Between(0.0, 3.0)));
        let call = move |t: &[Tensor]| call(&whole(&t[0])?, &whole(&t[1])?);
        Case::new(format!("compare {name} {a:?} {b:?}"), inputs, call, reference).discrete()
    }
}

/// Indices as rows of zeros with a one.
pub fn one_hot(shape: &[usize], classes: usize) -> Case {
    let reference = move |i: &[Array]| {
        let shape = [&i[0].shape[..], &[classes]].concat();
        Array::from_fn(&shape, |at| {
            let (class, row) = at.split_last().expect("a dimension of classes");
            (i[0].at(row).trunc() == *class as f64).into()
        })
    };
    let call = move |t: &[Tensor]| t[0].cast(DType::U32)?.one_hot(classes, t[0].dtype());
    // The last class is what may be rounded up to.
    let inputs = [input_of(shape, Values::Between(0.0, classes as f64 - 1.0))];
    Case::new(format!("one_hot {shape:?} {classes}"), inputs, call, reference).discrete()
}

/// Elements converted to another type: to integers truncated and saturated, to floats rounded.
pub fn cast(shape: &[usize], dtype: DType) -> Case {
    let math = move |x: f64| match dtype {
        DType::U32 => f64::from(x as u32),
        float => round(x, float),
    };
    let inputs = [input_of(shape, Values::Between(-300.0, 300.0))];
    let reference = move |i: &[Array]| i[0].map(math);
    Case::new(format!("cast {shape:?} to {dtype}"), inputs, move |t| t[0].cast(dtype), reference)
        .discrete()
}

/// A tensor of `shape` in which `len` rows of a dimension are written, from `start` on.
pub fn write_slice(shape: &[usize], dim: usize, start: usize, len: usize) -> Case {
    let mut part = shape.to_vec();
    part[dim] = len;
    let reference = move |i: &[Array]| {
        Array::from_fn(&i[0].shape, |at| match at[dim].checked_sub(start) {
            Some(j) if j < len => naive::moved(&i[1], at, dim, j),
            _ => i[0].at(at),
        })
    };
    let call = move |t: &[Tensor]| {
        let mut y = t[0].clone();
        y.write_slice(dim, start, &t[1])?;
        Ok(y)
    };
    let name = format!("write_slice {shape:?} {dim} {start} {len}");
    Case::new(name, [input(shape), input(&part)], call, reference).discrete()
}

pub(super) fn list() -> Vec<Case> {
    let likely =
        |top_k, top_p| Sampling { temperature: 0.8, top_k, top_p, seed: 3, ..Sampling::default() };
    let compared = COMPARISONS.iter().flat_map(|comparison| {
        [comparison.case(&[9, 2051], &[9, 1]), comparison.case(&[3, 1], &[2, 1, 4])]
    });
    let before = [
        argmax(&[17, 1025], 1),
        argmax(&[300, 41], 0),
        topk_indices(&[33, 65], 31),
        topk_indices(&[2, 2050], 1025),
        sample(&[33, 513], likely(Some(40), 1.0)),
        sample(&[33, 513], likely(None, 0.9)),
    ];
    let after = [
        one_hot(&[3, 33], 41),
        one_hot(&[401], 7),
        cast(&[3, 2051], DType::U32),
        cast(&[3, 2051], DType::F32),
        write_slice(&[3, 50, 41], 1, 7, 20),
        write_slice(&[2051, 3], 0, 3, 2048),
    ];
    before.into_iter().chain(compared).chain(after).collect()
}
