//! Functions of one number.

use taipan::check::{Array, Case, Values, check, input_of};
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
const FUNCTIONS: [Function; 12] = [
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
];

/// Those where a term of about x cancels for negative numbers.
const CANCELLING: [Function; 3] = [
    Function("silu", Tensor::silu, |x| phi(Activation::Silu, x), &[WIDE, NEAR_0, TAILS]),
    Function("gelu", Tensor::gelu, |x| phi(Activation::Gelu, x), &[WIDE, NEAR_0, TAILS]),
    Function("gelu_erf", Tensor::gelu_erf, |x| phi(Activation::GeluErf, x), &[WIDE, NEAR_0, TAILS]),
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

/// More elements than one block, than one chunk of a thread, and a rest.
#[test]
fn many_elements() {
    for function in [&FUNCTIONS[1], &FUNCTIONS[6]] {
        for len in [1023, 1025, (1 << 14) + 1, (3 << 14) + 1037] {
            check(&case(function, &[len], BENT));
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
