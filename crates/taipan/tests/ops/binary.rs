//! Arithmetic of two tensors, with broadcasting.

use taipan::check::{Array, Case, Values, check, input_of};
use taipan::{Result, Tensor};

use crate::naive;

/// An operation: its name, the method, and the mathematics.
struct Operation(&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);

const OPERATIONS: [Operation; 4] = [
    Operation("add", Tensor::add, |a, b| a + b),
    Operation("sub", Tensor::sub, |a, b| a - b),
    Operation("mul", Tensor::mul, |a, b| a * b),
    Operation("div", Tensor::div, |a, b| a / b),
];

/// Check all operations on two shapes, in both orders.
fn check_all(a: &[usize], b: &[usize]) {
    for &Operation(op, call, math) in &OPERATIONS {
        for (a, b) in [(a, b), (b, a)] {
            let inputs = [a, b].map(|shape| input_of(shape, Values::Either(0.5, 2.0)));
            let reference = move |i: &[Array]| naive::binary(&i[0], &i[1], math);
            check(&Case::new(
                format!("{op} {a:?} {b:?}"),
                inputs,
                move |t| call(&t[0], &t[1]),
                reference,
            ));
        }
    }
}

#[test]
fn equal_shapes() {
    for shape in [&[][..], &[1], &[0], &[7], &[3, 5], &[2, 3, 4, 5], &[2, 0, 3]] {
        check_all(shape, shape);
    }
}

#[test]
fn one_side_repeated() {
    let shapes: [(&[usize], &[usize]); 11] = [
        (&[3, 4], &[]),
        (&[3, 4], &[1]),
        (&[3, 4], &[4]),
        (&[3, 4], &[3, 1]),
        (&[3, 4], &[1, 1, 1]),
        (&[2, 3, 4], &[3, 1]),
        (&[2, 3, 4], &[2, 1, 4]),
        (&[2, 3, 4], &[2, 1, 1]),
        (&[2, 3, 4], &[1, 3, 1]),
        (&[2, 3, 4, 5], &[3, 1, 5]),
        (&[2, 3, 4, 5], &[2, 1, 4, 1]),
    ];
    shapes.iter().for_each(|(a, b)| check_all(a, b));
}

#[test]
fn both_sides_repeated() {
    let shapes: [(&[usize], &[usize]); 5] = [
        (&[4, 1, 3], &[2, 1]),
        (&[3, 1], &[1, 4]),
        (&[2, 1, 3, 1], &[5, 1, 4]),
        (&[1, 3, 1, 2], &[2, 1, 4, 1]),
        (&[1, 1], &[1, 1, 1]),
    ];
    shapes.iter().for_each(|(a, b)| check_all(a, b));
}

#[test]
fn nothing_repeated_and_repetitions_of_nothing() {
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[0], &[]),
        (&[0], &[1]),
        (&[3, 0], &[3, 1]),
        (&[0, 3], &[3]),
        (&[0, 1], &[1, 4]),
        (&[2, 0, 3], &[1, 3]),
    ];
    shapes.iter().for_each(|(a, b)| check_all(a, b));
}

/// More elements than one chunk of a thread, rows longer and shorter than a block.
#[test]
fn many_elements() {
    let shapes: [(&[usize], &[usize]); 4] =
        [(&[40, 1031], &[1031]), (&[40, 1031], &[40, 1]), (&[9, 7, 401], &[7, 1]), (&[17000], &[])];
    for (a, b) in shapes {
        for &Operation(op, call, math) in &OPERATIONS[1..3] {
            let inputs = [a, b].map(|shape| input_of(shape, Values::Either(0.5, 2.0)));
            let reference = move |i: &[Array]| naive::binary(&i[0], &i[1], math);
            let name = format!("{op} {a:?} {b:?}");
            check(&Case::new(name, inputs, move |t| call(&t[0], &t[1]), reference));
        }
    }
}

#[test]
fn broadcast_to_repeats() {
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[], &[3, 4]),
        (&[1], &[1]),
        (&[4], &[3, 4]),
        (&[3, 1], &[3, 4]),
        (&[2, 1, 3], &[2, 5, 3]),
        (&[1, 3, 1], &[2, 3, 4]),
        (&[1], &[0]),
        (&[0, 1], &[2, 0, 3]),
        (&[2, 3], &[2, 3]),
    ];
    for (from, to) in shapes {
        let inputs = [input_of(from, Values::Between(-2.0, 2.0))];
        let reference = move |i: &[Array]| Array::from_fn(to, |at| i[0].at_broadcast(at));
        let name = format!("broadcast_to {from:?} {to:?}");
        check(&Case::new(name, inputs, move |t| t[0].broadcast_to(to), reference));
    }
}

/// Both sides are one tensor: both gradients count.
#[test]
fn a_tensor_with_itself() {
    for &Operation(op, call, math) in &OPERATIONS {
        let inputs = [input_of(&[3, 4], Values::Either(0.5, 2.0))];
        let reference = move |i: &[Array]| i[0].map(|x| math(x, x));
        check(&Case::new(
            format!("{op} with itself"),
            inputs,
            move |t| call(&t[0], &t[0]),
            reference,
        ));
    }
}
