//! Functions of one number and of two.

use crate::check::naive::{self, phi};
use crate::check::{Array, Case, Values, input, input_of};
use crate::{Activation, Result, Tensor, gated};

/// A function: its name, the method, the mathematics, and where it is tested.
pub struct Function(
    &'static str,
    fn(&Tensor) -> Result<Tensor>,
    fn(f64) -> f64,
    /// Where it is tested.
    pub &'static [Values],
);

const WIDE: Values = Values::Between(-5.0, 5.0);
const NEAR_0: Values = Values::Between(-1e-3, 1e-3);
const POSITIVE: Values = Values::Between(0.05, 6.0);
const BOTH_SIDES: Values = Values::Either(0.05, 5.0);
/// Where derivatives that are computed from a rounded result are not much smaller than it.
const BENT: Values = Values::Between(-2.0, 2.0);
const LEFT: Values = Values::Between(-9.0, -5.0);
const TAILS: Values = Values::Either(5.0, 9.0);

/// The functions whose relative error is small everywhere.
pub const FUNCTIONS: [Function; 24] = [
    Function("neg", Tensor::neg, |x| -x, &[WIDE]),
    Function("exp", Tensor::exp, f64::exp, &[WIDE, TAILS]),
    Function("expm1", Tensor::expm1, f64::exp_m1, &[WIDE, NEAR_0]),
    Function("log", Tensor::log, f64::ln, &[POSITIVE, Values::Between(0.9, 1.1)]),
    Function("log1p", Tensor::log1p, f64::ln_1p, &[POSITIVE, NEAR_0, Values::Between(-0.9, 0.0)]),
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
    Function(
        "heavy_tail",
        Tensor::heavy_tail,
        |x| if x < 0.0 { 1.0 / (1.0 - x) } else { 1.0 + x },
        &[BENT, NEAR_0, POSITIVE],
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
pub const CANCELLING: [Function; 5] = [
    Function("silu", Tensor::silu, |x| phi(Activation::Silu, x), &[WIDE, NEAR_0, TAILS]),
    Function("gelu", Tensor::gelu, |x| phi(Activation::Gelu, x), &[WIDE, NEAR_0, TAILS]),
    Function("gelu_erf", Tensor::gelu_erf, |x| phi(Activation::GeluErf, x), &[WIDE, NEAR_0, TAILS]),
    Function("sin", Tensor::sin, f64::sin, &[WIDE, NEAR_0]),
    Function("cos", Tensor::cos, f64::cos, &[WIDE, NEAR_0]),
];

impl Function {
    /// Of a tensor, with values where the function is tested.
    pub fn case(&self, shape: &[usize], values: Values) -> Case {
        let &Function(name, call, math, _) = self;
        Case::new(
            format!("{name} {shape:?} {values:?}"),
            [input_of(shape, values)],
            move |t| call(&t[0]),
            move |i: &[Array]| i[0].map(math),
        )
    }
}

/// An operation: its name, the method, and the mathematics.
pub struct Operation(&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);

/// Arithmetic of two tensors.
pub const OPERATIONS: [Operation; 6] = [
    Operation("add", Tensor::add, |a, b| a + b),
    Operation("sub", Tensor::sub, |a, b| a - b),
    Operation("mul", Tensor::mul, |a, b| a * b),
    Operation("div", Tensor::div, |a, b| a / b),
    Operation("maximum", |a, b| a.maximum(b), f64::max),
    Operation("minimum", |a, b| a.minimum(b), f64::min),
];

impl Operation {
    /// Of two shapes that broadcast.
    pub fn case(&self, a: &[usize], b: &[usize]) -> Case {
        let &Operation(op, call, math) = self;
        Case::new(
            format!("{op} {a:?} {b:?}"),
            [a, b].map(|shape| input_of(shape, Values::Either(0.5, 2.0))),
            move |t| call(&t[0], &t[1]),
            move |i: &[Array]| naive::binary(&i[0], &i[1], math),
        )
    }

    /// Of a tensor and itself: both gradients count.
    pub fn with_itself(&self) -> Case {
        let &Operation(op, call, math) = self;
        Case::new(
            format!("{op} with itself"),
            [input_of(&[3, 4], Values::Either(0.5, 2.0))],
            move |t| call(&t[0], &t[0]),
            move |i: &[Array]| i[0].map(|x| math(x, x)),
        )
    }
}

/// A gated product; gates are kept away from relu's kink.
pub fn gate(shape: &[usize], activation: Activation) -> Case {
    let math = move |x, gate| x * phi(activation, gate);
    let case = Case::new(
        format!("gated {activation:?} {shape:?}"),
        [Values::Between(-2.0, 2.0), Values::Either(0.1, 4.0)]
            .map(|values| input_of(shape, values)),
        move |t| gated(&t[0], &t[1], activation),
        move |i: &[Array]| naive::binary(&i[0], &i[1], math),
    );
    // gelu_erf cancels below 0.
    case.cancelling(8 * (activation == Activation::GeluErf) as usize)
}

/// `factor·x + offset`
pub fn affine(shape: &[usize], factor: f64, offset: f64) -> Case {
    let case = Case::new(
        format!("affine {shape:?} {factor} {offset}"),
        [input_of(shape, WIDE)],
        move |t| t[0].affine(factor, offset),
        move |i: &[Array]| i[0].map(|x| x * factor + offset),
    );
    case.cancelling(6)
}

/// `factor·x`, for a factor that every type holds.
pub fn scale(shape: &[usize], factor: f64) -> Case {
    Case::new(
        format!("scale {shape:?} {factor}"),
        [input_of(shape, WIDE)],
        move |t| t[0].scale(factor),
        move |i: &[Array]| i[0].map(|x| x * factor),
    )
}

/// Dropout: the mask follows from the seed.
pub fn dropout(shape: &[usize], p: f64, seed: u64) -> Case {
    let reference = move |i: &[Array]| {
        let elements = i[0].data.iter().enumerate();
        let value = |(i, x): (usize, &f64)| match naive::is_kept(i, p, seed) {
            true => x / (1.0 - p),
            false => 0.0,
        };
        Array { shape: i[0].shape.clone(), data: elements.map(value).collect() }
    };
    let name = format!("dropout {shape:?} {p} {seed}");
    Case::new(name, [input(shape)], move |t| t[0].dropout(p, seed), reference)
}

pub(super) fn list() -> Vec<Case> {
    // A workgroup, and a rest.
    const SHAPE: [usize; 2] = [2, 131];
    let functions = FUNCTIONS.iter().flat_map(|function| {
        function.3.iter().map(|&values| function.case(&SHAPE, values)).collect::<Vec<_>>()
    });
    let cancelling = CANCELLING.iter().flat_map(|function| {
        let case = |&values| function.case(&SHAPE, values).cancelling(9);
        function.3.iter().map(case).collect::<Vec<_>>()
    });
    let operations = OPERATIONS.iter().flat_map(|operation| {
        [
            operation.case(&[9, 1031], &[1031]),
            operation.case(&[4, 1, 3], &[2, 1]),
            operation.with_itself(),
        ]
    });
    let gates = [Activation::Silu, Activation::GeluErf, Activation::Sigmoid, Activation::Relu];
    let gates = gates.into_iter().map(|activation| gate(&SHAPE, activation));
    let others = [affine(&SHAPE, -0.5, 0.25), scale(&SHAPE, -2.5), dropout(&SHAPE, 0.25, 1)];
    functions.chain(cancelling).chain(operations).chain(gates).chain(others).collect()
}
