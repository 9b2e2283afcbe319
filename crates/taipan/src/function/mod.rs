//! Scalar functions with their gradients, for activations and element-wise operations. One table
//! defines them; types, names, methods of [`Tensor`], vector loops and WGSL are generated from it.

use crate::DType;
use crate::autograd::apply_one;
use crate::cpu::isa::{Isa, NoFma, vectorized};
use crate::cpu::map::BLOCK;
use crate::dtype::Real;
use crate::error::Result;
use crate::gpu::{MATH, Params, Program};
use crate::ops::unary::Unary;
use crate::tensor::Tensor;

/// What backward reads of `y = f(x)`: the least that the gradient can be computed from exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Saves {
    Nothing,
    Input,
    Output,
}

/// A function as a type; `p` is its parameter, if it has one.
trait Scalar {
    fn value<I: Isa, A: Real>(p: A, x: A) -> A;
    /// `dy·f'`, from what is saved.
    fn gradient<I: Isa, A: Real>(p: A, saved: A, dy: A) -> A;
}

vectorized! {
    fn values<I: Isa, F: Scalar, A: Real>(p: A, x: &[A], y: &mut [A]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = F::value::<I, A>(p, *x);
        }
    }

    fn values_in_place<I: Isa, F: Scalar, A: Real>(p: A, x: &mut [A]) {
        for x in x {
            *x = F::value::<I, A>(p, *x);
        }
    }

    fn gradients<I: Isa, F: Scalar, A: Real>(p: A, saved: &[A], dy: &[A], dx: &mut [A]) {
        for ((dx, dy), saved) in dx.iter_mut().zip(dy).zip(saved) {
            *dx = F::gradient::<I, A>(p, *saved, *dy);
        }
    }

    fn any_above<I: Isa, A: Real>(x: &[A], limit: A) -> bool {
        x.iter().fold(false, |any, x| any | (x.abs() > limit))
    }
}

/// The WGSL expression by which `gradient_at` computes what is saved from `x`.
macro_rules! saved_from_x {
    (Nothing) => {
        "0.0"
    };
    (Input) => {
        "x"
    };
    (Output) => {
        "value(x)"
    };
}

