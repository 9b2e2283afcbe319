//! Instruction sets, chosen at run time.
//!
//! Vector code is written once, as plain loops over scalar functions that are all
//! `#[inline(always)]`. [`vectorized!`] instantiates such a function inside one compiled for each
//! instruction set, where the optimiser turns the loops into that set's vector instructions, and
//! calls the fastest one this processor has.

use std::sync::OnceLock;

/// An instruction set, as a type: what a vectorized function is instantiated for.
pub(crate) trait Isa: Copy + Send + Sync + 'static {
    /// Whether `mul_add` is one instruction; where it is not, it would be a library call.
    const FMA: bool;
}

/// The instructions that every processor of the compilation target has.
#[derive(Clone, Copy)]
pub(crate) struct Baseline;
impl Isa for Baseline {
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
}

/// Those but fused multiply-add: for single numbers that [`Math`](super::math::Math) is exact for only
/// without it.
#[derive(Clone, Copy)]
pub(crate) struct NoFma;
impl Isa for NoFma {
    const FMA: bool = false;
}

/// AVX2, FMA and F16C: 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2;
#[cfg(target_arch = "x86_64")]
impl Isa for Avx2 {
    const FMA: bool = true;
}

/// AVX-512 F, BW, CD, DQ and VL: 512-bit vectors.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512;
#[cfg(target_arch = "x86_64")]
impl Isa for Avx512 {
    const FMA: bool = true;
}

/// An instruction set, as a value. The order is from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

#[cfg(test)]
thread_local! {
    static IN_USE: std::cell::Cell<Option<Level>> = const { std::cell::Cell::new(None) };
}

impl Level {
    /// The sets that this processor supports, slowest first.
    pub(crate) fn available() -> Vec<Level> {
        #[allow(unused_mut)]
        let mut levels = vec![Level::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 {
                levels.push(Level::Avx2);
            }
            if avx512 {
                levels.push(Level::Avx512);
            }
        }
        levels
    }

    /// The set in use: the fastest available, or the one named by the environment variable
    /// `TAIPAN_ISA` (`baseline`, `avx2`, `avx512`), which is for measuring and for tests.
    pub(crate) fn current() -> Level {
        #[cfg(test)]
        if let Some(level) = IN_USE.get() {
            return level;
        }
        static CURRENT: OnceLock<Level> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let levels = Level::available();
            let fastest = levels[levels.len() - 1];
            let Ok(name) = std::env::var("TAIPAN_ISA") else {
                return fastest;
            };
            match levels.iter().find(|level| level.name() == name) {
                Some(level) => *level,
                None => {
                    let names: Vec<_> = levels.iter().map(|level| level.name()).collect();
                    eprintln!("TAIPAN_ISA is {name:?}, expected one of {names:?}: ignored");
                    fastest
                }
            }
        })
    }

    /// Run `f` with this set, one of [`Level::available`], on the current thread.
    #[cfg(test)]
    pub(crate) fn while_in_use<R>(self, f: impl FnOnce() -> R) -> R {
        let before = IN_USE.replace(Some(self));
        let result = f();
        IN_USE.set(before);
        result
    }

    /// Its name in `TAIPAN_ISA`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }
}

/// Functions whose loops are compiled for every instruction set. Their first type parameter,
/// `I: Isa`, is the set in use, which callers do not name; a constant among the parameters follows
/// a semicolon. Functions that they call must be `#[inline(always)]`: otherwise these are compiled
/// for the baseline only.
macro_rules! vectorized {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident<
            $I:ident: Isa $(, $T:ident: $bound:ident)* $(; const $C:ident: u8)?
        >($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$attribute])*
        $visibility fn $name<$($T: $bound,)* $(const $C: u8)?>(
            $($argument: $type),*
        ) $(-> $result)? {
            use $crate::cpu::isa;
            #[inline(always)]
            fn body<$I: isa::Isa, $($T: $bound,)* $(const $C: u8)?>(
                $($argument: $type),*
            ) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2<$($T: $bound,)* $(const $C: u8)?>($($argument: $type),*) $(-> $result)? {
                body::<isa::Avx2, $($T,)* $($C)?>($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c"
            )]
            fn avx512<$($T: $bound,)* $(const $C: u8)?>($($argument: $type),*) $(-> $result)? {
                body::<isa::Avx512, $($T,)* $($C)?>($($argument),*)
            }
            match isa::Level::current() {
                isa::Level::Baseline => body::<isa::Baseline, $($T,)* $($C)?>($($argument),*),
                // SAFETY: `Level::current` is one of `Level::available`, which asked the processor.
                #[cfg(target_arch = "x86_64")]
                isa::Level::Avx2 => unsafe { avx2::<$($T,)* $($C)?>($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                isa::Level::Avx512 => unsafe { avx512::<$($T,)* $($C)?>($($argument),*) },
            }
        }
    )+};
}
pub(crate) use vectorized;
