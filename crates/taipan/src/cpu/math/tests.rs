use std::fmt::LowerExp;

use super::Math;
use crate::cpu::isa::{Level, NoFma, vectorized};

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    ExpM1,
    Ln,
    Ln1p,
    Tanh,
    Sigmoid,
    Softplus,
    Erf,
    Sin,
    Cos,
}
use Function::*;

/// Those that are exact for every argument.
const ALL: [Function; 8] = [Exp, ExpM1, Ln, Ln1p, Tanh, Sigmoid, Softplus, Erf];

vectorized! {
    /// A function over a slice, as the kernels apply it.
    fn map<I: Isa, T: Math>(function: Function, input: &[T], output: &mut [T]) {
        macro_rules! map {
            ($name:ident) => {
                for (y, x) in output.iter_mut().zip(input) {
                    *y = x.$name::<I>();
                }
            };
        }
        // Through a generic type, where `x.exp()` is the trait's and not the standard library's.
        match function {
            Exp => map!(exp),
            ExpM1 => map!(exp_m1),
            Ln => map!(ln),
            Ln1p => map!(ln_1p),
            Tanh => map!(tanh),
            Sigmoid => map!(sigmoid),
            Softplus => map!(softplus),
            Erf => map!(erf),
            Sin => map!(sin),
            Cos => map!(cos),
        }
    }

    /// 2ˣ in its two forms: 2ˣ of x ≤ 0, and the parts of any 2ˣ.
    fn powers_of_two<I: Isa, T: Math>(input: &[T], output: &mut [(T, (T, T))]) {
        for (x, (y, parts)) in input.iter().zip(output) {
            (*y, *parts) = (x.exp2_nonpositive::<I>(), x.exp2_parts::<I>());
        }
    }
}

fn apply<T: Math>(level: Level, function: Function, input: &[T]) -> Vec<T> {
    let mut output = input.to_vec();
    level.while_in_use(|| map(function, input, &mut output));
    output
}

/// What a function should give, to double precision.
fn reference(function: Function, x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    match function {
        Exp => libm::exp(x),
        ExpM1 => libm::expm1(x),
        Ln => libm::log(x),
        Ln1p => libm::log1p(x),
        Tanh => libm::tanh(x),
        Sigmoid => (if x < 0.0 { e } else { 1.0 }) / (1.0 + e),
        Softplus => (if x > 0.0 { x } else { 0.0 }) + libm::log1p(e),
        Erf => libm::erf(x),
        Sin => libm::sin(x),
        Cos => libm::cos(x),
    }
}

/// Whether both are NaN, or zeros of the same sign, or neither is either.
fn same_kind(a: f64, b: f64) -> bool {
    a.is_nan() == b.is_nan()
        && (b != 0.0 || (a == 0.0 && a.is_sign_negative() == b.is_sign_negative()))
}

