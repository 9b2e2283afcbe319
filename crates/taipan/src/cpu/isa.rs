//! Instruction sets, chosen at run time.
//!
//! Vector code is written once, as plain loops over scalar functions that are all
//! `#[inline(always)]`. [`dispatch`] instantiates such a [`Job`] inside a function compiled for
//! each instruction set, where the optimiser turns the loops into that set's vector
//! instructions, and calls the best one this processor has.

use std::sync::OnceLock;

/// An instruction set, as a type: what a [`Job`] is instantiated for.
pub(crate) trait Isa: Copy + Send + Sync + 'static {
    /// Whether `mul_add` is one instruction; where it is not, it would be a library call.
    const FMA: bool;
}

/// What every processor of the compilation target has.
#[derive(Clone, Copy)]
pub(crate) struct Baseline;
impl Isa for Baseline {
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
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

impl Level {
    /// The sets this processor has, slowest first.
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

    /// The name `TAIPAN_ISA` takes.
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

/// Work that can be compiled for any instruction set. `run` and all it calls must be
/// `#[inline(always)]`: what is not inlined is compiled for the baseline only.
pub(crate) trait Job {
    /// What the work returns.
    type Output;
    /// Do the work.
    fn run<I: Isa>(self) -> Self::Output;
}

/// Run `job` with the instruction set in use.
pub(crate) fn dispatch<J: Job>(job: J) -> J::Output {
    dispatch_on(Level::current(), job)
}

/// Run `job` with the given instruction set, one of [`Level::available`].
pub(crate) fn dispatch_on<J: Job>(level: Level, job: J) -> J::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<J: Job>(job: J) -> J::Output {
            job.run::<Avx2>()
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c")]
        fn avx512<J: Job>(job: J) -> J::Output {
            job.run::<Avx512>()
        }
        match level {
            Level::Baseline => job.run::<Baseline>(),
            // SAFETY: `level` is one of `Level::available`, which asked the processor.
            Level::Avx2 => unsafe { avx2(job) },
            // SAFETY: as above.
            Level::Avx512 => unsafe { avx512(job) },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    match level {
        Level::Baseline => job.run::<Baseline>(),
    }
}