/// The table. An entry is
///
/// ```text
/// /// What the public documentation says.
/// Variant(parameter: f64 = an example for tests): method, saves what backward reads
///     value(x) => the value in Rust, with the float type `A` and instruction set `I`; "in WGSL";
///     gradient(saved, dy) => `dy·f'` in Rust; "in WGSL";
/// ```
///
/// In WGSL the parameter is `PARAMETER`. Activations can be fused into other operations, the other
/// functions cannot.
macro_rules! functions {
    (
        activations { $($(#[$adoc:meta])* $a:ident $(($ap:ident: $apt:ty = $aexample:expr))?:
            $aname:ident, saves $asaves:ident
            value($ax:ident) => $avalue:expr; $awgsl:literal;
            gradient($as:ident, $ady:ident) => $agrad:expr; $agrad_wgsl:literal; )* }
        functions { $($(#[$fdoc:meta])* $f:ident $(($fp:ident: $fpt:ty = $fexample:expr))?:
            $fname:ident, saves $fsaves:ident
            value($fx:ident) => $fvalue:expr; $fwgsl:literal;
            gradient($fs:ident, $fdy:ident) => $fgrad:expr; $fgrad_wgsl:literal; )* }
    ) => {
        /// A function that can be fused into [`linear`](crate::linear) and other operations.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Activation {
            /// `x`
            None,
            $($(#[$adoc])* $a $(($apt))?,)*
        }

        impl Activation {
            /// All of them; those with a parameter, with an example of it.
            pub const ALL: &[Activation] =
                &[Activation::None, $(Activation::$a $(($aexample))?,)*];
        }

        /// A function with its gradient.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) enum Function {
            Activation(Activation),
            $($f $(($fpt))?,)*
        }

        /// Element-wise functions; the result has the same shape and type.
        impl Tensor {
            $($(#[$adoc])* pub fn $aname(&self $(, $ap: $apt)?) -> Result<Tensor> {
                apply_one(Unary(Activation::$a $(($ap))?.into()), &[self])
            })*
            $($(#[$fdoc])* pub fn $fname(&self $(, $fp: $fpt)?) -> Result<Tensor> {
                apply_one(Unary(Function::$f $(($fp))?), &[self])
            })*
        }

        $(functions!(@scalar $a $(($ap))?, $ax, $avalue, $as, $ady, $agrad);)*
        $(functions!(@scalar $f $(($fp))?, $fx, $fvalue, $fs, $fdy, $fgrad);)*

        /// Run `$body` with `$F` naming the [`Scalar`] of a function, and `$p` its parameter or 0.
        macro_rules! with_function {
            ($function:expr, $F:ident, $p:ident => $body:expr, none => $none:expr) => {
                match $function {
                    Function::Activation(Activation::None) => $none,
                    $(Function::Activation(Activation::$a $(($ap))?) => {
                        #[allow(dead_code)]
                        type $F = $a;
                        #[allow(unused_mut, unused_assignments)]
                        let mut $p = 0.0;
                        $($p = $ap;)?
                        $body
                    })*
                    $(Function::$f $(($fp))? => {
                        #[allow(dead_code)]
                        type $F = $f;
                        #[allow(unused_mut, unused_assignments)]
                        let mut $p = 0.0;
                        $($p = $fp;)?
                        $body
                    })*
                }
            };
        }

        impl Function {
            /// All of them.
            #[cfg(test)]
            pub(crate) fn all() -> Vec<Function> {
                let activations = Activation::ALL.iter().copied().map(Function::Activation);
                activations.chain([$(Function::$f $(($fexample))?),*]).collect()
            }

            /// What backward reads.
            pub(crate) fn saves(self) -> Saves {
                match self {
                    Function::Activation(Activation::None) => Saves::Nothing,
                    $(Function::Activation(Activation::$a { .. }) => Saves::$asaves,)*
                    $(Function::$f { .. } => Saves::$fsaves,)*
                }
            }

            /// The name of the method that applies it.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    Function::Activation(Activation::None) => "identity",
                    $(Function::Activation(Activation::$a { .. }) => stringify!($aname),)*
                    $(Function::$f { .. } => stringify!($fname),)*
                }
            }

            /// `value`, `gradient` and `gradient_at` in WGSL.
            fn own_wgsl(self) -> &'static str {
                match self {
                    Function::Activation(Activation::None) => {
                        functions!(@wgsl x, "x", saved, "dy", Nothing)
                    }
                    $(Function::Activation(Activation::$a { .. }) => {
                        functions!(@wgsl $ax, $awgsl, $as, $agrad_wgsl, $asaves)
                    })*
                    $(Function::$f { .. } => {
                        functions!(@wgsl $fx, $fwgsl, $fs, $fgrad_wgsl, $fsaves)
                    })*
                }
            }
        }
    };
    (@scalar $name:ident $(($p:ident))?, $x:ident, $value:expr, $s:ident, $dy:ident, $grad:expr) => {
        struct $name;
        impl Scalar for $name {
            #[inline(always)]
            fn value<I: Isa, A: Real>(_p: A, $x: A) -> A {
                $(let $p = _p;)?
                $value
            }
            #[inline(always)]
            fn gradient<I: Isa, A: Real>(_p: A, $s: A, $dy: A) -> A {
                $(let $p = _p;)?
                $grad
            }
        }
    };
    (@wgsl $x:ident, $value:literal, $s:ident, $grad:literal, $saves:ident) => {
        concat!(
            "fn value(", stringify!($x), ": f32) -> f32 { return ", $value, "; }\n",
            "fn gradient(", stringify!($s), ": f32, dy: f32) -> f32 { return ", $grad, "; }\n",
            "fn gradient_at(x: f32, dy: f32) -> f32 { return gradient(",
            saved_from_x!($saves), ", dy); }\n",
        )
    };
}

