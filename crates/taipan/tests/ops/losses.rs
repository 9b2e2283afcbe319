//! Losses of numbers and of probabilities.

use taipan::check::cases::losses::{binary_cross_entropy, mse};
use taipan::check::{check, devices};
use taipan::{DType, Device, Result, Tensor, binary_cross_entropy_with_logits, mse_loss};

#[test]
fn losses() {
    for shape in [&[][..], &[1], &[7], &[3, 5], &[40, 511]] {
        check(&mse(shape));
        check(&binary_cross_entropy(shape));
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
