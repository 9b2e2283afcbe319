//! Functions of one number with their slopes, over slices: what activations and element-wise
//! operations are made of.

use crate::cpu::isa::{Isa, vectorized};
use crate::dtype::Real;

/// What [`linear`](crate::linear) applies to `A·W + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x`
    None,
    /// `max(x, 0)`; its slope at 0 is 0
    Relu,
    /// `x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2`
    Gelu,
    /// `x·(1 + erf(x/√2))/2`
    GeluErf,
    /// `x·sigmoid(x)`
    Silu,
    /// `1/(1 + exp(−x))`
    Sigmoid,
    /// `tanh(x)`
    Tanh,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 7] = [
        Activation::None,
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::Tanh,
    ];
}

/// A function that knows its slope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Activation(Activation),
    Neg,
    /// `factor·x`
    Scale(f64),
    Exp,
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Softplus,
}

/// What the slope of `y = f(x)` is computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kept {
    Nothing,
    Input,
    Output,
}

/// The functions in WGSL: `value` and `grad` of the one whose [`Function::id`] is the constant
/// `FUNCTION`.
pub(crate) const WGSL: [&str; 2] =
    [include_str!("../gpu/math.wgsl"), include_str!("function.wgsl")];

impl From<Activation> for Function {
    fn from(activation: Activation) -> Self {
        Function::Activation(activation)
    }
}

impl Function {
    /// The least that the slope can be computed from exactly.
    pub(crate) fn kept(self) -> Kept {
        match self {
            Function::Activation(Activation::None) | Function::Neg | Function::Scale(_) => {
                Kept::Nothing
            }
            Function::Activation(Activation::Relu | Activation::Sigmoid | Activation::Tanh)
            | Function::Exp
            | Function::Sqrt => Kept::Output,
            Function::Activation(Activation::Gelu | Activation::GeluErf | Activation::Silu)
            | Function::Expm1
            | Function::Log
            | Function::Log1p
            | Function::Softplus => Kept::Input,
        }
    }

    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Function; 15] = [
        Function::Activation(Activation::None),
        Function::Activation(Activation::Relu),
        Function::Activation(Activation::Gelu),
        Function::Activation(Activation::GeluErf),
        Function::Activation(Activation::Silu),
        Function::Activation(Activation::Sigmoid),
        Function::Activation(Activation::Tanh),
        Function::Neg,
        Function::Exp,
        Function::Expm1,
        Function::Log,
        Function::Log1p,
        Function::Sqrt,
        Function::Softplus,
        Function::Scale(2.0),
    ];

    /// Its number in `function.wgsl`.
    pub(crate) fn id(self) -> u32 {
        match self {
            Function::Activation(Activation::None) => 0,
            Function::Activation(Activation::Relu) => 1,
            Function::Activation(Activation::Gelu) => 2,
            Function::Activation(Activation::GeluErf) => 3,
            Function::Activation(Activation::Silu) => 4,
            Function::Activation(Activation::Sigmoid) => 5,
            Function::Activation(Activation::Tanh) => 6,
            Function::Neg => 7,
            Function::Exp => 8,
            Function::Expm1 => 9,
            Function::Log => 10,
            Function::Log1p => 11,
            Function::Sqrt => 12,
            Function::Softplus => 13,
            Function::Scale(_) => 14,
        }
    }

    /// The name of the method that applies it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Function::Activation(Activation::None) => "identity",
            Function::Activation(Activation::Relu) => "relu",
            Function::Activation(Activation::Gelu) => "gelu",
            Function::Activation(Activation::GeluErf) => "gelu_erf",
            Function::Activation(Activation::Silu) => "silu",
            Function::Activation(Activation::Sigmoid) => "sigmoid",
            Function::Activation(Activation::Tanh) => "tanh",
            Function::Neg => "neg",
            Function::Scale(_) => "scale",
            Function::Exp => "exp",
            Function::Expm1 => "expm1",
            Function::Log => "log",
            Function::Log1p => "log1p",
            Function::Sqrt => "sqrt",
            Function::Softplus => "softplus",
        }
    }

    /// `x = f(x)`.
    pub(crate) fn value<A: Real>(self, x: &mut [A]) {
        match self {
            Function::Activation(Activation::None) => {}
            Function::Activation(Activation::Relu) => values::<Relu, A>(x),
            Function::Activation(Activation::Gelu) => values::<Gelu, A>(x),
            Function::Activation(Activation::GeluErf) => values::<GeluErf, A>(x),
            Function::Activation(Activation::Silu) => values::<Silu, A>(x),
            Function::Activation(Activation::Sigmoid) => values::<Sigmoid, A>(x),
            Function::Activation(Activation::Tanh) => values::<Tanh, A>(x),
            Function::Neg => x.iter_mut().for_each(|x| *x = -*x),
            Function::Scale(factor) => x.iter_mut().for_each(|x| *x *= A::of(factor)),
            Function::Exp => values::<Exp, A>(x),
            Function::Expm1 => values::<Expm1, A>(x),
            Function::Log => values::<Log, A>(x),
            Function::Log1p => values::<Log1p, A>(x),
            Function::Sqrt => values::<Sqrt, A>(x),
            Function::Softplus => values::<Softplus, A>(x),
        }
    }

    /// `dx = dy · f'(x)`, whatever the slope is computed from: `x` is overwritten with it.
    pub(crate) fn slope_at<A: Real>(self, x: &mut [A], dy: &[A], dx: &mut [A]) {
        if self.kept() == Kept::Output {
            self.value(x);
        }
        self.slope(x, dy, dx);
    }

    /// `dx = dy · f'(…)`, with what [`kept`](Function::kept) says; empty for nothing.
    pub(crate) fn slope<A: Real>(self, kept: &[A], dy: &[A], dx: &mut [A]) {
        match self {
            Function::Activation(Activation::None) => dx.copy_from_slice(dy),
            Function::Activation(Activation::Relu) => slopes::<Relu, A>(kept, dy, dx),
            Function::Activation(Activation::Gelu) => slopes::<Gelu, A>(kept, dy, dx),
            Function::Activation(Activation::GeluErf) => slopes::<GeluErf, A>(kept, dy, dx),
            Function::Activation(Activation::Silu) => slopes::<Silu, A>(kept, dy, dx),
            Function::Activation(Activation::Sigmoid) => slopes::<Sigmoid, A>(kept, dy, dx),
            Function::Activation(Activation::Tanh) => slopes::<Tanh, A>(kept, dy, dx),
            Function::Neg | Function::Scale(_) => {
                dx.copy_from_slice(dy);
                self.value(dx);
            }
            Function::Exp => slopes::<Exp, A>(kept, dy, dx),
            Function::Expm1 => slopes::<Expm1, A>(kept, dy, dx),
            Function::Log => slopes::<Log, A>(kept, dy, dx),
            Function::Log1p => slopes::<Log1p, A>(kept, dy, dx),
            Function::Sqrt => slopes::<Sqrt, A>(kept, dy, dx),
            Function::Softplus => slopes::<Softplus, A>(kept, dy, dx),
        }
    }
}

