//! Element types, and the wider types their arithmetic is done in.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use half::{bf16, f16};

use crate::cpu::gemm::{self, Dots, Tiled};
use crate::cpu::isa::{Level, vectorized};
use crate::cpu::math::Math;
use crate::error::{Error, Result};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE half precision; arithmetic in f32.
    F16,
    /// The upper half of an f32; arithmetic in f32.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// Indices and tokens.
    U32,
    /// Tokens as other libraries store them.
    I64,
}

impl DType {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::U32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Whether elements are floating-point numbers: only those carry gradients.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// The type of its sums: f64 for f64, f32 for other floats.
    pub fn wider(self) -> DType {
        if self == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// An error unless `self`, the type of `op`'s input `name`, is a float.
    pub(crate) fn ensure_float(self, op: &'static str, name: &'static str) -> Result<()> {
        match self.is_float() {
            true => Ok(()),
            false => Err(self.mismatch(op, name, "a float")),
        }
    }

    /// An error unless `self`, the type of `op`'s input `name`, is `expected`.
    pub(crate) fn ensure(
        self,
        expected: DType,
        op: &'static str,
        name: &'static str,
    ) -> Result<()> {
        match self == expected {
            true => Ok(()),
            false => Err(self.mismatch(op, name, expected)),
        }
    }

    fn mismatch(self, op: &'static str, name: &'static str, expected: impl fmt::Display) -> Error {
        Error::DType { op, name, found: self, expected: expected.to_string() }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::U32 => "u32",
            DType::I64 => "i64",
        })
    }
}

/// A Rust type tensors can hold: `f16`, `bf16` (of the crate `half`), `f32`, `f64`, `u32`, `i64`.
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed {
    /// The same type as a value.
    const DTYPE: DType;
    /// The nearest element; truncated and saturated for integers.
    fn of_f64(value: f64) -> Self;
    /// The nearest element; saturated for `u32`.
    fn of_i64(value: i64) -> Self;
    /// The value, exactly for every type but large `i64`s.
    fn to_f64(self) -> f64;
}

mod sealed {
    pub trait Sealed {}
}

/// A float, and the wider type of its sums.
pub(crate) trait Float: Element {
    /// f32 for f16, bf16 and f32; f64 for f64.
    type Acc: Real;
    /// Convert a slice to the wider type, exactly.
    fn widen(src: &[Self], dst: &mut [Self::Acc]);
    /// Convert a slice from the wider type, each element rounded once to the nearest, ties to even.
    fn narrow(src: &[Self::Acc], dst: &mut [Self]);
    /// The slice itself, when elements are stored in the wider type.
    fn as_acc(slice: &[Self]) -> Option<&[Self::Acc]>;
    /// The slice itself, when elements are stored in the wider type.
    fn as_acc_mut(slice: &mut [Self]) -> Option<&mut [Self::Acc]>;
    /// The dot products of lines with a few rows, if the instruction set has its own.
    fn dots(level: Level) -> Option<Dots<Self, Self::Acc>>;
}

/// The elements in the wider type: as they are if they are stored in it, or in `buffer`.
pub(crate) fn widened<'a, T: Float>(stored: &'a [T], buffer: &'a mut [T::Acc]) -> &'a [T::Acc] {
    match T::as_acc(stored) {
        Some(stored) => stored,
        None => {
            T::widen(stored, buffer);
            buffer
        }
    }
}

/// Let `f` fill the elements in the wider type: in their place if they are stored in it, or in
/// `buffer`, from which they are rounded.
pub(crate) fn fill_wide<T: Float>(
    stored: &mut [T],
    buffer: &mut [T::Acc],
    f: impl FnOnce(&mut [T::Acc]),
) {
    match T::as_acc_mut(stored) {
        Some(wide) => f(wide),
        None => {
            let buffer = &mut buffer[..stored.len()];
            f(buffer);
            T::narrow(buffer, stored);
        }
    }
}

/// A type arithmetic is done in: f32 or f64.
pub(crate) trait Real:
    Float<Acc = Self>
    + Math
    + Tiled
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// The least finite number.
    const LOWEST: Self;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// The nearest integer, the even one of two.
    fn round(self) -> Self;
    /// A constant, rounded to this type.
    fn of(value: f64) -> Self;
}

macro_rules! real {
    ($t:ty, $dots:path) => {
        impl Float for $t {
            type Acc = $t;
            fn widen(src: &[$t], dst: &mut [$t]) {
                dst.copy_from_slice(src);
            }
            fn narrow(src: &[$t], dst: &mut [$t]) {
                dst.copy_from_slice(src);
            }
            fn as_acc(slice: &[$t]) -> Option<&[$t]> {
                Some(slice)
            }
            fn as_acc_mut(slice: &mut [$t]) -> Option<&mut [$t]> {
                Some(slice)
            }
            fn dots(level: Level) -> Option<Dots<$t, $t>> {
                $dots(level)
            }
        }
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const NEG_INFINITY: $t = <$t>::NEG_INFINITY;
            const LOWEST: $t = <$t>::MIN;
            #[inline(always)]
            fn sqrt(self) -> $t {
                self.sqrt()
            }
            #[inline(always)]
            fn abs(self) -> $t {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn round(self) -> $t {
                self.round_ties_even()
            }
            #[inline(always)]
            fn of(value: f64) -> $t {
                value as $t
            }
        }
    };
}
real!(f32, gemm::dots_f32);
real!(f64, gemm::dots_f64);

