//! Elements moved, joined, parted and repeated.

use crate::check::{Array, Case, Values, input, input_of, naive};
use crate::{Tensor, concat, stack};

/// The same elements in another shape.
pub fn reshape(from: &[usize], to: &[usize]) -> Case {
    let (own, to) = (to.to_vec(), to.to_vec());
    let name = format!("reshape {from:?} {to:?}");
    let reference = move |i: &[Array]| Array { shape: to.clone(), data: i[0].data.clone() };
    Case::new(name, [input(from)], move |t| t[0].reshape(&own), reference)
}

/// Dimensions in another order.
pub fn permute(shape: &[usize], order: &[usize]) -> Case {
    let (own, order) = (order.to_vec(), order.to_vec());
    let name = format!("permute {shape:?} {order:?}");
    let reference = move |i: &[Array]| {
        let shape: Vec<usize> = order.iter().map(|&dim| i[0].shape[dim]).collect();
        Array::from_fn(&shape, |at| {
            let mut from = vec![0; at.len()];
            order.iter().zip(at).for_each(|(&dim, &i)| from[dim] = i);
            i[0].at(&from)
        })
    };
    Case::new(name, [input(shape)], move |t| t[0].permute(&own), reference)
}

/// Two dimensions exchanged.
pub fn transpose(shape: &[usize], a: usize, b: usize) -> Case {
    let reference = move |i: &[Array]| {
        let mut shape = i[0].shape.clone();
        shape.swap(a, b);
        Array::from_fn(&shape, |at| {
            let mut from = at.to_vec();
            from.swap(a, b);
            i[0].at(&from)
        })
    };
    let name = format!("transpose {shape:?} {a} {b}");
    Case::new(name, [input(shape)], move |t| t[0].transpose(a, b), reference)
}

/// The elements of `x` along `dim` from `start` on, `size` of them.
fn sliced(x: &Array, dim: usize, start: usize, size: usize) -> Array {
    let mut shape = x.shape.clone();
    shape[dim] = size;
    Array::from_fn(&shape, |at| naive::moved(x, at, dim, at[dim] + start))
}

/// A range of a dimension.
pub fn slice(shape: &[usize], dim: usize, range: std::ops::Range<usize>) -> Case {
    let (name, own) = (format!("slice {shape:?} {dim} {range:?}"), range.clone());
    let reference = move |i: &[Array]| sliced(&i[0], dim, range.start, range.len());
    Case::new(name, [input(shape)], move |t| t[0].slice(dim, own.clone()), reference)
}

/// One of the parts of a dimension, whose gradient is zero elsewhere.
pub fn split(shape: &[usize], dim: usize, sizes: &[usize], part: usize) -> Case {
    let (start, size) = (sizes[..part].iter().sum(), sizes[part]);
    let name = format!("split {shape:?} {dim} {sizes:?}: part {part}");
    let sizes = sizes.to_vec();
    let call = move |t: &[Tensor]| Ok(t[0].split(dim, &sizes)?.swap_remove(part));
    Case::new(name, [input(shape)], call, move |i| sliced(&i[0], dim, start, size))
}

/// Tensors joined along a dimension.
pub fn joined(parts: &[&[usize]], dim: usize) -> Case {
    let inputs: Vec<_> = parts.iter().map(|shape| input(shape)).collect();
    let reference = move |i: &[Array]| {
        let mut shape = i[0].shape.clone();
        shape[dim] = i.iter().map(|part| part.shape[dim]).sum();
        Array::from_fn(&shape, |at| {
            let mut at = at.to_vec();
            let part = i
                .iter()
                .find(|part| {
                    let here = at[dim] < part.shape[dim];
                    at[dim] -= if here { 0 } else { part.shape[dim] };
                    here
                })
                .unwrap();
            part.at(&at)
        })
    };
    let call = move |t: &[Tensor]| concat(&t.iter().collect::<Vec<_>>(), dim);
    Case::new(format!("concat {parts:?} {dim}"), inputs, call, reference)
}