functions! {
    activations {
        /// `max(x, 0)`; its derivative at 0 is 0, also for an infinite upstream
        Relu: relu, saves Output
            value(x) => if x < A::ZERO { A::ZERO } else { x };
            "m_keep_nan(x, select(x, 0.0, x < 0.0))";
            gradient(y, dy) => if y > A::ZERO { dy } else { y * A::ZERO };
            "m_keep_nan(y, select(0.0, dy, y > 0.0))";
        /// `x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2`
        Gelu: gelu, saves Input
            value(x) => gelu::<I, A>(x); "gelu(x)";
            gradient(x, dy) => dy * gelu_derivative::<I, A>(x); "dy * gelu_derivative(x)";
        /// `x·(1 + erf(x/√2))/2`
        GeluErf: gelu_erf, saves Input
            value(x) => gelu_erf::<I, A>(x); "gelu_erf(x)";
            gradient(x, dy) => dy * gelu_erf_derivative::<I, A>(x); "dy * gelu_erf_derivative(x)";
        /// `x·sigmoid(x)`
        Silu: silu, saves Input
            value(x) => SiluParts::new::<I>(x).value; "silu(x)";
            gradient(x, dy) => dy * SiluParts::new::<I>(x).derivative::<I>();
            "dy * silu_derivative(x)";
        /// `1/(1 + exp(−x))`
        Sigmoid: sigmoid, saves Output
            value(x) => x.sigmoid::<I>(); "m_sigmoid(x)";
            gradient(y, dy) => dy * (y * (A::ONE - y)); "dy * (y * (1.0 - y))";
        /// `tanh(x)`
        Tanh: tanh, saves Output
            value(x) => x.tanh::<I>(); "m_tanh(x)";
            gradient(y, dy) => dy * ((A::ONE - y) * (A::ONE + y));
            "dy * ((1.0 - y) * (1.0 + y))";
        /// `x` above 0, `slope·x` below; its derivative at 0 is `slope`
        LeakyRelu(slope: f64 = 0.125): leaky_relu, saves Input
            value(x) => if x > A::ZERO { x } else { slope * x };
            "m_keep_nan(x, select(PARAMETER * x, x, x > 0.0))";
            gradient(x, dy) => if x > A::ZERO { dy } else if x <= A::ZERO { slope * dy } else { x };
            "m_keep_nan(x, select(PARAMETER * dy, dy, x > 0.0))";
        /// `cap·tanh(x/cap)`: between `−cap` and `cap`, and almost `x` near 0
        Softcap(cap: f64 = 30.0): softcap, saves Output
            value(x) => cap * (x / cap).tanh::<I>(); "PARAMETER * m_tanh(x / PARAMETER)";
            gradient(y, dy) => dy * ((A::ONE - y / cap) * (A::ONE + y / cap));
            "dy * ((1.0 - y / PARAMETER) * (1.0 + y / PARAMETER))";
    }
    functions {
        /// `−x`
        Neg: neg, saves Nothing
            value(x) => -x; "-x";
            gradient(_saved, dy) => -dy; "-dy";
        /// `eˣ`
        Exp: exp, saves Output
            value(x) => x.exp::<I>(); "m_exp(x)";
            gradient(y, dy) => dy * y; "dy * y";
        /// `eˣ − 1`, exact near 0
        Expm1: expm1, saves Input
            value(x) => x.exp_m1::<I>(); "m_exp_m1(x)";
            gradient(x, dy) => dy * x.exp::<I>(); "dy * m_exp(x)";
        /// The natural logarithm
        Log: log, saves Input
            value(x) => x.ln::<I>(); "m_ln(x)";
            gradient(x, dy) => dy * (A::ONE / x); "dy * (1.0 / x)";
        /// `ln(1 + x)`, exact near 0
        Log1p: log1p, saves Input
            value(x) => x.ln_1p::<I>(); "m_ln_1p(x)";
            gradient(x, dy) => dy * (A::ONE / (A::ONE + x)); "dy * (1.0 / (1.0 + x))";
        /// `√x`
        Sqrt: sqrt, saves Output
            value(x) => x.sqrt(); "m_sqrt(x)";
            gradient(y, dy) => dy * (A::of(0.5) / y); "dy * (0.5 / y)";
        /// `ln(1 + eˣ)`
        Softplus: softplus, saves Input
            value(x) => x.softplus::<I>(); "m_softplus(x)";
            gradient(x, dy) => dy * x.sigmoid::<I>(); "dy * m_sigmoid(x)";
        /// `1 + x` from 0 on, `1/(1 − x)` below: positive, and its tail is heavier than softplus's
        HeavyTail: heavy_tail, saves Output
            value(x) => if x < A::ZERO { A::ONE / (A::ONE - x) } else { A::ONE + x };
            "m_keep_nan(x, select(1.0 + x, 1.0 / (1.0 - x), x < 0.0))";
            gradient(y, dy) => dy * if y > A::ONE { A::ONE } else { y * y };
            "m_keep_nan(y, dy * select(y * y, 1.0, y > 1.0))";
        /// `|x|`; its derivative at 0 is 0
        Abs: abs, saves Input
            value(x) => x.abs(); "bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu)";
            gradient(x, dy) =>
                if x > A::ZERO { dy } else if x < A::ZERO { -dy } else { x * A::ZERO };
            "m_keep_nan(x, select(select(0.0, dy, x > 0.0), -dy, x < 0.0))";
        /// `1/x`
        Recip: recip, saves Output
            value(x) => A::ONE / x; "1.0 / x";
            gradient(y, dy) => -(dy * y * y); "-(dy * y * y)";
        /// `1/√x`
        Rsqrt: rsqrt, saves Output
            value(x) => A::ONE / x.sqrt(); "1.0 / m_sqrt(x)";
            gradient(y, dy) => A::of(-0.5) * dy * (y * y * y); "-0.5 * dy * (y * y * y)";
        /// The sine, of an angle in radians. In f32 an angle beyond ±2³⁰ gives NaN, on a GPU one
        /// beyond ±2¹⁶
        Sin: sin, saves Input
            value(x) => x.sin::<I>(); "m_sin(x)";
            gradient(x, dy) => dy * x.cos::<I>(); "dy * m_cos(x)";
        /// The cosine, with the limits of [`sin`](Tensor::sin)
        Cos: cos, saves Input
            value(x) => x.cos::<I>(); "m_cos(x)";
            gradient(x, dy) => -(dy * x.sin::<I>()); "-(dy * m_sin(x))";
        /// `x` to the power `exponent`: products for whole exponents up to 63, times a square root
        /// for those with a half, and else `exp(exponent·ln x)`, whose error grows with
        /// `|exponent·ln x|`. Of a negative `x`, powers that are not whole are NaN
        Pow(exponent: f64 = 2.5): pow, saves Input
            value(x) => pow::<I, A>(x, exponent); "power(x, PARAMETER)";
            gradient(x, dy) => if exponent == A::ZERO { x * A::ZERO } else {
                dy * (exponent * pow::<I, A>(x, exponent - A::ONE))
            };
            "select(dy * (PARAMETER * power(x, PARAMETER - 1.0)), x * 0.0, PARAMETER == 0.0)";
        /// `x`, but not below `limit`; its derivative is 1 above
        ClampMin(limit: f64 = -0.75): clamp_min, saves Input
            value(x) => if x < limit { limit } else { x };
            "m_keep_nan(x, select(x, PARAMETER, x < PARAMETER))";
            gradient(x, dy) =>
                if x > limit { dy } else if x <= limit { A::ZERO } else { x };
            "m_keep_nan(x, select(0.0, dy, x > PARAMETER))";
        /// `x`, but not above `limit`; its derivative is 1 below
        ClampMax(limit: f64 = 0.75): clamp_max, saves Input
            value(x) => if x > limit { limit } else { x };
            "m_keep_nan(x, select(x, PARAMETER, x > PARAMETER))";
            gradient(x, dy) =>
                if x < limit { dy } else if x >= limit { A::ZERO } else { x };
            "m_keep_nan(x, select(0.0, dy, x < PARAMETER))";
    }
}