/// A function as a type. `slope` takes the input or the output, as [`Function::kept`] says.
trait Scalar {
    fn value<I: Isa, A: Real>(x: A) -> A;
    fn slope<I: Isa, A: Real>(kept: A) -> A;
    #[inline(always)]
    fn grad<I: Isa, A: Real>(kept: A, dy: A) -> A {
        dy * Self::slope::<I, A>(kept)
    }
}

vectorized! {
    fn values<I: Isa, F: Scalar, A: Real>(x: &mut [A]) {
        for x in x {
            *x = F::value::<I, A>(*x);
        }
    }

    fn slopes<I: Isa, F: Scalar, A: Real>(kept: &[A], dy: &[A], dx: &mut [A]) {
        for ((dx, dy), kept) in dx.iter_mut().zip(dy).zip(kept) {
            *dx = F::grad::<I, A>(*kept, *dy);
        }
    }
}

/// `x` limited to `±limit`; NaN stays.
#[inline(always)]
fn clamp<A: Real>(x: A, limit: f64) -> A {
    not_above(not_below(x, limit), limit)
}

/// `x` not above `limit`; NaN stays.
#[inline(always)]
fn not_above<A: Real>(x: A, limit: f64) -> A {
    let limit = A::of(limit);
    if x > limit { limit } else { x }
}

/// `x` not below `-limit`; NaN stays.
#[inline(always)]
fn not_below<A: Real>(x: A, limit: f64) -> A {
    let limit = A::of(-limit);
    if x < limit { limit } else { x }
}

struct Relu;
impl Scalar for Relu {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        if x < A::ZERO { A::ZERO } else { x }
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(y: A) -> A {
        if y > A::ZERO { A::ONE } else { y * A::ZERO }
    }
    /// An infinite upstream stops where the slope is 0.
    #[inline(always)]
    fn grad<I: Isa, A: Real>(y: A, dy: A) -> A {
        if y > A::ZERO { dy } else { y * A::ZERO }
    }
}

/// Beyond this, both forms of gelu are 0 or x to the last digit, and so are their slopes 0 or 1;
/// within it, no power of x overflows.
const GELU_FLAT: f64 = 64.0;

