//! Dimensions added, removed and repeated; padding and stacking.

use taipan::check::cases::layout;
use taipan::check::{Array, Case, check, input};
use taipan::{DType, Device, Result, Tensor, stack};

#[test]
fn squeeze_and_unsqueeze() {
    for (shape, dim) in [(&[2, 3][..], 0), (&[2, 3], 1), (&[2, 3], 2), (&[], 0), (&[0], 1)] {
        let mut longer = shape.to_vec();
        longer.insert(dim, 1);
        let out = longer.clone();
        let reference = move |i: &[Array]| Array { shape: out.clone(), data: i[0].data.clone() };
        let name = format!("unsqueeze {shape:?} {dim}");
        check(&Case::new(name, [input(shape)], move |t| t[0].unsqueeze(dim), reference));
        let out = shape.to_vec();
        let reference = move |i: &[Array]| Array { shape: out.clone(), data: i[0].data.clone() };
        let name = format!("squeeze {longer:?} {dim}");
        check(&Case::new(name, [input(&longer)], move |t| t[0].squeeze(dim), reference));
    }
}

#[test]
fn repeat() {
    let cases: [(&[usize], &[usize]); 8] = [
        (&[3], &[2]),
        (&[3], &[1]),
        (&[3], &[0]),
        (&[], &[4]),
        (&[2, 3], &[3, 2]),
        (&[2, 3], &[2, 1, 3]),
        (&[0, 3], &[2, 2]),
        (&[2, 1, 3], &[1, 5, 2]),
    ];
    cases.into_iter().for_each(|(shape, counts)| check(&layout::repeat(shape, counts)));
}

#[test]
fn pad() {
    for shape in [&[3][..], &[0], &[2, 3], &[2, 3, 4]] {
        for dim in 0..shape.len() {
            for widths in [[0, 0], [1, 0], [0, 2], [3, 1]] {
                check(&layout::pad(shape, dim, widths));
            }
        }
    }
}

#[test]
fn stacked() {
    for (shape, dim) in [(&[3][..], 0), (&[3], 1), (&[2, 3], 1), (&[], 0), (&[0, 2], 2)] {
        check(&layout::stacked(shape, dim));
    }
}

#[test]
fn errors() -> Result<()> {
    let cpu = &Device::Cpu;
    let (a, b) = (Tensor::ones(&[2, 1], DType::F32, cpu)?, Tensor::ones(&[2], DType::F32, cpu)?);
    let cases = [
        (a.squeeze(0), "squeeze: dimension 0 of [2, 1] is 2, expected 1"),
        (a.squeeze(2), "squeeze: dimension 2 of [2, 1] does not exist"),
        (a.unsqueeze(3), "unsqueeze: dimension 3, expected at most 2 for [2, 1]"),
        (a.repeat(&[2]), "repeat: 1 counts found, expected 2 to 32 for [2, 1]"),
        (a.pad(2, [0, 0], 0.0), "pad: dimension 2 of [2, 1] does not exist"),
        (stack(&[&a, &b], 0), "stack: a tensor is [2], expected [2, 1]"),
        (stack(&[], 0), "stack: there are no tensors to stack"),
    ];
    for (found, expected) in cases {
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
    assert!(a.repeat(&[usize::MAX, 2]).is_err());
    assert!(a.pad(0, [usize::MAX, 1], 0.0).is_err());
    Ok(())
}
