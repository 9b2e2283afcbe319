//! Losses of numbers and of probabilities.

use taipan::check::{Array, Case, Values, check, devices, input, input_of};
use taipan::{DType, Device, Result, Tensor, binary_cross_entropy_with_logits, mse_loss};

use crate::naive;

/// The mean of `f` over the pairs of elements.
fn mean_of(i: &[Array], f: impl Fn(f64, f64) -> f64) -> Array {
    let losses: Vec<f64> = i[0].data.iter().zip(&i[1].data).map(|(x, t)| f(*x, *t)).collect();
    Array { shape: vec![], data: vec![naive::mean(&losses)] }
}

#[test]
fn losses() {
    for shape in [&[][..], &[1], &[7], &[3, 5], &[40, 511]] {
        check(&Case::new(
            format!("mse_loss {shape:?}"),
            [input(shape), input(shape)],
            // The check wants results in the type of the inputs.
            |t| mse_loss(&t[0], &t[1])?.cast(t[0].dtype()),
            |i| mean_of(i, |x, t| (x - t).powi(2)),
        ));
        check(&Case::new(
            format!("binary_cross_entropy_with_logits {shape:?}"),
            [
                input_of(shape, Values::Between(-4.0, 4.0)),
                input_of(shape, Values::Between(0.0, 1.0)),
            ],
            |t| binary_cross_entropy_with_logits(&t[0], &t[1])?.cast(t[0].dtype()),
            |i| {
                mean_of(i, |x, t| {
                    let p = 1.0 / (1.0 + (-x).exp());
                    -t * p.ln() - (1.0 - t) * (1.0 - p).ln()
                })
            },
        ));
    }
}

/// Large logits neither overflow nor lose a small loss; halves have a loss in f32.
#[test]
fn large_logits() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F16, DType::F32].into_iter().filter(|&t| device.supports(t)) {
            let x = Tensor::new(&[-80f32, 80.0], &[2], &device)?.cast(dtype)?.tracked();
            let of = |t: [f32; 2]| -> Result<Tensor> {
                let t = Tensor::new(&t, &[2], &device)?.cast(dtype)?;
                binary_cross_entropy_with_logits(&x, &t)
            };
            assert_eq!(of([1.0, 0.0])?.item()?, 80.0);
            assert_eq!(of([0.0, 1.0])?.dtype(), DType::F32);
            let right = of([0.0, 1.0])?.item()?;
            assert!((right / (-80f64).exp() - 1.0).abs() < 1e-5, "{right:e}");
        }
    }
    Ok(())
}

#[test]
fn errors() -> Result<()> {
    let cpu = &Device::Cpu;
    let (a, b) = (Tensor::ones(&[2], DType::F32, cpu)?, Tensor::ones(&[1, 2], DType::F32, cpu)?);
    let error = mse_loss(&a, &b).unwrap_err().to_string();
    assert_eq!(error, "mse_loss: the target is [1, 2], expected [2]");
    let error = binary_cross_entropy_with_logits(&a, &a.cast(DType::F64)?).unwrap_err().to_string();
    assert_eq!(error, "binary_cross_entropy_with_logits: the target is f64, expected f32");
    Ok(())
}
