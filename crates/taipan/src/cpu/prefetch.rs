//! Software prefetching.

/// Start loading `data` into the cache. Only a hint.
#[inline(always)]
pub(crate) fn prefetch<T>(data: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in data.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is allowed, and this one is valid; SSE is part of
        // every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = data;
}

/// The same for data that is needed later: into the second-level cache, not the first.
#[inline(always)]
pub(crate) fn prefetch_for_later<T>(data: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in data.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = data;
}

/// The same for one line, at any address.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_at(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: as above; a prefetch of an invalid address has no effect.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// The same for data that is needed later.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_for_later_at(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}
