//! RMS norm, alone and after the addition of a residual.

use taipan::check::{Array, Case, Values, array, check, devices, input_of};
use taipan::{DType, Device, Result, Tensor, add_rms_norm, concat, rms_norm};

use crate::naive;

/// Large, so that the gradient of a row of one does not cancel.
const EPS: f64 = 0.5;

/// Rows of 0 and 1, short and long workgroups, and more rows than a task or a partial sum has.
const SHAPES: [&[usize]; 14] = [
    &[1],
    &[0],
    &[7],
    &[0, 3],
    &[3, 0],
    &[1, 1],
    &[5, 1],
    &[2, 3, 33],
    &[3, 512],
    &[3, 513],
    &[2, 1025],
    &[63, 5],
    &[65, 300],
    &[4200, 3],
];

fn inputs(shape: &[usize], sides: usize) -> Vec<taipan::check::Input> {
    let n = shape[shape.len() - 1];
    let side = input_of(shape, Values::Between(-2.0, 2.0));
    let mut inputs = vec![side; sides];
    inputs.insert(1, input_of(&[n], Values::Between(-1.5, 1.5)));
    inputs
}

#[test]
fn alone() {
    for shape in SHAPES {
        check(&Case::new(
            format!("rms_norm {shape:?}"),
            inputs(shape, 1),
            |t| rms_norm(&t[0], &t[1], EPS),
            |i: &[Array]| naive::rms_norm(&i[0], &i[1], EPS),
        ));
    }
}

/// The stream in the type of the rest, or in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stream {
    Same,
    Wide,
}

/// Check both results, concatenated, with a gradient for each.
fn check_add(shape: &'static [usize], stream: Stream) {
    check(
        &Case::new(
            format!("add_rms_norm {shape:?} {stream:?}"),
            inputs(shape, 2),
            move |t| {
                let dtype = t[0].dtype();
                let wide = match dtype {
                    DType::F16 | DType::BF16 if stream == Stream::Wide => DType::F32,
                    _ => dtype,
                };
                let (y, s) = add_rms_norm(&t[0], &t[2].cast(wide)?, &t[1], EPS)?;
                assert_eq!((y.dtype(), s.dtype()), (dtype, wide));
                concat(&[&y, &s.cast(dtype)?], 0)
            },
            |i: &[Array]| {
                let s = naive::binary(&i[0], &i[2], |a, b| a + b);
                let y = naive::rms_norm(&s, &i[1], EPS);
                let shape = [&[2 * s.shape[0]], &s.shape[1..]].concat();
                Array { shape, data: [y.data, s.data].concat() }
            },
        )
        .cancelling(2),
    );
}

#[test]
fn behind_a_residual() {
    for shape in SHAPES {
        check_add(shape, Stream::Same);
    }
}

#[test]
fn behind_a_residual_in_f32() {
    for shape in [&[0, 3][..], &[3, 0], &[2, 3, 33], &[3, 513], &[65, 300]] {
        check_add(shape, Stream::Wide);
    }
}

/// Each result alone has a gradient: nothing comes from the other.
#[test]
fn one_result_alone() {
    check(
        &Case::new(
            "the sum of add_rms_norm",
            inputs(&[3, 5], 2),
            |t| {
                let (y, s) = add_rms_norm(&t[0], &t[2], &t[1], EPS)?;
                // The weight is used, with a gradient of 0.
                s.add(&y.scale(0.0)?)
            },
            |i: &[Array]| naive::binary(&i[0], &i[2], |a, b| a + b),
        )
        .cancelling(2),
    );
    check(&Case::new(
        "the norm of add_rms_norm",
        inputs(&[3, 5], 2),
        |t| Ok(add_rms_norm(&t[0], &t[2], &t[1], EPS)?.0),
        |i: &[Array]| {
            let s = naive::binary(&i[0], &i[2], |a, b| a + b);
            naive::rms_norm(&s, &i[1], EPS)
        },
    ));
}

