//! Vector registers of x86-64.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::{bf16, f16};

use crate::dtype::Real;

/// A vector register, for processors that have it.
///
/// SAFETY: every method needs the processor to have the instruction set of the type; `load`
/// and `store` need `LANES` elements at the pointer.
pub(super) trait Vector: Copy {
    type Element: Real;
    const LANES: usize;
    unsafe fn splat(x: Self::Element) -> Self;
    unsafe fn load(from: *const Self::Element) -> Self;
    unsafe fn store(self, to: *mut Self::Element);
    unsafe fn add(self, other: Self) -> Self;
    /// `a·b + self`
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// The sum of the lanes, by halves.
    unsafe fn sum(self) -> Self::Element;
}

macro_rules! vector {
    ($v:ty, $e:ty, $splat:ident $load:ident $store:ident $add:ident $fma:ident, |$x:ident| $sum:expr) => {
        impl Vector for $v {
            type Element = $e;
            const LANES: usize = size_of::<$v>() / size_of::<$e>();
            #[inline(always)]
            unsafe fn splat(x: $e) -> $v {
                // SAFETY: the trait's.
                unsafe { $splat(x) }
            }
            #[inline(always)]
            unsafe fn load(from: *const $e) -> $v {
                // SAFETY: the trait's.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $e) {
                // SAFETY: the trait's.
                unsafe { $store(to, self) }
            }
            #[inline(always)]
            unsafe fn add(self, other: $v) -> $v {
                // SAFETY: the trait's.
                unsafe { $add(self, other) }
            }
            #[inline(always)]
            unsafe fn fma(self, a: $v, b: $v) -> $v {
                // SAFETY: the trait's.
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            unsafe fn sum(self) -> $e {
                let $x = self;
                // SAFETY: the trait's.
                unsafe { $sum }
            }
        }
    };
}
vector!(__m256, f32, _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_fmadd_ps,
|x| {
    let fours = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)))
});
vector!(__m256d, f64, _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_add_pd _mm256_fmadd_pd,
|x| {
    let twos = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
    _mm_cvtsd_f64(_mm_add_sd(twos, _mm_unpackhi_pd(twos, twos)))
});
vector!(__m512, f32, _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_fmadd_ps,
|x| {
    let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x));
    _mm512_castps512_ps256(x).add(_mm256_castpd_ps(upper)).sum()
});
vector!(__m512d, f64, _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_add_pd _mm512_fmadd_pd,
    |x| _mm512_castpd512_pd256(x).add(_mm512_extractf64x4_pd::<1>(x)).sum());

/// Pairs of bf16, each in the place of an f32, for processors that also have AVX-512 BF16. `fma`
/// adds both products of two pairs; sums are f32, and `add`, `load` and `store` are theirs.
#[derive(Clone, Copy)]
pub(super) struct Pairs(__m512);

impl Vector for Pairs {
    type Element = f32;
    const LANES: usize = __m512::LANES;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Pairs {
        // SAFETY: the trait's.
        Pairs(unsafe { __m512::splat(x) })
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Pairs {
        // SAFETY: the trait's.
        Pairs(unsafe { __m512::load(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's.
        unsafe { self.0.store(to) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Pairs) -> Pairs {
        // SAFETY: the trait's.
        Pairs(unsafe { self.0.add(other.0) })
    }
    #[inline(always)]
    unsafe fn fma(self, a: Pairs, b: Pairs) -> Pairs {
        // SAFETY: the trait's; the types have the same size, and any bits are pairs of bf16.
        unsafe {
            let [a, b] = [a, b].map(|x| transmute::<__m512, __m512bh>(x.0));
            Pairs(_mm512_dpbf16_ps(self.0, a, b))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the trait's.
        unsafe { self.0.sum() }
    }
}

/// Elements that are converted to those of a vector while they are loaded.
///
/// SAFETY: `load` needs what [`Vector::load`] does, `load_some` the instruction set.
pub(super) trait Widen<V: Vector>: Copy {
    const ZERO: Self;
    unsafe fn load(from: *const Self) -> V;
    /// Fewer elements than `LANES`, then zeros.
    #[inline(always)]
    unsafe fn load_some(from: &[Self]) -> V {
        let mut padded = [Self::ZERO; 16];
        padded[..from.len()].copy_from_slice(from);
        // SAFETY: no vector has more than 16 lanes.
        unsafe { Self::load(padded.as_ptr()) }
    }
}

macro_rules! widen {
    ($e:ty, $zero:expr, $v:ty, |$from:ident| $load:expr) => {
        impl Widen<$v> for $e {
            const ZERO: $e = $zero;
            #[inline(always)]
            unsafe fn load($from: *const $e) -> $v {
                // SAFETY: the trait's.
                unsafe { $load }
            }
        }
    };
}
widen!(f32, 0.0, __m256, |from| _mm256_loadu_ps(from));
widen!(f32, 0.0, __m512, |from| _mm512_loadu_ps(from));
widen!(f64, 0.0, __m256d, |from| _mm256_loadu_pd(from));
widen!(f64, 0.0, __m512d, |from| _mm512_loadu_pd(from));
widen!(f16, f16::ZERO, __m256, |from| _mm256_cvtph_ps(_mm_loadu_si128(from.cast())));
widen!(f16, f16::ZERO, __m512, |from| _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())));
// A bf16 is the upper half of an f32.
widen!(bf16, bf16::ZERO, __m256, |from| {
    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
});
widen!(bf16, bf16::ZERO, __m512, |from| {
    let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
});
