//! Dropout: the mask follows from the seed.

use taipan::check::cases::elementwise::dropout;
use taipan::check::{FLOATS, array, check, devices};
use taipan::{DType, Device, Result, Tensor};

use crate::naive::is_kept;

#[test]
fn values_and_gradients() {
    for shape in [&[][..], &[0], &[1], &[7, 13], &[2, 20_001]] {
        for (p, seed) in [(0.25, 1), (0.0, 2), (0.9, u64::MAX - 5)] {
            check(&dropout(shape, p, seed));
        }
    }
}

/// The same elements on every device and in every type.
#[test]
fn one_mask_everywhere() -> Result<()> {
    const P: f64 = 0.3;
    let expected: Vec<bool> = (0..5000).map(|i| is_kept(i, P, 7)).collect();
    let share = expected.iter().filter(|kept| **kept).count() as f64 / 5000.0;
    assert!((share - 0.7).abs() < 0.02, "{share}");
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            let y = Tensor::ones(&[50, 100], dtype, &device)?.dropout(P, 7)?;
            let found: Vec<bool> = array(&y).data.iter().map(|y| *y != 0.0).collect();
            assert_eq!(found, expected, "{dtype} on {device:?}");
        }
    }
    Ok(())
}

#[test]
fn another_seed_is_another_mask() -> Result<()> {
    let x = Tensor::ones(&[64], DType::F32, &Device::Cpu)?;
    let of = |seed| x.dropout(0.5, seed)?.read_blocking::<f32>();
    assert_ne!(of(1)?, of(2)?);
    assert_ne!(of(1)?, of(1 + (1 << 32))?);
    let error = x.dropout(1.0, 1).unwrap_err().to_string();
    assert_eq!(error, "dropout: p is 1, expected 0 ≤ p < 1");
    assert!(x.dropout(f64::NAN, 1).is_err());
    Ok(())
}