/// Three tensors along a new dimension.
pub fn stacked(shape: &[usize], dim: usize) -> Case {
    let reference = move |i: &[Array]| {
        let mut out = i[0].shape.clone();
        out.insert(dim, 3);
        Array::from_fn(&out, |at| {
            let mut own = at.to_vec();
            let which = own.remove(dim);
            i[which].at(&own)
        })
    };
    let call = move |t: &[Tensor]| stack(&[&t[0], &t[1], &t[2]], dim);
    let inputs = [input(shape), input(shape), input(shape)];
    Case::new(format!("stack {shape:?} {dim}"), inputs, call, reference)
}

/// Repeated where a size is 1 or missing.
pub fn broadcast_to(from: &[usize], to: &[usize]) -> Case {
    let (own, to) = (to.to_vec(), to.to_vec());
    let name = format!("broadcast_to {from:?} {to:?}");
    let inputs = [input_of(from, Values::Between(-2.0, 2.0))];
    let reference = move |i: &[Array]| Array::from_fn(&to, |at| i[0].at_broadcast(at));
    Case::new(name, inputs, move |t| t[0].broadcast_to(&own), reference)
}

/// Repeated a number of times along each dimension.
pub fn repeat(shape: &[usize], counts: &[usize]) -> Case {
    let name = format!("repeat {shape:?} {counts:?}");
    let (own, counts) = (counts.to_vec(), counts.to_vec());
    let reference = move |i: &[Array]| {
        let shape = &i[0].shape;
        let missing = counts.len() - shape.len();
        let size = |d: usize| if d < missing { 1 } else { shape[d - missing] };
        let out: Vec<usize> = (0..counts.len()).map(|d| counts[d] * size(d)).collect();
        Array::from_fn(&out, |at| {
            let own: Vec<usize> = (missing..at.len()).map(|d| at[d] % size(d)).collect();
            i[0].at(&own)
        })
    };
    Case::new(name, [input(shape)], move |t| t[0].repeat(&own), reference).cancelling(6)
}

/// A dimension with -1.5 before and behind it.
pub fn pad(shape: &[usize], dim: usize, widths: [usize; 2]) -> Case {
    let reference = move |i: &[Array]| {
        let shape = &i[0].shape;
        let mut out = shape.to_vec();
        out[dim] += widths[0] + widths[1];
        Array::from_fn(&out, |at| match at[dim].checked_sub(widths[0]) {
            Some(j) if j < shape[dim] => naive::moved(&i[0], at, dim, j),
            _ => -1.5,
        })
    };
    let name = format!("pad {shape:?} {dim} {widths:?}");
    Case::new(name, [input(shape)], move |t| t[0].pad(dim, widths, -1.5), reference)
}

/// A dimension in reverse.
pub fn flip(shape: &[usize], dim: usize) -> Case {
    let reference = move |i: &[Array]| {
        let last = i[0].shape[dim].wrapping_sub(1);
        Array::from_fn(&i[0].shape, |at| naive::moved(&i[0], at, dim, last - at[dim]))
    };
    let name = format!("flip {shape:?} {dim}");
    Case::new(name, [input(shape)], move |t| t[0].flip(dim), reference)
}

pub(super) fn list() -> Vec<Case> {
    vec![
        reshape(&[2, 3, 4], &[4, 1, 6]),
        permute(&[2, 3, 4, 5], &[2, 0, 3, 1]),
        transpose(&[131, 257], 0, 1),
        slice(&[5, 130, 3], 1, 1..129),
        split(&[67, 48], 1, &[16, 15, 17], 1),
        split(&[2, 40], 1, &[2; 20], 19),
        joined(&[&[2, 1, 3], &[2, 5, 3], &[2, 67, 3]], 1),
        stacked(&[2, 3], 1),
        broadcast_to(&[2, 1, 33], &[2, 5, 33]),
        repeat(&[2, 3], &[2, 1, 3]),
        pad(&[2, 33, 4], 1, [3, 1]),
        flip(&[70, 300], 1),
    ]
}