/// A float of 16 bits: its conversions from and to f32, written so that a loop over them
/// vectorises.
pub(crate) trait HalfBits: Float<Acc = f32> {
    fn bits_to_f32(bits: u16) -> f32;
    fn bits_from_f32(value: f32) -> u16;
}

impl HalfBits for f16 {
    #[inline(always)]
    fn bits_to_f32(bits: u16) -> f32 {
        const TWO_POW_112: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = ((bits & 0x7fff) as u32) << 13;
        let sign = ((bits & 0x8000) as u32) << 16;
        // Moved to f32's place, the exponent is 112 too small; the product also turns a
        // subnormal f16 into a normal f32.
        let finite = (f32::from_bits(magnitude) * TWO_POW_112).to_bits();
        let special = magnitude | 0x7f80_0000;
        f32::from_bits(sign | if magnitude < 0x0f80_0000 { finite } else { special })
    }

    #[inline(always)]
    fn bits_from_f32(value: f32) -> u16 {
        let magnitude = value.to_bits() & 0x7fff_ffff;
        let sign = (value.to_bits() >> 16) as u16 & 0x8000;
        // From 2^-14 on: rebase the exponent and round away 13 bits, half to even. What rounds
        // up to 2^16 or more becomes infinity by the carry, or here:
        let even = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(even) >> 13;
        let normal = if magnitude >= 0x4780_0000 { 0x7c00 } else { normal };
        // Below 2^-14 an f16 counts in steps of 2^-24, which is the last place of an f32 in
        // [0.5, 1): the addition rounds.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < 0x3880_0000 { small } else { normal };
        sign | (if magnitude > 0x7f80_0000 { 0x7e00 } else { finite }) as u16
    }
}

impl HalfBits for bf16 {
    #[inline(always)]
    fn bits_to_f32(bits: u16) -> f32 {
        f32::from_bits((bits as u32) << 16)
    }

    #[inline(always)]
    fn bits_from_f32(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let nan = bits >> 16 | 0x40;
        (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
    }
}

vectorized! {
    fn widen<I: Isa, T: HalfBits>(from: &[T], to: &mut [f32]) {
        let bits: &[u16] = bytemuck::cast_slice(from);
        for (to, bits) in to.iter_mut().zip(bits) {
            *to = T::bits_to_f32(*bits);
        }
    }

    fn narrow<I: Isa, T: HalfBits>(from: &[f32], to: &mut [T]) {
        let bits: &mut [u16] = bytemuck::cast_slice_mut(to);
        for (bits, from) in bits.iter_mut().zip(from) {
            *bits = T::bits_from_f32(*from);
        }
    }
}

macro_rules! half {
    ($t:ty, $dots:path) => {
        impl Float for $t {
            type Acc = f32;
            fn widen(src: &[$t], dst: &mut [f32]) {
                widen(src, dst);
            }
            fn narrow(src: &[f32], dst: &mut [$t]) {
                narrow(src, dst);
            }
            fn as_acc(_: &[$t]) -> Option<&[f32]> {
                None
            }
            fn as_acc_mut(_: &mut [$t]) -> Option<&mut [f32]> {
                None
            }
            fn dots(level: Level) -> Option<Dots<$t, f32>> {
                $dots(level)
            }
        }
    };
}
half!(f16, gemm::dots_f16);
half!(bf16, gemm::dots_bf16);

/// An f32 beside `value` from which rounding to fewer digits gives what rounding `value` would:
/// `value` itself, or else its neighbour with an odd last bit, which lies on the same side of
/// every shorter number as `value` does. `nearest` is the nearest f32, whose magnitude is
/// compared with that of `value`.
fn odd_neighbour(nearest: f32, magnitude: std::cmp::Ordering) -> f32 {
    let bits = nearest.to_bits();
    f32::from_bits(match magnitude {
        std::cmp::Ordering::Equal => bits,
        std::cmp::Ordering::Less => bits | 1,
        std::cmp::Ordering::Greater => (bits - 1) | 1,
    })
}

fn f32_of_f64(value: f64) -> f32 {
    let nearest = value as f32;
    match (nearest as f64).abs().partial_cmp(&value.abs()) {
        Some(magnitude) => odd_neighbour(nearest, magnitude),
        None => nearest,
    }
}

fn f32_of_i64(value: i64) -> f32 {
    let nearest = value as f32;
    odd_neighbour(nearest, (nearest as i128).abs().cmp(&(value as i128).abs()))
}

#[inline]
fn nearest_f16(value: f32) -> f16 {
    f16::from_bits(f16::bits_from_f32(value))
}

#[inline]
fn nearest_bf16(value: f32) -> bf16 {
    bf16::from_bits(bf16::bits_from_f32(value))
}

macro_rules! element {
    ($t:ty, $dtype:ident, $from:expr, $from_int:expr, $to:expr) => {
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline]
            fn of_f64(value: f64) -> $t {
                $from(value)
            }
            #[inline]
            fn of_i64(value: i64) -> $t {
                $from_int(value)
            }
            #[inline]
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    };
}
element!(f16, F16, |v| nearest_f16(f32_of_f64(v)), |v| nearest_f16(f32_of_i64(v)), f16::to_f64);
element!(
    bf16,
    BF16,
    |v| nearest_bf16(f32_of_f64(v)),
    |v| nearest_bf16(f32_of_i64(v)),
    bf16::to_f64
);
element!(f32, F32, |v| v as f32, |v| v as f32, |v: f32| v as f64);
element!(f64, F64, |v| v, |v| v as f64, |v| v);
element!(u32, U32, |v| v as u32, |v: i64| v.clamp(0, u32::MAX as i64) as u32, |v: u32| v as f64);
element!(i64, I64, |v| v as i64, |v| v, |v: i64| v as f64);

