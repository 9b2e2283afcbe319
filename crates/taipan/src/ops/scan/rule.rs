//! What a step does to a state on the CPU: `h = ā·h + held·b·u`.

use std::f64::consts::LOG2_E;

use crate::cpu::isa::{Isa, vectorized};
use crate::dtype::Real;

/// Below this `a_log`, `exp(Δ·A)` is 1 in any case, and `1/A` could be infinite.
const LEAST_A_LOG: f64 = -80.0;
/// Beyond this, `A` could be.
const MOST_A_LOG: f64 = 88.0;

/// Three rules, in the order of the constants that kernels are compiled with.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    Decaying,
    Euler,
    ZeroOrder,
}

/// Euler's rule with steps that are not negative, so that no state grows.
pub(super) const DECAYING: u8 = 0;
/// Euler's rule with any steps.
pub(super) const EULER: u8 = 1;
/// Zero-order hold with any steps.
pub(super) const ZERO_ORDER: u8 = 2;

/// Run `$body` with the constant `$RULE`.
macro_rules! with_rule {
    ($rule:expr, $RULE:ident => $body:expr) => {{
        use $crate::ops::scan::rule::{DECAYING, EULER, Rule, ZERO_ORDER};
        match $rule {
            Rule::Decaying => {
                const $RULE: u8 = DECAYING;
                $body
            }
            Rule::Euler => {
                const $RULE: u8 = EULER;
                $body
            }
            Rule::ZeroOrder => {
                const $RULE: u8 = ZERO_ORDER;
                $body
            }
        }
    }};
}
pub(super) use with_rule;

/// What happens to a state during a step of size Δ.
#[derive(Clone, Copy)]
pub(super) struct Held<A> {
    /// `ā = exp(Δ·A)`
    pub(super) decay: A,
    /// `b̄ = held·b`: Δ, or `(ā − 1)/A`.
    pub(super) held: A,
}

/// A step by one of the rules, from the [`rate`]; only zero-order hold reads its [`inverse`].
#[inline(always)]
pub(super) fn hold<I: Isa, A: Real, const RULE: u8>(size: A, rate: A, inverse: A) -> Held<A> {
    if RULE == DECAYING {
        return Held { decay: (size * rate).exp2_nonpositive::<I>(), held: size };
    }
    let (power, m) = (size * rate).exp2_parts::<I>();
    let decay = (A::ONE + m) * power;
    if RULE == EULER {
        return Held { decay, held: size };
    }
    // Beyond 1 there is nothing to cancel, and far beyond 2ⁿ is infinite.
    let exp_m1 = if power > A::ONE { decay - A::ONE } else { power.fma::<I>(m, power - A::ONE) };
    Held { decay, held: exp_m1 * inverse }
}

/// `1/A`, from the [`rate`].
#[inline(always)]
pub(super) fn inverse<A: Real>(rate: A) -> A {
    A::of(LOG2_E) / rate
}

/// `A·log₂e` where `A = −exp(a_log)`, so that `exp(Δ·A)` is a power of 2.
#[inline(always)]
fn rate<I: Isa, A: Real>(a_log: A) -> A {
    let (least, most) = (A::of(LEAST_A_LOG), A::of(MOST_A_LOG));
    let a_log = if a_log < least { least } else { a_log };
    let a_log = if a_log > most { most } else { a_log };
    -a_log.exp::<I>() * A::of(LOG2_E)
}

vectorized! {
    /// Of each `a_log`, the [`rate`], in its place.
    pub(super) fn rates_of<I: Isa, A: Real>(a_log: &mut [A]) {
        for a in a_log {
            *a = rate::<I, _>(*a);
        }
    }
}