impl From<Activation> for Function {
    fn from(activation: Activation) -> Self {
        Function::Activation(activation)
    }
}

impl Function {
    /// A program whose kernel calls `value`, `gradient` (from what is saved) or `gradient_at` (from
    /// `x`).
    pub(crate) fn program<P: Params>(
        self,
        source: &[&'static str],
        types: &[(&'static str, DType)],
        consts: &[(&'static str, u32)],
    ) -> Program {
        let own = [MATH, wgsl!("function.wgsl"), self.own_wgsl()];
        let program = Program::new::<P>(&[&own, source].concat(), types, consts);
        program.with_parameter(self.parameter())
    }

    /// The parameter; 0 if it has none.
    pub(crate) fn parameter(self) -> f64 {
        with_function!(self, _F, p => p, none => 0.0)
    }

    /// `x = f(x)`, for activations
    pub(crate) fn value_in_place<A: Real>(self, x: &mut [A]) {
        with_function!(self, F, p => values_in_place::<F, A>(A::of(p), x), none => {})
    }

    /// `y = f(x)`. Not in place: it computes one element while memory delivers another.
    pub(crate) fn value<A: Real>(self, x: &[A], y: &mut [A]) {
        for (x, y) in x.chunks(BLOCK).zip(y.chunks_mut(BLOCK)) {
            with_function!(self, F, p => {
                let p = A::of(p);
                values::<F, A>(p, x, y);
                self.correct_angles(x, y, |i| F::value::<NoFma, A>(p, x[i]));
            }, none => y.copy_from_slice(x))
        }
    }

    /// Compute `y` by `f(i)` where the angle `x` is too large for a reduction that vectorises well.
    fn correct_angles<A: Real>(self, x: &[A], y: &mut [A], f: impl Fn(usize) -> A) {
        let limit = A::of(A::FAST_ANGLE);
        if matches!(self, Function::Sin | Function::Cos) && any_above(x, limit) {
            let large = (0..x.len()).filter(|&i| x[i].abs() > limit);
            large.for_each(|i| y[i] = f(i));
        }
    }

    /// `dx = dy·f'(x)`, whatever the gradient is computed from: `x` is overwritten with it.
    pub(crate) fn gradient_at<A: Real>(self, x: &mut [A], dy: &[A], dx: &mut [A]) {
        if self.saves() == Saves::Output {
            self.value_in_place(x);
        }
        self.gradient(x, dy, dx);
    }

    /// `dx = dy·f'`, from what was [saved](Function::saves); empty for nothing.
    pub(crate) fn gradient<A: Real>(self, saved: &[A], dy: &[A], dx: &mut [A]) {
        let saved = if self.saves() == Saves::Nothing { dy } else { saved };
        with_function!(self, F, p => {
            let p = A::of(p);
            gradients::<F, A>(p, saved, dy, dx);
            self.correct_angles(saved, dx, |i| F::gradient::<NoFma, A>(p, saved[i], dy[i]));
        }, none => dx.copy_from_slice(dy))
    }
}

/// `xᵉ`; what depends on `e` alone is the same for a whole loop.
#[inline(always)]
fn pow<I: Isa, A: Real>(x: A, e: A) -> A {
    let (whole, halves) = (e.abs().to_f64().trunc(), 2.0 * e.abs().to_f64());
    let is_whole = halves == 2.0 * whole;
    if halves < 128.0 && halves.fract() == 0.0 {
        // Of the squares x, x², x⁴, …, those whose bits the exponent has.
        let mut power = if is_whole { A::ONE } else { x.sqrt() };
        let mut square = x;
        for bit in 0..6 {
            power = if whole as u32 >> bit & 1 == 1 { power * square } else { power };
            square = square * square;
        }
        return if e < A::ZERO { A::ONE / power } else { power };
    }
    let magnitude = (e * x.abs().ln::<I>()).exp::<I>();
    match (is_whole, whole % 2.0 == 1.0) {
        (true, false) => magnitude,
        (true, true) => {
            if x < A::ZERO {
                -magnitude
            } else {
                magnitude
            }
        }
        (false, _) => {
            if x < A::ZERO {
                A::of(f64::NAN)
            } else {
                magnitude
            }
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

/// Beyond this, both forms of gelu are exactly 0 or x, and their derivatives 0 or 1; within it, no
/// power of x overflows.
const GELU_FLAT: f64 = 64.0;

const SQRT_8_OVER_PI: f64 = 1.595_769_121_605_730_7;
const CUBIC: f64 = 0.044715;

/// With `s(v) = sigmoid(v)` and `v = √(8/π)·(x + 0.044715·x³)`, since `(1 + tanh(v/2))/2 = s(v)`:
/// `y = x·s`.
#[inline(always)]
fn gelu<I: Isa, A: Real>(x: A) -> A {
    let x = not_below(x, GELU_FLAT);
    let z = not_above(x, GELU_FLAT);
    let v = z * (z * z).fma::<I>(A::of(SQRT_8_OVER_PI * CUBIC), A::of(SQRT_8_OVER_PI));
    x * v.sigmoid::<I>()
}

/// `y' = s + x·s·(1 − s)·v'`
#[inline(always)]
fn gelu_derivative<I: Isa, A: Real>(x: A) -> A {
    let x = clamp(x, GELU_FLAT);
    let square = x * x;
    let v = x * square.fma::<I>(A::of(SQRT_8_OVER_PI * CUBIC), A::of(SQRT_8_OVER_PI));
    let dv = square.fma::<I>(A::of(3.0 * SQRT_8_OVER_PI * CUBIC), A::of(SQRT_8_OVER_PI));
    let s = v.sigmoid::<I>();
    (x * dv * s).fma::<I>(A::ONE - s, s)
}

/// `Φ(x) = (1 + erf(x/√2))/2`
#[inline(always)]
fn normal_cdf<I: Isa, A: Real>(x: A) -> A {
    let half = A::of(0.5);
    (x * A::of(std::f64::consts::FRAC_1_SQRT_2)).erf::<I>().fma::<I>(half, half)
}

/// `y = x·Φ`
#[inline(always)]
fn gelu_erf<I: Isa, A: Real>(x: A) -> A {
    let x = not_below(x, GELU_FLAT);
    x * normal_cdf::<I, A>(not_above(x, GELU_FLAT))
}

/// `y' = Φ + x·exp(−x²/2)/√(2π)`
#[inline(always)]
fn gelu_erf_derivative<I: Isa, A: Real>(x: A) -> A {
    let x = clamp(x, GELU_FLAT);
    let density = (x * x * A::of(-0.5)).exp::<I>() * A::of(0.398_942_280_401_432_7);
    x.fma::<I>(density, normal_cdf::<I, A>(x))
}

/// Beyond this, silu is exactly 0 or x.
const SILU_FLAT: f64 = 800.0;

/// The terms of silu and its derivative, computed so that neither is `∞·0` at an infinite `x`; NaN
/// stays.
pub(crate) struct SiluParts<A> {
    /// `x·sigmoid(x)`
    pub(crate) value: A,
    pub(crate) sigmoid: A,
    /// `x`, clamped to where the derivative is not yet 0 or 1.
    pub(crate) x: A,
}

impl<A: Real> SiluParts<A> {
    #[inline(always)]
    pub(crate) fn new<I: Isa>(x: A) -> SiluParts<A> {
        let x = not_below(x, SILU_FLAT);
        let sigmoid = x.sigmoid::<I>();
        SiluParts { value: x * sigmoid, sigmoid, x: not_above(x, SILU_FLAT) }
    }

    /// `s·(1 + x·(1 − s))` with `s = sigmoid(x)`
    #[inline(always)]
    pub(crate) fn derivative<I: Isa>(self) -> A {
        self.sigmoid * self.x.fma::<I>(A::ONE - self.sigmoid, A::ONE)
    }
}
