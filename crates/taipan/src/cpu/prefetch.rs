//! Software prefetching: hints, which change no result.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0 as FIRST_LEVEL, _MM_HINT_T1 as SECOND_LEVEL, _mm_prefetch};

#[cfg(not(target_arch = "x86_64"))]
const FIRST_LEVEL: i32 = 0;
#[cfg(not(target_arch = "x86_64"))]
const SECOND_LEVEL: i32 = 0;

/// Start loading `data` into the cache.
#[inline(always)]
pub(crate) fn prefetch<T>(data: &[T]) {
    prefetch_lines::<FIRST_LEVEL, T>(data);
}

/// The same for data that is needed later: into the second-level cache, not the first.
#[inline(always)]
pub(crate) fn prefetch_for_later<T>(data: &[T]) {
    prefetch_lines::<SECOND_LEVEL, T>(data);
}

/// Start loading one line, at any address.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_at(address: *const u8) {
    prefetch_line::<FIRST_LEVEL>(address);
}

/// The same for data that is needed later.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_for_later_at(address: *const u8) {
    prefetch_line::<SECOND_LEVEL>(address);
}

#[inline(always)]
fn prefetch_lines<const LEVEL: i32, T>(data: &[T]) {
    for line in data.chunks(64 / size_of::<T>()) {
        prefetch_line::<LEVEL>(line.as_ptr().cast());
    }
}

#[inline(always)]
fn prefetch_line<const LEVEL: i32>(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed, and one of an invalid address has no effect;
    // SSE is part of every x86-64 processor.
    unsafe {
        _mm_prefetch::<LEVEL>(address.cast());
    }
    let _ = address;
}
