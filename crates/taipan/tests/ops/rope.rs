//! Rotary position embedding.

use taipan::check::cases::attention::rotary;
use taipan::check::{Array, array, check, devices};
use taipan::{DType, Device, Result, Tensor, rope};

use crate::naive;

/// One channel pair and many, and no step or head.
#[test]
fn any_shape() {
    for shape in
        [[2, 3, 4, 6], [1, 70, 2, 64], [1, 1, 1, 2], [0, 3, 1, 4], [2, 0, 1, 4], [1, 2, 3, 0]]
    {
        check(&rotary(shape));
    }
}

/// Angles of thousands of turns. In f64 those of a base of 1, which are whole numbers; in f32 all,
/// against f64.
#[test]
fn large_positions() -> Result<()> {
    let x = Tensor::randn(&[1, 3, 2, 8], 1, DType::F32, &Device::Cpu)?;
    let close = |found: &Tensor, expected: &Array, within: f64| {
        for (found, expected) in array(found).data.iter().zip(&expected.data) {
            assert!((found - expected).abs() < within, "{found} {expected}");
        }
    };
    for position in [1000, 65536, 1 << 20] {
        let exact = x.cast(DType::F64)?;
        close(&rope(&exact, 1.0, position)?, &naive::rope(&array(&x), 1.0, position), 1e-12);
        for device in devices() {
            for base in [1.0, 1e4, 1e11] {
                let expected = array(&rope(&exact, base, position)?);
                close(&rope(&x.to(&device)?, base, position)?, &expected, 1e-6);
            }
        }
    }
    Ok(())
}

/// Steps in two calls, the second from a position on, are those of one call, to the bit.
#[test]
fn in_two_calls() -> Result<()> {
    for device in devices() {
        let x = Tensor::randn(&[2, 9, 3, 8], 1, DType::F32, &device)?;
        let whole = array(&rope(&x, 1e4, 7)?.slice(1, 4..9)?);
        let end = array(&rope(&x.slice(1, 4..9)?, 1e4, 11)?);
        assert_eq!(whole.data, end.data, "{}", device.name());
    }
    Ok(())
}

#[test]
fn errors() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let message = |x: &Tensor, base, position| rope(x, base, position).unwrap_err().to_string();
    assert_eq!(
        message(&zeros(&[2, 3, 4])?, 1e4, 0),
        "rope: the input is [2, 3, 4], expected [b, l, h, d]"
    );
    let odd = zeros(&[1, 2, 3, 5])?;
    assert_eq!(
        message(&odd, 1e4, 0),
        "rope: the input is [1, 2, 3, 5], expected an even number of channels"
    );
    let x = zeros(&[1, 2, 3, 4])?;
    assert_eq!(message(&x, f64::NAN, 0), "rope: base is NaN, expected 1 or more");
    assert_eq!(
        message(&x, 1e4, u32::MAX as usize),
        "rope: position 4294967297, expected less than 2³²"
    );
    Ok(())
}
