//! Softmax along each dimension.

use taipan::check::cases::norms::{log_softmax, softmax};
use taipan::check::{Array, FLOATS, array, check, round, tensor};
use taipan::{DType, Device, Result, Tensor};

#[test]
fn along_each_dimension() {
    let shapes: [&[usize]; 10] = [
        &[1],
        &[7],
        &[0],
        &[3, 4],
        &[0, 3],
        &[3, 0],
        &[2, 3, 5],
        &[2, 1, 3, 4],
        &[3, 1030],
        &[33, 1025],
    ];
    for shape in shapes {
        for dim in 0..shape.len() {
            check(&softmax(shape, dim));
        }
    }
}

#[test]
fn logarithm_along_each_dimension() {
    for shape in [&[1][..], &[7], &[0], &[3, 4], &[3, 0], &[2, 3, 5], &[3, 1030]] {
        for dim in 0..shape.len() {
            check(&log_softmax(shape, dim));
        }
    }
}

/// A certain class has the logarithm 0, an impossible one −∞; what softmax has no value for is NaN.
#[test]
fn logarithms_at_the_ends() -> Result<()> {
    const INF: f32 = f32::INFINITY;
    for device in taipan::check::devices() {
        let of = |x: &[f32]| Tensor::new(x, &[x.len()], &device)?.log_softmax(0)?.read_blocking();
        let large: Vec<f32> = of(&[1e4, 0.0, -INF])?;
        assert_eq!(large, [0.0, -1e4, -INF]);
        for undefined in [&[INF, 0.0][..], &[-INF, -INF], &[f32::NAN, 1.0]] {
            assert!(of(undefined)?.iter().all(|y: &f32| y.is_nan()), "{undefined:?}");
        }
    }
    Ok(())
}

/// Logits, and the softmax they have.
#[test]
fn large_logits() -> Result<()> {
    const INF: f64 = f64::INFINITY;
    let cases: [(&[f64], &[f64]); 7] = [
        (&[1e4, 0.0, -1e4], &[1.0, 0.0, 0.0]),
        (&[-1e4, -1e4], &[0.5, 0.5]),
        (&[6e4, 6e4, -6e4, 6e4, 6e4], &[0.25, 0.25, 0.0, 0.25, 0.25]),
        (&[-INF, 1.0, 1.0], &[0.0, 0.5, 0.5]),
        (&[-INF, -6e4], &[0.0, 1.0]),
        (&[f64::NAN, 1.0], &[f64::NAN, f64::NAN]),
        (&[-INF, -INF], &[f64::NAN, f64::NAN]),
    ];
    let huge: [(&[f64], &[f64]); 2] =
        [(&[1e30, 1e30, -1e30], &[0.5, 0.5, 0.0]), (&[-1e30, 0.0], &[0.0, 1.0])];
    for dtype in FLOATS {
        let wide = matches!(dtype, DType::F32 | DType::F64);
        for (x, want) in cases.iter().chain(huge.iter().filter(|_| wide)) {
            let data: Vec<f64> = x.iter().map(|&x| round(x, dtype)).collect();
            let x = Array { shape: vec![1, x.len()], data };
            let x = tensor(&x, dtype, &Device::Cpu).tracked();
            let y = x.softmax(1)?;
            let same = |got: &[f64], want: &[f64]| {
                got.iter().zip(want).all(|(got, want)| got == want || got.is_nan() && want.is_nan())
            };
            let got = array(&y).data;
            assert!(same(&got, want), "softmax of {x} in {dtype}: got {got:?}, want {want:?}");

            // dx = y·(dy − Σ dy·y)
            let dy: Vec<f64> = (0..want.len()).map(|i| i as f64 - 0.5).collect();
            let dot: f64 = dy.iter().zip(*want).map(|(dy, y)| dy * y).sum();
            let want: Vec<f64> = dy.iter().zip(*want).map(|(dy, y)| y * (dy - dot)).collect();
            let dy = Array { shape: vec![1, dy.len()], data: dy };
            let grads = y.backward_from(&tensor(&dy, dtype, &Device::Cpu))?;
            let got = array(grads.of(&x)?).data;
            assert!(same(&got, &want), "softmax' of {x} in {dtype}: got {got:?}, want {want:?}");
        }
    }
    Ok(())
}

/// Rows of many equal logits sum to 1.
#[test]
fn probabilities_sum_to_1() -> Result<()> {
    let y = Tensor::zeros(&[2, 50_000], DType::F32, &Device::Cpu)?.softmax(1)?;
    for x in y.read_blocking::<f32>()? {
        assert!((x - 2e-5).abs() < 1e-11, "{x}");
    }
    Ok(())
}
