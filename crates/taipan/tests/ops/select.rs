//! Comparisons, selection by a mask, and triangles.

use taipan::check::cases::indexing::{masked_fill, tril, where_cond};
use taipan::check::{Array, FLOATS, array, check, devices};
use taipan::{DType, Device, Operand, Result, Tensor};

use crate::naive;

type Compare = fn(&Tensor, Operand) -> Result<Tensor>;
type Math = fn(f64, f64) -> bool;

const COMPARISONS: [(&str, Compare, Math); 6] = [
    ("eq", |a, b| a.eq(b), |a, b| a == b),
    ("ne", |a, b| a.ne(b), |a, b| a != b),
    ("lt", |a, b| a.lt(b), |a, b| a < b),
    ("le", |a, b| a.le(b), |a, b| a <= b),
    ("gt", |a, b| a.gt(b), |a, b| a > b),
    ("ge", |a, b| a.ge(b), |a, b| a >= b),
];

/// A tensor of any type.
fn tensor_of(x: &Array, dtype: DType, device: &Device) -> Result<Tensor> {
    match dtype {
        DType::U32 => {
            let data: Vec<u32> = x.data.iter().map(|x| *x as u32).collect();
            Tensor::new(&data, &x.shape, device)
        }
        _ => Ok(taipan::check::tensor(x, dtype, device)),
    }
}

/// All pairs of numbers, repeated on either side, in every type.
#[test]
fn comparisons() -> Result<()> {
    const INF: f64 = f64::INFINITY;
    for device in devices() {
        for dtype in FLOATS.into_iter().chain([DType::U32]).filter(|&t| device.supports(t)) {
            let values: &[f64] = match dtype {
                DType::U32 => &[0.0, 1.0, 16777217.0, 4294967295.0],
                _ => &[-INF, -1.5, -0.0, 0.0, 1.5, INF, f64::NAN],
            };
            let n = values.len();
            let a = Array { shape: vec![n, 1], data: values.to_vec() };
            let b = Array { shape: vec![n], data: values.to_vec() };
            let pair = Array::from_fn(&[2], |i| values[i[0]]);
            let of = |x: &Array| tensor_of(x, dtype, &device);
            for (name, call, math) in COMPARISONS {
                let math = |a: f64, b: f64| math(a, b) as u32 as f64;
                let mask = call(&of(&a)?, (&of(&b)?).into())?;
                assert_eq!(mask.dtype(), DType::U32);
                assert_eq!(array(&mask), naive::binary(&a, &b, math), "{name} in {dtype}");
                let mask = call(&of(&b)?, (&of(&b)?).into())?;
                assert_eq!(array(&mask), b.map(|x| math(x, x)), "{name} in {dtype}");
                let mask = call(&of(&pair)?, Operand::Number(1.0))?;
                assert_eq!(array(&mask), pair.map(|x| math(x, 1.0)), "{name} 1 in {dtype}");
            }
        }
    }
    Ok(())
}

/// Several chunks of a thread, and rows longer than a block.
#[test]
fn large_comparisons() -> Result<()> {
    for device in devices() {
        let a = Tensor::randn(&[9, 2051], 1, DType::F32, &device)?;
        let b = Tensor::randn(&[2051], 2, DType::F32, &device)?;
        let want = naive::binary(&array(&a), &array(&b), |a, b| (a < b) as u32 as f64);
        assert_eq!(array(&a.lt(&b)?), want);
    }
    Ok(())
}

#[test]
fn one_of_two() {
    let shapes: [[&[usize]; 3]; 9] = [
        [&[], &[], &[]],
        [&[0], &[0], &[]],
        [&[7], &[7], &[7]],
        [&[3, 4], &[3, 4], &[3, 4]],
        [&[3, 4], &[], &[3, 4]],
        [&[4], &[3, 1], &[2, 1, 1]],
        [&[3, 1], &[4], &[]],
        [&[], &[2, 1], &[1, 3]],
        [&[2051], &[9, 2051], &[9, 1]],
    ];
    shapes.into_iter().for_each(|[mask, a, b]| check(&where_cond(mask, a, b)));
}

#[test]
fn masked() {
    for (x, mask) in [(&[3, 4][..], &[3, 4][..]), (&[2, 3, 4], &[3, 1]), (&[5], &[])] {
        check(&masked_fill(x, mask));
    }
}

/// What was not selected may be infinite or NaN.
#[test]
fn a_gradient_reaches_what_was_selected() -> Result<()> {
    for device in devices() {
        let x = Tensor::new(&[0f32, 4.0], &[2], &device)?.tracked();
        let y = x.gt(0.0)?.where_cond(&x.rsqrt()?, &x)?;
        assert_eq!(y.read_blocking::<f32>()?, [0.0, 0.5]);
        let filled = x.log()?.masked_fill(&x.eq(0.0)?, 0.0)?;
        assert_eq!(filled.read_blocking::<f32>()?[0], 0.0);
    }
    Ok(())
}

#[test]
fn triangles() {
    for shape in [&[1, 1][..], &[3, 4], &[4, 3], &[2, 3, 3], &[0, 3], &[3, 0]] {
        for diagonal in [0, 1, -1, -9, i64::MAX, i64::MIN] {
            check(&tril(shape, diagonal));
        }
    }
}

#[test]
fn errors() -> Result<()> {
    let cpu = &Device::Cpu;
    let (a, b) = (Tensor::ones(&[2], DType::F32, cpu)?, Tensor::ones(&[3], DType::F32, cpu)?);
    let mask = Tensor::ones(&[2], DType::U32, cpu)?;
    let long = Tensor::ones(&[2], DType::I64, cpu)?;
    let cases = [
        (a.eq(&b), "eq: [2] and [3] do not broadcast"),
        (long.eq(&long), "eq: the left side is i64, expected a float or u32"),
        (a.lt(&mask), "lt: the right side is u32, expected f32"),
        (a.where_cond(&a, &a), "where: the mask is f32, expected u32"),
        (mask.where_cond(&a, &b), "where: [2] and [3] do not broadcast"),
        (
            b.slice(0, 0..1)?.masked_fill(&mask, 0.0),
            "masked_fill: the mask is [2], expected it to broadcast to [1]",
        ),
        (a.tril(0), "tril: the input is [2], expected 2 dimensions or more"),
    ];
    for (found, expected) in cases {
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
    Ok(())
}