/// Run `$body` with `$T` naming the Rust type of `$dtype`: the only place where dtypes become
/// types. With `: Float`, the caller has made sure that it is one. A browser, which downloads every
/// kernel, has those of f32 alone, and of f64 where it says `: Float + f64`: other types are an
/// error there, which the function around it returns. With `: Bits`, for code that only copies
/// elements, it is a type of the same size.
macro_rules! with_dtype {
    ($dtype:expr, $T:ident: Float => $body:expr) => {
        $crate::dtype::with_float!($dtype, $T, $body, [F32 f32])
    };
    ($dtype:expr, $T:ident: Float + f64 => $body:expr) => {
        $crate::dtype::with_float!($dtype, $T, $body, [F32 f32, F64 f64])
    };
    ($dtype:expr, $T:ident: Half => $body:expr) => {
        $crate::dtype::with_dtype!(@match $dtype, $T, $body,
            [F16 half::f16, BF16 half::bf16] other => unreachable!("{other} is no half"))
    };
    ($dtype:expr, $T:ident: Element => $body:expr) => {
        $crate::dtype::with_dtype!(@match $dtype, $T, $body,
            [F16 half::f16, BF16 half::bf16, F32 f32, F64 f64, U32 u32, I64 i64])
    };
    ($dtype:expr, $T:ident: Bits => $body:expr) => {
        match $dtype {
            $crate::DType::F16 | $crate::DType::BF16 => { type $T = half::f16; $body }
            $crate::DType::F32 | $crate::DType::U32 => { type $T = u32; $body }
            $crate::DType::F64 | $crate::DType::I64 => { type $T = i64; $body }
        }
    };
    (@match $dtype:expr, $T:ident, $body:expr, [$($d:ident $t:ty),*] $($rest:tt)*) => {
        match $dtype {
            $($crate::DType::$d => { type $T = $t; $body })*
            $($rest)*
        }
    };
}
pub(crate) use with_dtype;

#[cfg(any(not(target_family = "wasm"), feature = "check"))]
macro_rules! with_float {
    ($dtype:expr, $T:ident, $body:expr, $web:tt) => {
        $crate::dtype::with_dtype!(@match $dtype, $T, $body,
            [F16 half::f16, BF16 half::bf16, F32 f32, F64 f64]
            other => unreachable!("{other} reached a float kernel"))
    };
}

#[cfg(all(target_family = "wasm", not(feature = "check")))]
macro_rules! with_float {
    ($dtype:expr, $T:ident, $body:expr, $web:tt) => {
        $crate::dtype::with_dtype!(@match $dtype, $T, $body, $web
            other => return Err($crate::dtype::not_in_a_browser(other)))
    };
}
pub(crate) use with_float;

#[cfg(all(target_family = "wasm", not(feature = "check")))]
pub(crate) fn not_in_a_browser(dtype: DType) -> Error {
    let why = format!("{dtype} found, expected f32: a browser's CPU computes in no other type");
    Error::Device { op: "cpu", why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits).to_f32();
            assert!(same(f16::bits_to_f32(bits), want), "f16 {bits:#x}");
            let want = bf16::from_bits(bits).to_f32();
            assert!(same(bf16::bits_to_f32(bits), want), "bf16 {bits:#x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        // Every exponent, with mantissas on, beside and between the rounding boundaries.
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0xfff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0xffff] {
                let value = f32::from_bits((high as u32) << 16 | low);
                let got = f16::from_bits(f16::bits_from_f32(value));
                assert!(same(got.to_f32(), f16::from_f32(value).to_f32()), "f16 of {value:e}");
                let got = bf16::from_bits(bf16::bits_from_f32(value));
                assert!(same(got.to_f32(), bf16::from_f32(value).to_f32()), "bf16 of {value:e}");
            }
        }
    }
}
