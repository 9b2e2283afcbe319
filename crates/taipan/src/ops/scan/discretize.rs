//! Discretisation on the CPU: the factors of the step `h = ā·h + b_factor·b·u`.

use std::f64::consts::LOG2_E;

use crate::cpu::isa::{Isa, vectorized};
use crate::dtype::Real;

/// `a_log` is clamped: below this bound `exp(Δ·A)` is 1 anyway, and `1/A` could be infinite.
const MIN_A_LOG: f64 = -80.0;
/// Above this bound, `A` could be infinite.
const MAX_A_LOG: f64 = 88.0;

/// The methods that kernels are compiled for, in the order of the constants below.
#[derive(Clone, Copy)]
pub(super) enum Method {
    EulerDecaying,
    Euler,
    ZeroOrderHold,
}

/// Euler's method with `Δ ≥ 0`, for which `ā ≤ 1`.
pub(super) const EULER_DECAYING: u8 = 0;
/// Euler's method with any Δ.
pub(super) const EULER: u8 = 1;
/// Zero-order hold with any Δ.
pub(super) const ZERO_ORDER_HOLD: u8 = 2;

/// Run `$body` with the constant `$METHOD`.
macro_rules! with_method {
    ($method:expr, $METHOD:ident => $body:expr) => {{
        use $crate::ops::scan::discretize::{EULER, EULER_DECAYING, Method, ZERO_ORDER_HOLD};
        match $method {
            Method::EulerDecaying => {
                const $METHOD: u8 = EULER_DECAYING;
                $body
            }
            Method::Euler => {
                const $METHOD: u8 = EULER;
                $body
            }
            Method::ZeroOrderHold => {
                const $METHOD: u8 = ZERO_ORDER_HOLD;
                $body
            }
        }
    }};
}
pub(super) use with_method;

/// The discretised system for a step of size Δ.
#[derive(Clone, Copy)]
pub(super) struct Discretized<A> {
    /// `ā = exp(Δ·A)`
    pub(super) a_bar: A,
    /// `b̄ = b_factor·b`: Δ, or `(ā − 1)/A`.
    pub(super) b_factor: A,
}

/// Discretise by `METHOD`, from the [`rate`]; only zero-order hold reads its [`inverse`].
#[inline(always)]
pub(super) fn discretize<I: Isa, A: Real, const METHOD: u8>(
    size: A,
    rate: A,
    inverse: A,
) -> Discretized<A> {
    if METHOD == EULER_DECAYING {
        return Discretized { a_bar: (size * rate).exp2_nonpositive::<I>(), b_factor: size };
    }
    let (power, m) = (size * rate).exp2_parts::<I>();
    let a_bar = (A::ONE + m) * power;
    if METHOD == EULER {
        return Discretized { a_bar, b_factor: size };
    }
    // For 2ⁿ > 1 nothing cancels; and a very large 2ⁿ is infinite, so that 2ⁿ·m would be NaN.
    let exp_m1 = if power > A::ONE { a_bar - A::ONE } else { power.fma::<I>(m, power - A::ONE) };
    Discretized { a_bar, b_factor: exp_m1 * inverse }
}

/// `1/A`, from the [`rate`].
#[inline(always)]
pub(super) fn inverse<A: Real>(rate: A) -> A {
    A::of(LOG2_E) / rate
}

/// `A·log₂e` where `A = −exp(a_log)`, so that `exp(Δ·A)` is a power of 2.
#[inline(always)]
pub(super) fn rate<I: Isa, A: Real>(a_log: A) -> A {
    let (min, max) = (A::of(MIN_A_LOG), A::of(MAX_A_LOG));
    let a_log = if a_log < min { min } else { a_log };
    let a_log = if a_log > max { max } else { a_log };
    -a_log.exp::<I>() * A::of(LOG2_E)
}

vectorized! {
    /// Replace each `a_log` by its [`rate`].
    pub(super) fn rates_of<I: Isa, A: Real>(a_log: &mut [A]) {
        for a in a_log {
            *a = rate::<I, _>(*a);
        }
    }
}
