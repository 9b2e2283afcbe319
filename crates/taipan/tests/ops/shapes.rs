//! Dimensions added, removed and repeated; padding and stacking.

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
    for (shape, counts) in cases {
        let reference = move |i: &[Array]| {
            let missing = counts.len() - shape.len();
            let size = |d: usize| if d < missing { 1 } else { shape[d - missing] };
            let out: Vec<usize> = (0..counts.len()).map(|d| counts[d] * size(d)).collect();
            Array::from_fn(&out, |at| {
                let own: Vec<usize> = (missing..at.len()).map(|d| at[d] % size(d)).collect();
                i[0].at(&own)
            })
        };
        let name = format!("repeat {shape:?} {counts:?}");
        check(
            &Case::new(name, [input(shape)], move |t| t[0].repeat(counts), reference).cancelling(6),
        );
    }
}

#[test]
fn pad() {
    for shape in [&[3][..], &[0], &[2, 3], &[2, 3, 4]] {
        for dim in 0..shape.len() {
            for widths in [[0, 0], [1, 0], [0, 2], [3, 1]] {
                let reference = move |i: &[Array]| {
                    let mut out = shape.to_vec();
                    out[dim] += widths[0] + widths[1];
                    Array::from_fn(&out, |at| {
                        let mut own = at.to_vec();
                        match at[dim].checked_sub(widths[0]) {
                            Some(j) if j < shape[dim] => {
                                own[dim] = j;
                                i[0].at(&own)
                            }
                            _ => -1.5,
                        }
                    })
                };
                let name = format!("pad {shape:?} {dim} {widths:?}");
                let call = move |t: &[Tensor]| t[0].pad(dim, widths, -1.5);
                check(&Case::new(name, [input(shape)], call, reference));
            }
        }
    }
}

#[test]
fn stacked() {
    for (shape, dim) in [(&[3][..], 0), (&[3], 1), (&[2, 3], 1), (&[], 0), (&[0, 2], 2)] {
        let reference = move |i: &[Array]| {
            let mut out = shape.to_vec();
            out.insert(dim, 3);
            Array::from_fn(&out, |at| {
                let mut own = at.to_vec();
                let which = own.remove(dim);
                i[which].at(&own)
            })
        };
        let name = format!("stack {shape:?} {dim}");
        let call = move |t: &[Tensor]| stack(&[&t[0], &t[1], &t[2]], dim);
        check(&Case::new(name, [input(shape), input(shape), input(shape)], call, reference));
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