/// The distance of `y` from `want` in units of the last place of `want`, where infinity stands
/// for 2¹²⁸, the first number too large.
fn error_f32(y: f32, want: f64) -> f64 {
    if !same_kind(y.into(), want) {
        return f64::INFINITY;
    }
    if want.is_nan() {
        return 0.0;
    }
    let too_large = 2.0_f64.powi(128);
    let y = f64::from(y).clamp(-too_large, too_large);
    let want = want.clamp(-too_large, too_large);
    let exponent = (want.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    (y - want).abs() / 2.0_f64.powi(exponent.clamp(-126, 127) - 23)
}

/// The number of steps from `y` to `want`, from one floating-point number to the next.
fn error_f64(y: f64, want: f64) -> u64 {
    let position = |x: f64| {
        let magnitude = x.abs().to_bits() as i64;
        if x.is_sign_negative() { -magnitude } else { magnitude }
    };
    match same_kind(y, want) {
        true if want.is_nan() => 0,
        true => position(y).abs_diff(position(want)),
        false => u64::MAX,
    }
}

/// `count` mantissas of `bits` bits, evenly spaced from all zeros to all ones.
fn mantissas(bits: u32, count: u64) -> impl Iterator<Item = u64> {
    let ones = (1_u128 << bits) - 1;
    (0..count).map(move |i| (ones * u128::from(i) / u128::from(count - 1)) as u64)
}

/// Every function of every number of `input`, at every level: the error is at most `ulps`.
fn check<T: Math + Into<f64> + LowerExp>(input: &[T], error: impl Fn(T, f64) -> f64, ulps: f64) {
    for function in ALL {
        let want: Vec<f64> = input.iter().map(|x| reference(function, (*x).into())).collect();
        for level in Level::available() {
            let output = apply(level, function, input);
            for ((x, y), want) in input.iter().zip(output).zip(&want) {
                let error = error(y, *want);
                assert!(
                    error <= ulps,
                    "{function:?}({x:e}) on {level:?}: {y:e}, not {want:e}: {error} ulp"
                );
            }
        }
    }
}

fn check_f32(input: &[f32]) {
    check(input, error_f32, 2.0);
}

#[test]
fn f32_functions_are_within_two_ulp() {
    let numbers =
        |head: u32| mantissas(23, 2048).map(move |m| f32::from_bits(head << 23 | m as u32));
    check_f32(&(0..1 << 9).flat_map(numbers).collect::<Vec<_>>());
}

#[test]
fn f32_results_pass_through_the_subnormal_numbers_and_to_infinity() {
    check_f32(&(0..1 << 20).map(|i| -105.0 + i as f32 / 5400.0).collect::<Vec<_>>());
}

#[test]
fn f64_functions_are_within_four_ulp() {
    let numbers = |head: u64| mantissas(52, 256).map(move |m| f64::from_bits(head << 52 | m));
    let input: Vec<f64> = (0..1 << 12).flat_map(numbers).collect();
    check(&input, |y, want| error_f64(y, want) as f64, 4.0);
}

/// Within 2 ulp up to 2¹⁶, also next to multiples of π/2; without fused multiply-add within 2⁻²² up
/// to 2³⁰; NaN beyond.
#[test]
fn f32_angles() {
    let of_exponent =
        |e: i32| mantissas(23, 2048).map(move |m| 2f32.powi(e) * (1.0 + m as f32 / 8388608.0));
    let near_zeros = (1..40_000).flat_map(|n| {
        let x = (f64::from(n) * std::f64::consts::FRAC_PI_2) as f32;
        [x, x.next_up(), -x.next_down()]
    });
    let exact: Vec<f32> = (-140..16).flat_map(of_exponent).chain(near_zeros).collect();
    let coarse: Vec<f32> = (16..30).flat_map(of_exponent).map(|x| -x).collect();
    for (function, level) in
        [Sin, Cos].into_iter().flat_map(|f| Level::available().into_iter().map(move |l| (f, l)))
    {
        for (x, y) in exact.iter().zip(apply(level, function, &exact)) {
            let error = error_f32(y, reference(function, (*x).into()));
            assert!(error <= 2.0, "{function:?}({x:e}) on {level:?}: {y:e}, {error} ulp");
        }
    }
    type Single = fn(f32) -> f32;
    let singles: [(Function, Single); 2] = [(Sin, Math::sin::<NoFma>), (Cos, Math::cos::<NoFma>)];
    for (function, single) in singles {
        for x in &coarse {
            let error = (f64::from(single(*x)) - reference(function, (*x).into())).abs();
            assert!(error <= 2f64.powi(-22), "{function:?}({x:e}): {error:e}");
        }
        assert!(single(1.1e9).is_nan());
    }
}

#[test]
fn special_values() {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let cases: [(Function, &[(f64, f64)]); 10] = [
        (Exp, &[(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (1e3, INF), (INF, INF)]),
        (ExpM1, &[(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (1e3, INF), (INF, INF)]),
        (Ln, &[(-INF, NAN), (-1.0, NAN), (-0.0, -INF), (0.0, -INF), (1.0, 0.0), (INF, INF)]),
        (Ln1p, &[(-INF, NAN), (-2.0, NAN), (-1.0, -INF), (-0.0, -0.0), (0.0, 0.0), (INF, INF)]),
        (Tanh, &[(-INF, -1.0), (-30.0, -1.0), (-0.0, -0.0), (0.0, 0.0), (30.0, 1.0), (INF, 1.0)]),
        (Sigmoid, &[(-INF, 0.0), (-0.0, 0.5), (0.0, 0.5), (50.0, 1.0), (INF, 1.0)]),
        (Softplus, &[(-INF, 0.0), (50.0, 50.0), (INF, INF)]),
        (Erf, &[(-INF, -1.0), (-10.0, -1.0), (-0.0, -0.0), (0.0, 0.0), (10.0, 1.0), (INF, 1.0)]),
        (Sin, &[(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN)]),
        (Cos, &[(-INF, NAN), (-0.0, 1.0), (0.0, 1.0), (INF, NAN)]),
    ];
    for (function, cases) in cases {
        for (x, want) in cases.iter().copied().chain([(NAN, NAN), (-NAN, NAN)]) {
            for level in Level::available() {
                // A whole vector of it, and a remainder that is not.
                for y in apply(level, function, &[x; 35]) {
                    assert_eq!(error_f64(y, want), 0, "{function:?}({x}) on {level:?}: {y}");
                }
                for y in apply(level, function, &[x as f32; 35]) {
                    assert_eq!(error_f32(y, want), 0.0, "{function:?}({x}_f32) on {level:?}: {y}");
                }
            }
        }
    }
}

/// Close to 2ˣ, and 2ˣ - 1 from the parts, for normal results; beyond them 0 and infinity.
#[test]
fn powers_of_two_are_exact() {
    // Through 0 in steps of 2⁻¹⁰, and towards it.
    let plain = (-200_000..200_000).map(|i| f64::from(i) / 1024.0);
    let tiny = (1..40).flat_map(|i| [2.0_f64.powi(-i), -1.7 * 2.0_f64.powi(-i)]);
    let input: Vec<f64> = plain.chain(tiny).collect();
    for level in Level::available() {
        let singles: Vec<f32> = input.iter().map(|x| *x as f32).collect();
        let mut output = vec![(0.0, (0.0, 0.0)); singles.len()];
        level.while_in_use(|| powers_of_two(&singles, &mut output));
        for (x, (y, (power, m))) in singles.iter().zip(output) {
            let (wide, value) = (f64::from(*x), (1.0 + m) * power);
            let (want, want_m1) = (libm::exp2(wide), libm::expm1(wide * std::f64::consts::LN_2));
            let normal = (-126.0..=127.4).contains(&wide);
            let what = format!("2^{x:e} on {level:?}: {y:e}, {power:e} and {m:e}, not {want:e}");
            assert!(!normal || error_f32(value, want) <= 2.0, "{what}");
            assert!(!normal || *x > 0.0 || error_f32(y, want) <= 2.0, "{what}");
            let m1 = power.mul_add(m, power - 1.0);
            assert!(!normal || *x > 0.0 || error_f32(m1, want_m1) <= 2.0, "{what}: {m1:e}");
            assert!(wide >= -127.0 || (y, value) == (0.0, 0.0), "{what}");
            assert!(wide <= 128.0 || value == f32::INFINITY, "{what}");
        }
        let mut output = vec![(0.0, (0.0, 0.0)); input.len()];
        level.while_in_use(|| powers_of_two(&input, &mut output));
        for (x, (y, (power, m))) in input.iter().zip(output) {
            let want = libm::exp2(*x);
            let what = format!("2^{x:e} on {level:?}: {y:e}, {power:e} and {m:e}, not {want:e}");
            assert!(error_f64((1.0 + m) * power, want) <= 4, "{what}");
            assert!(*x > 0.0 || error_f64(y, want) <= 4, "{what}");
        }
        let mut output = [(0.0, (0.0, 0.0)); 35];
        level.while_in_use(|| powers_of_two(&[f32::NAN; 35], &mut output));
        assert!(output.iter().all(|(y, (power, m))| y.is_nan() && ((1.0 + m) * power).is_nan()));
        let mut output = [(0.0, (0.0, 0.0)); 2];
        level.while_in_use(|| powers_of_two(&[-2000.0, 2000.0], &mut output));
        assert_eq!((output[0].0, output[0].1.0, output[1].1.0), (0.0, 0.0, f64::INFINITY));
    }
}
