//! RMS norm, alone, after the addition of a residual, and with a gate.

use taipan::check::cases::norms::{EPS, Stream, add_rms, gated_rms, rms};
use taipan::check::{Array, Case, Values, array, check, devices, input_of};
use taipan::{DType, Device, GateOrder, Result, Tensor, add_rms_norm, gated_rms_norm, rms_norm};

use crate::naive;

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

/// Two sides, and a weight between them.
fn inputs(shape: &[usize]) -> Vec<taipan::check::Input> {
    let n = shape[shape.len() - 1];
    let side = input_of(shape, Values::Between(-2.0, 2.0));
    let mut inputs = vec![side; 2];
    inputs.insert(1, input_of(&[n], Values::Between(-1.5, 1.5)));
    inputs
}

#[test]
fn alone() {
    for shape in SHAPES {
        check(&rms(shape, 1));
    }
}

#[test]
fn without_a_weight() {
    for shape in SHAPES {
        check(&rms(shape, 0));
    }
}

/// `x`, and how many of its last dimensions `weight` has: more rows than a task has, few and many
/// groups, and none.
const GROUPS: [(&[usize], usize); 6] = [
    (&[2, 3, 5], 2),
    (&[2, 3, 5], 3),
    (&[70, 2, 33], 2),
    (&[3, 100, 4], 2),
    (&[0, 3, 4], 2),
    (&[2, 0, 4], 2),
];

#[test]
fn groups_of_channels() {
    for (shape, dims) in GROUPS {
        check(&rms(shape, dims));
    }
}

#[test]
fn with_a_gate() {
    let shapes = SHAPES.into_iter().map(|shape| (shape, 1)).chain(GROUPS);
    for (shape, dims) in shapes {
        for order in [GateOrder::GateFirst, GateOrder::NormFirst] {
            check(&gated_rms(shape, dims, order));
            check(&gated_rms(shape, 0, order));
        }
    }
}

#[test]
fn errors() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let x = zeros(&[2, 3, 4])?;
    for shape in [&[3][..], &[2, 4], &[], &[1, 2, 3, 4]] {
        let message = rms_norm(&x, &zeros(shape)?, EPS).unwrap_err().to_string();
        let expected = "expected [4] or more of the last dimensions of [2, 3, 4]";
        assert_eq!(message, format!("rms_norm: the weight is {shape:?}, {expected}"));
    }
    let gated = |gate: &Tensor| gated_rms_norm(&x, gate, None, EPS, GateOrder::GateFirst);
    assert_eq!(
        gated(&zeros(&[2, 4, 3])?).unwrap_err().to_string(),
        "gated_rms_norm: the gate is [2, 4, 3], expected [2, 3, 4]"
    );
    assert_eq!(
        gated(&x.cast(DType::F64)?).unwrap_err().to_string(),
        "gated_rms_norm: the gate is f64, expected f32"
    );
    Ok(())
}

#[test]
fn behind_a_residual() {
    for shape in SHAPES {
        check(&add_rms(shape, Stream::Same));
    }
}

#[test]
fn behind_a_residual_in_f32() {
    for shape in [&[0, 3][..], &[3, 0], &[2, 3, 33], &[3, 513], &[65, 300]] {
        check(&add_rms(shape, Stream::Wide));
    }
}

/// Each result alone has a gradient: nothing comes from the other.
#[test]
fn one_result_alone() {
    check(
        &Case::new(
            "the sum of add_rms_norm",
            inputs(&[3, 5]),
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
        inputs(&[3, 5]),
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
