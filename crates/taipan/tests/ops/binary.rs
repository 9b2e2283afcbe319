//! Arithmetic of two tensors, with broadcasting.

use taipan::check::cases::elementwise::OPERATIONS;
use taipan::check::cases::layout::broadcast_to;
use taipan::check::{Array, Case, Values, check, input_of};
use taipan::{Device, Result, Tensor};

use crate::naive;

/// Check all operations on two shapes, in both orders.
fn check_all(a: &[usize], b: &[usize]) {
    for operation in &OPERATIONS {
        check(&operation.case(a, b));
        check(&operation.case(b, a));
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
        OPERATIONS[1..3].iter().for_each(|operation| check(&operation.case(a, b)));
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
    shapes.into_iter().for_each(|(from, to)| check(&broadcast_to(from, to)));
}

/// Both sides are one tensor: both gradients count.
#[test]
fn a_tensor_with_itself() {
    OPERATIONS.iter().for_each(|operation| check(&operation.with_itself()));
}

/// Equal elements share the gradient; NaN wins; a number is rounded to the type.
#[test]
fn larger_and_smaller() -> Result<()> {
    for device in taipan::check::devices() {
        let of = |data: &[f32]| Ok(Tensor::new(data, &[data.len()], &device)?.tracked());
        let (a, b) = (of(&[1.0, 2.0, 3.0, f32::NAN])?, of(&[2.0, 2.0, f32::NAN, 0.0])?);
        for (y, values, da) in
            [(a.maximum(&b)?, [2.0, 2.0], [0.0, 0.5]), (a.minimum(&b)?, [1.0, 2.0], [1.0, 0.5])]
        {
            let found = y.read_blocking::<f32>()?;
            assert_eq!(found[..2], values);
            assert!(found[2].is_nan() && found[3].is_nan());
            let ones = Tensor::ones(&[4], taipan::DType::F32, &device)?;
            let grads = y.backward_from(&ones)?;
            assert_eq!(grads.of(&a)?.read_blocking::<f32>()?[..2], da);
            assert_eq!(grads.of(&b)?.read_blocking::<f32>()?[..2], [1.0 - da[0], 0.5]);
        }
        assert_eq!(of(&[-1.0, 1.0])?.maximum(0.5)?.read_blocking::<f32>()?, [0.5, 1.0]);
    }
    Ok(())
}

/// Every operator, with a tensor on each side, or a number on one.
#[test]
fn operators() {
    type Call = fn(&Tensor, &Tensor) -> Result<Tensor>;
    type Math = fn(f64, f64) -> f64;
    let cases: [(&str, Call, Math); 8] = [
        ("&a + &b", |a, b| a + b, |a, b| a + b),
        ("a - &b", |a, b| a.clone() - b, |a, b| a - b),
        ("&a * b", |a, b| a * b.clone(), |a, b| a * b),
        ("a / b", |a, b| a.clone() / b.clone(), |a, b| a / b),
        ("result - &b", |a, b| Ok(a.clone()) - b, |a, b| a - b),
        ("result / b", |a, b| Ok(a.clone()) / b.clone(), |a, b| a / b),
        ("&a + result", |a, b| a + Ok(b.clone()), |a, b| a + b),
        ("a * result", |a, b| a.clone() * Ok(b.clone()), |a, b| a * b),
    ];
    for (name, call, math) in cases {
        let inputs = [&[3, 4][..], &[4]].map(|shape| input_of(shape, Values::Either(0.5, 2.0)));
        let reference = move |i: &[Array]| naive::binary(&i[0], &i[1], math);
        check(&Case::new(name, inputs, move |t| call(&t[0], &t[1]), reference));
    }
    type CallOfOne = fn(&Tensor) -> Result<Tensor>;
    type MathOfOne = fn(f64) -> f64;
    let cases: [(&str, CallOfOne, MathOfOne); 10] = [
        ("-&a", |a| -a, |a| -a),
        ("-a", |a| -a.clone(), |a| -a),
        ("&a + 2", |a| a + 2.5, |a| a + 2.5),
        ("2 + a", |a| 2.5 + a.clone(), |a| 2.5 + a),
        ("a - 2", |a| a.clone() - 2.5, |a| a - 2.5),
        ("2 - &a", |a| 2.5 - a, |a| 2.5 - a),
        ("&a * 2", |a| a * 2.5, |a| a * 2.5),
        ("2 * a", |a| 2.5 * a.clone(), |a| a * 2.5),
        ("a / 2", |a| a.clone() / 2.5, |a| a / 2.5),
        ("2 / &a", |a| 2.5 / a, |a| 2.5 / a),
    ];
    for (name, call, math) in cases {
        let inputs = [input_of(&[3, 4], Values::Either(0.5, 2.0))];
        let case = Case::new(name, inputs, move |t| call(&t[0]), move |i| i[0].map(math));
        check(&case.cancelling(5));
    }
}

/// The first error of a chain is what it returns.
#[test]
fn a_chain_stops_at_its_first_error() -> Result<()> {
    let a = Tensor::ones(&[2], taipan::DType::F32, &Device::Cpu)?;
    let b = Tensor::ones(&[3], taipan::DType::F32, &Device::Cpu)?;
    let error = (&a * &b + &a - &b).unwrap_err().to_string();
    assert_eq!(error, "mul: [2] and [3] do not broadcast");
    let c = (&a * 3.0 + &a - (&a / &a)?)?;
    assert_eq!(c.read_blocking::<f32>()?, [3.0, 3.0]);
    let error = (&a - &a / &b).unwrap_err().to_string();
    assert_eq!(error, "div: [2] and [3] do not broadcast");
    Ok(())
}