/// Tensors, and the gradient of `x` times its size, for a row that is `size` times another.
fn scaled(size: f64, eps: f64, dtype: DType, device: &Device) -> Result<[Vec<f64>; 3]> {
    let row: Vec<f64> = (0..600).map(|i| ((i * 37 % 101) as f64 - 50.0) / 64.0).collect();
    let make = |data: Vec<f64>| -> Result<Tensor> {
        let data: Vec<f32> = data.iter().map(|&x| x as f32).collect();
        Tensor::new(&data, &[1, data.len()], device)?.cast(dtype)
    };
    let x = make(row.iter().map(|x| x * size).collect())?.tracked();
    let weight = make(row.iter().map(|x| 1.0 + x).collect())?.reshape(&[600])?.tracked();
    let dy = make(row.iter().rev().copied().collect())?;
    let y = rms_norm(&x, &weight, eps)?;
    let grads = y.backward_from(&dy)?;
    let dx = array(grads.of(&x)?).map(|dx| dx * size).data;
    Ok([array(&y).data, dx, array(grads.of(&weight)?).data])
}

/// Squares that overflow or vanish: the norm does not depend on the size of a row.
#[test]
fn huge_and_tiny_rows() -> Result<()> {
    let same = |got: &[f64], want: &[f64], within: f64, what: &str| {
        let size = want.iter().map(|x| x.abs()).fold(0.0, f64::max);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= within * size, "{what}: {got:e}, want {want:e}");
        }
    };
    for device in devices() {
        let types = [(DType::F32, 2e-6), (DType::BF16, 2e-2)];
        for (dtype, within) in types.into_iter().filter(|(dtype, _)| device.supports(*dtype)) {
            let want = scaled(1.0, 0.0, dtype, &device)?;
            // Powers of two, so that the rows are the same but for the exponent.
            for exponent in [-110, -84, -60, -48, 48, 60, 84, 110] {
                let got = scaled(2f64.powi(exponent), 0.0, dtype, &device)?;
                for ((got, want), what) in got.iter().zip(&want).zip(["y", "dx", "dweight"]) {
                    let what = format!("{what} of 2^{exponent} in {dtype} on {}", device.name());
                    same(got, want, within, &what);
                }
            }
            // √eps as large as the row, however small that is, and far larger.
            let (want, got) = (
                scaled(1.0, 1.0, dtype, &device)?,
                scaled(2f64.powi(-84), 2f64.powi(-168), dtype, &device)?,
            );
            same(&got[0], &want[0], within, "eps of 2^-168");
            let (want, got) = (
                scaled(1.0, 2f64.powi(40), dtype, &device)?,
                scaled(2f64.powi(-20), 1.0, dtype, &device)?,
            );
            same(&got[0], &want[0], within, "eps of 1");
        }
    }
    Ok(())
}

/// Rows, and the norm they have.
#[test]
fn rows_without_a_size() -> Result<()> {
    const INF: f32 = f32::INFINITY;
    let cases: [([f32; 3], f64, [f32; 3]); 5] = [
        ([0.0, 0.0, 0.0], 1e-5, [0.0; 3]),
        ([0.0, 0.0, 0.0], 0.0, [f32::NAN; 3]),
        ([1.0, f32::NAN, 2.0], 1e-5, [f32::NAN; 3]),
        ([1.0, INF, 2.0], 1e-5, [0.0, f32::NAN, 0.0]),
        ([1.0, -INF, 2.0], 1e-5, [0.0, f32::NAN, 0.0]),
    ];
    for device in devices() {
        let weight = Tensor::ones(&[3], DType::F32, &device)?;
        for (x, eps, want) in cases {
            let y = rms_norm(&Tensor::new(&x, &[1, 3], &device)?, &weight, eps)?;
            for (got, want) in y.read_blocking::<f32>()?.into_iter().zip(want) {
                let same = got == want || got.is_nan() && want.is_nan();
                assert!(same, "{x:?} on {}: {got}, want {want}", device.name());
            }
        }
    }
    Ok(())
}
