//! Elements moved, joined and parted.

use taipan::check::cases::layout::{joined, permute, reshape, slice, split, transpose};
use taipan::check::{Array, Case, array, check, devices, indices, input};
use taipan::{DType, Device, Element, Result, Tensor, concat};

/// All orders of `0..n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let shorter = orders(n - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..n).map(move |at| {
                let mut order = order.clone();
                order.insert(at, n - 1);
                order
            })
        })
        .collect()
}

#[test]
fn reshape_keeps_the_order() {
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[], &[1, 1]),
        (&[1], &[]),
        (&[6], &[2, 3]),
        (&[2, 3], &[3, 2]),
        (&[2, 3, 4], &[24]),
        (&[2, 3, 4], &[4, 1, 6]),
        (&[0], &[0, 5]),
        (&[3, 0], &[0]),
        (&[2, 3], &[2, 3]),
    ];
    shapes.into_iter().for_each(|(from, to)| check(&reshape(from, to)));
}

#[test]
fn permute_in_every_order() {
    for shape in [&[][..], &[3], &[2, 3], &[2, 3, 4], &[2, 3, 4, 5], &[1, 3, 1, 2], &[2, 0, 3]] {
        for order in orders(shape.len()) {
            check(&permute(shape, &order));
        }
    }
}

#[test]
fn transpose_of_each_pair() {
    for shape in [&[3][..], &[2, 3], &[1, 4, 3], &[2, 3, 4, 5], &[131, 257], &[0, 2]] {
        for a in 0..shape.len() {
            for b in 0..shape.len() {
                check(&transpose(shape, a, b));
            }
        }
    }
}

#[test]
fn slice_every_range() {
    for shape in [&[4][..], &[3, 4], &[2, 3, 4], &[2, 4, 1, 3], &[3, 0], &[1]] {
        for dim in 0..shape.len() {
            for start in 0..=shape[dim] {
                for end in start..=shape[dim] {
                    check(&slice(shape, dim, start..end));
                }
            }
        }
    }
}

/// Slices written in place, one of them empty, are those of a copy; a clone keeps its values.
#[test]
fn written_slices() -> Result<()> {
    for device in devices() {
        for dim in 0..3 {
            let mut x = Tensor::randn(&[3, 4, 5], 1, DType::F32, &device)?;
            let (clone, before) = (x.clone(), array(&x));
            let mut shape = [3, 4, 5];
            shape[dim] = 2;
            let slice = Tensor::randn(&shape, 2, DType::F32, &device)?;
            x.write_slice(dim, 1, &slice)?;
            x.write_slice(dim, 3, &slice.slice(dim, 0..0)?)?;
            let expected = concat(
                &[&clone.slice(dim, 0..1)?, &slice, &clone.slice(dim, 3..clone.shape()[dim])?],
                dim,
            )?;
            assert_eq!(array(&x).data, array(&expected).data, "{dim} on {}", device.name());
            assert_eq!(array(&clone).data, before.data, "{dim} on {}", device.name());
        }
    }
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let mut x = zeros(&[2, 3])?;
    let mut message =
        |start, slice: &Tensor| x.write_slice(1, start, slice).unwrap_err().to_string();
    assert_eq!(
        message(2, &zeros(&[2, 2])?),
        "write_slice: 2..4 is not within dimension 1 of [2, 3]"
    );
    assert_eq!(message(0, &zeros(&[1, 2])?), "write_slice: the slice is [1, 2], expected [2, 2]");
    assert_eq!(
        message(0, &zeros(&[2, 1])?.tracked()),
        "write_slice: a tensor is tracked, expected no_grad"
    );
    Ok(())
}

/// Each part alone, whose gradient is zero elsewhere. The many parts take several launches.
#[test]
fn split_into_parts() {
    let shapes: [(&[usize], usize, &[usize]); 9] = [
        (&[6], 0, &[6]),
        (&[6], 0, &[1, 3, 2]),
        (&[3, 6], 0, &[2, 1]),
        (&[3, 6], 1, &[1, 0, 3, 2]),
        (&[2, 5, 3], 1, &[4, 1]),
        (&[2, 0], 1, &[0, 0]),
        (&[0, 3], 1, &[1, 2]),
        (&[67, 48], 1, &[16, 15, 17]),
        (&[2, 40], 1, &[2; 20]),
    ];
    for (shape, dim, sizes) in shapes {
        for i in 0..sizes.len() {
            check(&split(shape, dim, sizes, i));
        }
    }
}

