//! Functions of one number.

use taipan::check::{Array, Case, FLOATS, Values, array, check, devices, input_of, tolerance};
use taipan::{Activation, DType, Device, Result, Tensor};

use crate::naive::phi;

/// A function: its name, the method, the mathematics, and where it is tested.
struct Function(&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, &'static [Values]);

const WIDE: Values = Values::Between(-5.0, 5.0);
const NEAR_0: Values = Values::Between(-1e-3, 1e-3);
const POSITIVE: Values = Values::Between(0.05, 6.0);
const BOTH_SIDES: Values = Values::Either(0.05, 5.0);
/// Where derivatives that are computed from a rounded result are not much smaller than it.
const BENT: Values = Values::Between(-2.0, 2.0);
const LEFT: Values = Values::Between(-9.0, -5.0);
const TAILS: Values = Values::Either(5.0, 9.0);

/// The functions whose relative error is small everywhere.
const FUNCTIONS: [Function; 23] = [
    Function("neg", Tensor::neg, |x| -x, &[WIDE]),
    Function("exp", Tensor::exp, f64::exp, &[WIDE, TAILS]),
    Function("exp_m1", Tensor::expm1, f64::exp_m1, &[WIDE, NEAR_0]),
    Function("ln", Tensor::log, f64::ln, &[POSITIVE, Values::Between(0.9, 1.1)]),
    Function("ln_1p", Tensor::log1p, f64::ln_1p, &[POSITIVE, NEAR_0, Values::Between(-0.9, 0.0)]),
    Function("sqrt", Tensor::sqrt, f64::sqrt, &[POSITIVE]),
    Function("tanh", Tensor::tanh, f64::tanh, &[BENT, NEAR_0]),
    Function("sigmoid", Tensor::sigmoid, |x| phi(Activation::Sigmoid, x), &[BENT, LEFT]),
    Function("relu", Tensor::relu, |x| phi(Activation::Relu, x), &[BOTH_SIDES]),
    Function(
        "leaky_relu",
        |x| x.leaky_relu(0.125),
        |x| phi(Activation::LeakyRelu(0.125), x),
        &[BOTH_SIDES],
    ),
    Function("softcap", |x| x.softcap(3.0), |x| phi(Activation::Softcap(3.0), x), &[BENT, NEAR_0]),
    Function(
        "softplus",
        Tensor::softplus,
        |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        &[WIDE, TAILS],
    ),
    Function("abs", Tensor::abs, f64::abs, &[BOTH_SIDES]),
    Function("recip", Tensor::recip, f64::recip, &[BOTH_SIDES]),
    Function("rsqrt", Tensor::rsqrt, |x| 1.0 / x.sqrt(), &[POSITIVE]),
    Function("pow 3", |x| x.pow(3.0), |x| x * x * x, &[BOTH_SIDES]),
    Function("pow 0", |x| x.pow(0.0), |_| 1.0, &[BOTH_SIDES]),
    Function("pow -2", |x| x.pow(-2.0), |x| 1.0 / (x * x), &[BOTH_SIDES]),
    Function("pow 2.5", |x| x.pow(2.5), |x| x * x * x.sqrt(), &[POSITIVE]),
    Function("pow 0.3", |x| x.pow(0.3), |x| x.powf(0.3), &[POSITIVE]),
    Function("pow 65", |x| x.pow(65.0), |x| x.powf(65.0), &[Values::Either(0.97, 1.03)]),
    Function("clamp_min", |x| x.clamp_min(0.0), |x| x.max(0.0), &[BOTH_SIDES]),
    Function(
        "clamp",
        |x| x.clamp(-1.0, 2.0),
        |x| x.clamp(-1.0, 2.0),
        &[Values::Either(0.1, 0.9), Values::Either(2.1, 5.0)],
    ),
];

/// Those where a term of about x cancels for negative numbers, or near a multiple of π.
const CANCELLING: [Function; 5] = [
    Function("silu", Tensor::silu, |x| phi(Activation::Silu, x), &[WIDE, NEAR_0, TAILS]),
    Function("gelu", Tensor::gelu, |x| phi(Activation::Gelu, x), &[WIDE, NEAR_0, TAILS]),
    Function("gelu_erf", Tensor::gelu_erf, |x| phi(Activation::GeluErf, x), &[WIDE, NEAR_0, TAILS]),
    Function("sin", Tensor::sin, f64::sin, &[WIDE, NEAR_0]),
    Function("cos", Tensor::cos, f64::cos, &[WIDE, NEAR_0]),
];

fn case(function: &Function, shape: &[usize], values: Values) -> Case {
    let &Function(name, call, math, _) = function;
    let name = format!("{name} {shape:?} {values:?}");
    Case::new(
        name,
        [input_of(shape, values)],
        move |t| call(&t[0]),
        move |i: &[Array]| i[0].map(math),
    )
}

#[test]
fn values_and_derivatives() {
    for shape in [&[][..], &[0], &[1], &[5, 0, 2], &[7, 13], &[2, 3, 5, 7]] {
        for function in &FUNCTIONS {
            function.3.iter().for_each(|&values| check(&case(function, shape, values)));
        }
        for function in &CANCELLING {
            function
                .3
                .iter()
                .for_each(|&values| check(&case(function, shape, values).cancelling(9)));
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

/// More elements than one block, than one chunk of a thread, and a rest.
#[test]
fn many_elements() {
    for function in [&FUNCTIONS[1], &FUNCTIONS[6]] {
        for len in [1023, 1025, (1 << 14) + 1, (3 << 14) + 1037] {
            check(&case(function, &[len], BENT));
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
fn affine() {
    for (factor, offset) in [(2.0, -1.0), (-0.5, 0.25), (0.0, 3.0), (1.0, 0.0)] {
        for shape in [&[][..], &[0], &[3, 4]] {
            let name = format!("affine {shape:?} {factor} {offset}");
            let inputs = [input_of(shape, WIDE)];
            let reference = move |i: &[Array]| i[0].map(|x| x * factor + offset);
            let call = move |t: &[Tensor]| t[0].affine(factor, offset);
            check(&Case::new(name, inputs, call, reference).cancelling(6));
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
            let name = format!("scale {shape:?} {factor}");
            let inputs = [input_of(shape, WIDE)];
            let reference = move |i: &[Array]| i[0].map(|x| x * factor);
            check(&Case::new(name, inputs, move |t| t[0].scale(factor), reference));
        }
    }
}