/// With `s(v) = sigmoid(v)` and `v = √(8/π)·(x + 0.044715·x³)`, since `(1 + tanh(v/2))/2 = s(v)`:
/// `y = x·s` and `y' = s + x·s·(1 − s)·v'`.
struct Gelu;
const SQRT_8_OVER_PI: f64 = 1.595_769_121_605_730_7;
const CUBIC: f64 = 0.044715;
impl Scalar for Gelu {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        let x = not_below(x, GELU_FLAT);
        let z = not_above(x, GELU_FLAT);
        let v = z * (z * z).fma::<I>(A::of(SQRT_8_OVER_PI * CUBIC), A::of(SQRT_8_OVER_PI));
        x * v.sigmoid::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        let x = clamp(x, GELU_FLAT);
        let square = x * x;
        let v = x * square.fma::<I>(A::of(SQRT_8_OVER_PI * CUBIC), A::of(SQRT_8_OVER_PI));
        let dv = square.fma::<I>(A::of(3.0 * SQRT_8_OVER_PI * CUBIC), A::of(SQRT_8_OVER_PI));
        let s = v.sigmoid::<I>();
        (x * dv * s).fma::<I>(A::ONE - s, s)
    }
}

/// With `Φ(x) = (1 + erf(x/√2))/2`: `y = x·Φ` and `y' = Φ + x·exp(−x²/2)/√(2π)`.
struct GeluErf;
impl GeluErf {
    #[inline(always)]
    fn normal_cdf<I: Isa, A: Real>(x: A) -> A {
        let half = A::of(0.5);
        (x * A::of(std::f64::consts::FRAC_1_SQRT_2)).erf::<I>().fma::<I>(half, half)
    }
}
impl Scalar for GeluErf {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        let x = not_below(x, GELU_FLAT);
        x * Self::normal_cdf::<I, A>(not_above(x, GELU_FLAT))
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        let x = clamp(x, GELU_FLAT);
        let density = (x * x * A::of(-0.5)).exp::<I>() * A::of(0.398_942_280_401_432_7);
        x.fma::<I>(density, Self::normal_cdf::<I, A>(x))
    }
}

/// Beyond this, silu is 0 or x to the last digit.
const SILU_FLAT: f64 = 800.0;

/// With `s = sigmoid(x)`: `y = x·s` and `y' = s·(1 + x·(1 − s))`.
struct Silu;
impl Scalar for Silu {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        SiluParts::new::<I>(x).value
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        let SiluParts { sigmoid: s, x, .. } = SiluParts::new::<I>(x);
        s * x.fma::<I>(A::ONE - s, A::ONE)
    }
}

/// What silu and its slope are made of, such that neither is `∞·0` at an infinite `x`; NaN stays.
pub(crate) struct SiluParts<A> {
    /// `x·sigmoid(x)`
    pub(crate) value: A,
    pub(crate) sigmoid: A,
    /// `x`, but not beyond where the slope is 0 or 1.
    pub(crate) x: A,
}

impl<A: Real> SiluParts<A> {
    #[inline(always)]
    pub(crate) fn new<I: Isa>(x: A) -> SiluParts<A> {
        let x = not_below(x, SILU_FLAT);
        let sigmoid = x.sigmoid::<I>();
        SiluParts { value: x * sigmoid, sigmoid, x: not_above(x, SILU_FLAT) }
    }
}

struct Sigmoid;
impl Scalar for Sigmoid {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.sigmoid::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(y: A) -> A {
        y * (A::ONE - y)
    }
}

struct Tanh;
impl Scalar for Tanh {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.tanh::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(y: A) -> A {
        (A::ONE - y) * (A::ONE + y)
    }
}

struct Exp;
impl Scalar for Exp {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.exp::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(y: A) -> A {
        y
    }
}

struct Expm1;
impl Scalar for Expm1 {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.exp_m1::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        x.exp::<I>()
    }
}

struct Log1p;
impl Scalar for Log1p {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.ln_1p::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        A::ONE / (A::ONE + x)
    }
}

struct Log;
impl Scalar for Log {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.ln::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        A::ONE / x
    }
}

struct Sqrt;
impl Scalar for Sqrt {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.sqrt()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(y: A) -> A {
        A::of(0.5) / y
    }
}

struct Softplus;
impl Scalar for Softplus {
    #[inline(always)]
    fn value<I: Isa, A: Real>(x: A) -> A {
        x.softplus::<I>()
    }
    #[inline(always)]
    fn slope<I: Isa, A: Real>(x: A) -> A {
        x.sigmoid::<I>()
    }
}
