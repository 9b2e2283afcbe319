//! Functions of one number.

use taipan::check::cases::elementwise::{CANCELLING, FUNCTIONS, affine, scale};
use taipan::check::{FLOATS, Values, array, check, devices, tolerance};
use taipan::{DType, Device, Result, Tensor};

#[test]
fn values_and_derivatives() {
    for shape in [&[][..], &[0], &[1], &[5, 0, 2], &[7, 13], &[2, 3, 5, 7]] {
        for function in &FUNCTIONS {
            function.3.iter().for_each(|&values| check(&function.case(shape, values)));
        }
        for function in &CANCELLING {
            let case = |&values| check(&function.case(shape, values).cancelling(9));
            function.3.iter().for_each(case);
        }
    }
}

/// Up to the largest number of f16, where finite differences would need steps too small for f64.
#[test]
fn large_angles() -> Result<()> {
    let angles: Vec<f64> = (0..195).map(|i| 617.3 * i as f64 - 60_000.0).collect();
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            let x = Tensor::new(
                &angles.iter().map(|x| *x as f32).collect::<Vec<_>>(),
                &[195],
                &device,
            )?
            .cast(dtype)?
            .tracked();
            let stored = array(&x);
            type Math = fn(f64) -> f64;
            let functions: [(Tensor, Math, Math); 2] =
                [(x.sin()?, f64::sin, f64::cos), (x.cos()?, f64::cos, |x| -x.sin())];
            for (y, math, derivative) in functions {
                let dx = y.sum()?.backward()?;
                let tolerance = tolerance(dtype);
                for (found, math, within) in [
                    (array(&y), math, 4.0 * tolerance.value),
                    (array(dx.of(&x)?), derivative, 4.0 * tolerance.grad),
                ] {
                    for (x, found) in stored.data.iter().zip(&found.data) {
                        let error = (found - math(*x)).abs();
                        assert!(error <= within, "{x} on {device:?} in {dtype}: off by {error:e}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Beyond what the fast reduction of angles takes, among others that it does.
#[test]
fn larger_angles_on_the_cpu() -> Result<()> {
    let angles: Vec<f32> = (0..3000).map(|i| (i % 7) as f32 * 1e3 * 2f32.powi(i % 17)).collect();
    let x = Tensor::new(&angles, &[3000], &Device::Cpu)?.tracked();
    type Math = fn(f64) -> f64;
    let functions: [(Tensor, Math, Math); 2] =
        [(x.sin()?, f64::sin, f64::cos), (x.cos()?, f64::cos, |x| -x.sin())];
    for (y, math, derivative) in functions {
        let dx = y.sum()?.backward()?;
        for (found, math) in [(array(&y), math), (array(dx.of(&x)?), derivative)] {
            for (x, found) in angles.iter().zip(&found.data) {
                let error = (found - math((*x).into())).abs();
                assert!(error <= 2f64.powi(-22), "{x}: off by {error:e}");
            }
        }
    }
    Ok(())
}

/// More elements than one block, than one chunk of a thread, and a rest.
#[test]
fn many_elements() {
    for function in [&FUNCTIONS[1], &FUNCTIONS[6]] {
        for len in [1023, 1025, (1 << 14) + 1, (3 << 14) + 1037] {
            check(&function.case(&[len], Values::Between(-2.0, 2.0)));
        }
    }
}

/// At a kink, as PyTorch has it; NaN stays, and beyond their limits angles give it.
#[test]
fn kinks_and_nan() -> Result<()> {
    type Call = fn(&Tensor) -> Result<Tensor>;
    let cases: [(&str, Call, [f64; 3]); 12] = [
        ("abs", Tensor::abs, [0.0, 0.0, 0.0]),
        ("abs", Tensor::abs, [-3.0, 3.0, -1.0]),
        ("clamp_min", |x| x.clamp_min(2.0), [2.0, 2.0, 0.0]),
        ("clamp_max", |x| x.clamp_max(2.0), [2.0, 2.0, 0.0]),
        ("clamp", |x| x.clamp(-1.0, f64::INFINITY), [f64::INFINITY, f64::INFINITY, 1.0]),
        ("pow 0", |x| x.pow(0.0), [0.0, 1.0, 0.0]),
        ("pow 1", |x| x.pow(1.0), [0.0, 0.0, 1.0]),
        ("pow 2", |x| x.pow(2.0), [0.0, 0.0, 0.0]),
        ("pow 63", |x| x.pow(63.0), [-1.0, -1.0, 63.0]),
        ("pow 65", |x| x.pow(65.0), [-1.0, -1.0, 65.0]),
        ("sin", Tensor::sin, [-0.0, -0.0, 1.0]),
        ("rsqrt", Tensor::rsqrt, [0.25, 2.0, -4.0]),
    ];
    let nans: [(&str, Call); 7] = [
        ("abs", Tensor::abs),
        ("clamp", |x| x.clamp(-1.0, 1.0)),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("pow 3", |x| x.pow(3.0)),
        ("pow 0.3", |x| x.pow(0.3)),
        ("maximum", |x| x.maximum(0.0)),
    ];
    for device in taipan::check::devices() {
        let of = |x: f64| Ok(Tensor::new(&[x as f32], &[1], &device)?.tracked());
        for (name, call, [x, value, derivative]) in cases {
            let x = of(x)?;
            let y = call(&x)?;
            assert_eq!(y.item()?.to_bits(), value.to_bits(), "{name} of {x:?} on {device:?}");
            let found = y.backward()?.of(&x)?.item()?;
            assert_eq!(found, derivative, "{name}' of {x:?} on {device:?}");
        }
        for (name, call) in nans {
            assert!(call(&of(f64::NAN)?)?.item()?.is_nan(), "{name} on {device:?}");
        }
        assert!(of(-2.0)?.pow(0.3)?.item()?.is_nan());
        assert!(of(2e9)?.sin()?.item()?.is_nan());
        assert!(of(f64::INFINITY)?.cos()?.item()?.is_nan());
    }
    Ok(())
}

#[test]
fn parameters_are_finite() -> Result<()> {
    let x = Tensor::ones(&[1], DType::F32, &Device::Cpu)?;
    let error = x.pow(f64::NAN).unwrap_err().to_string();
    assert_eq!(error, "pow: the parameter is NaN, expected a finite number");
    let error = x.clamp(2.0, 1.0).unwrap_err().to_string();
    assert_eq!(error, "clamp: the limits are 2 and 1, expected the lower one first");
    Ok(())
}

/// `factor·x + offset` is rounded once.
#[test]
fn factor_and_offset() {
    for (factor, offset) in [(2.0, -1.0), (-0.5, 0.25), (0.0, 3.0), (1.0, 0.0)] {
        for shape in [&[][..], &[0], &[3, 4]] {
            check(&affine(shape, factor, offset));
        }
    }
}

#[test]
fn relu_is_flat_at_0() -> Result<()> {
    for zero in [0.0, -0.0] {
        let x = Tensor::new(&[zero], &[1], &Device::Cpu)?.tracked();
        let y = x.relu()?;
        assert_eq!(y.item()?, 0.0);
        assert_eq!(y.backward()?.of(&x)?.item()?, 0.0);
    }
    Ok(())
}

/// The factor need not be a number of the type: only the result does.
#[test]
fn scale_rounds_once() -> Result<()> {
    let cases = [
        // 1e-8 is no f16, 1e-8·60000 is; nor is 70000, but 0.001·70000 is.
        (DType::F16, 60000.0, 1e-8),
        (DType::F16, 0.001, 70000.0),
        (DType::BF16, 3.0, 0.1),
        (DType::F16, 3.0, 0.1),
        (DType::F32, 3.0, 0.1),
        (DType::F64, 3.0, 0.1),
    ];
    for (dtype, x, factor) in cases {
        let x = Tensor::full(&[2], x, dtype, &Device::Cpu)?.tracked();
        let stored = taipan::check::array(&x).data[0];
        let y = x.scale(factor)?;
        let want = stored * factor;
        let tolerance = taipan::check::tolerance(dtype);
        let within = tolerance.value * want.abs() + tolerance.tiny;
        let got = taipan::check::array(&y).data[0];
        assert!(
            (got - want).abs() <= within,
            "scale {stored} by {factor} in {dtype}: got {got}, want {want}, tolerance {within:e}"
        );
    }
    Ok(())
}

#[test]
fn scale_by_a_number_of_the_type() {
    for factor in [0.0, 1.0, -2.5] {
        for shape in [&[][..], &[0], &[3, 4]] {
            check(&scale(shape, factor));
        }
    }
}