/// All parts have a gradient, and one of them has two.
#[test]
fn split_and_concat_in_another_order() {
    let call = |t: &[Tensor]| {
        let parts = t[0].split(1, &[2, 4, 3])?;
        concat(&[&parts[2], &parts[0], &parts[1], &parts[2]], 1)
    };
    let reference = |i: &[Array]| {
        let from = [6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        Array::from_fn(&[33, 12], |at| i[0].at(&[at[0], from[at[1]]]))
    };
    check(&Case::new("split and concat", [input(&[33, 9])], call, reference));
}

#[test]
fn concat_along_each_dimension() {
    let shapes: [(usize, &[&[usize]]); 9] = [
        (0, &[&[3]]),
        (0, &[&[3], &[2], &[4]]),
        (0, &[&[2, 3], &[1, 3]]),
        (1, &[&[2, 3], &[2, 1], &[2, 4]]),
        (1, &[&[2, 1, 3], &[2, 5, 3]]),
        (2, &[&[2, 3, 1], &[2, 3, 2]]),
        (0, &[&[0], &[3], &[0]]),
        (1, &[&[2, 0], &[2, 3]]),
        (0, &[&[2, 0], &[1, 0]]),
    ];
    shapes.into_iter().for_each(|(dim, parts)| check(&joined(parts, dim)));
}

/// A tensor joined with itself gets both gradients.
#[test]
fn concat_with_itself() {
    let reference =
        |i: &[Array]| Array { shape: vec![4, 3], data: [&i[0].data[..], &i[0].data].concat() };
    let call = |t: &[Tensor]| concat(&[&t[0], &t[0]], 0);
    check(&Case::new("concat with itself", [input(&[2, 3])], call, reference));
}

/// Integers are moved like floats, exactly.
#[test]
fn integers_move_too() -> Result<()> {
    fn of<T: Element>(values: [T; 6], device: &Device) -> Result<()> {
        let x = Tensor::new(&values, &[2, 3], device)?;
        let [a, b, c, d, e, f] = values;
        let read = |x: Tensor| x.read_blocking::<T>();
        assert_eq!(read(x.reshape(&[3, 2])?)?, [a, b, c, d, e, f]);
        assert_eq!(read(x.transpose(0, 1)?)?, [a, d, b, e, c, f]);
        assert_eq!(read(x.slice(1, 1..3)?)?, [b, c, e, f]);
        assert_eq!(read(concat(&[&x, &x.slice(1, 0..1)?], 1)?)?, [a, b, c, a, d, e, f, d]);
        assert_eq!(read(x.split(1, &[1, 2])?.swap_remove(1))?, [b, c, e, f]);
        Ok(())
    }
    for device in &devices() {
        of([1, 2, u32::MAX, 4, 5, 6], device)?;
    }
    of([i64::MIN, -1, i64::MAX, (1 << 53) + 1, 5, 6], &Device::Cpu)
}

#[test]
fn arange_counts() -> Result<()> {
    let device = &Device::Cpu;
    let read = |x: Tensor| array(&x).data;
    assert_eq!(read(Tensor::arange(-2, 3, DType::F16, device)?), [-2.0, -1.0, 0.0, 1.0, 2.0]);
    assert_eq!(read(Tensor::arange(3, 3, DType::F32, device)?), [0.0; 0]);
    assert_eq!(
        Tensor::arange(0, 40_000, DType::U32, device)?.read_blocking::<u32>()?[39_999],
        39_999
    );
    let large = (1 << 53) + 1;
    let x = Tensor::arange(large, large + 3, DType::I64, device)?;
    assert_eq!(x.read_blocking::<i64>()?, [large, large + 1, large + 2]);
    let x = Tensor::arange(i64::MAX - 2, i64::MAX, DType::I64, device)?;
    assert_eq!(x.read_blocking::<i64>()?, [i64::MAX - 2, i64::MAX - 1]);
    Ok(())
}

#[test]
fn constants_fill() -> Result<()> {
    for shape in [&[][..], &[0], &[3], &[2, 3], &[40_000]] {
        let len = indices(shape).len();
        let expect = |x: Tensor, value| {
            let want = Array { shape: shape.to_vec(), data: vec![value; len] };
            assert!(array(&x) == want, "{shape:?} of {value} in {}: {x}", x.dtype());
        };
        expect(Tensor::zeros(shape, DType::BF16, &Device::Cpu)?, 0.0);
        expect(Tensor::full(shape, -3.0, DType::I64, &Device::Cpu)?, -3.0);
        for device in &devices() {
            expect(Tensor::zeros(shape, DType::F32, device)?, 0.0);
            expect(Tensor::ones(shape, DType::U32, device)?, 1.0);
            if device.supports(DType::F16) {
                expect(Tensor::full(shape, -2.5, DType::F16, device)?, -2.5);
            }
        }
    }
    Ok(())
}
