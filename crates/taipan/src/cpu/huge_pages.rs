//! Memory of huge pages, which Linux grants on request. With small pages, reading it is up to twice
//! as slow: the processor waits for the translation of addresses.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The size of a huge page on x86-64, and of one on most ARM systems.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// The sizes of the first region that [`Bump`] hands out, and of later ones: each is twice as large
/// as the one before it. What is not used of it is never touched, and takes no memory.
const REGIONS: [usize; 2] = [256 << 10, 16 << 20];

/// Memory from the program's allocator, not initialised.
struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it only owns memory; access is through `Huge`, which has its range for itself.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(bytes: usize) -> Option<Region> {
        let align = if bytes < HUGE_PAGE { 64 } else { HUGE_PAGE };
        let layout = Layout::from_size_align(bytes, align).ok().filter(|_| bytes > 0)?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        if bytes >= HUGE_PAGE {
            // SAFETY: the range is allocated; the advice does not change its contents. Where it is
            // refused, the pages are small: slower, and otherwise the same.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Some(Region { start, layout })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; nobody has a range of it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Bytes that one owner has, beginning at a multiple of 64.
pub(super) struct Huge {
    region: Arc<Region>,
    range: Range<usize>,
}

impl Huge {
    /// Zeros, or none if there is not enough memory.
    pub(super) fn new(bytes: usize) -> Option<Huge> {
        Some(Huge::of(Arc::new(Region::new(bytes)?), 0..bytes))
    }

    /// Zeros in a range that nobody else has.
    fn of(region: Arc<Region>, range: Range<usize>) -> Huge {
        let huge = Huge { region, range };
        // SAFETY: the range is within the region, and this owner's.
        unsafe { huge.start().write_bytes(0, huge.range.len()) };
        huge
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: as above; it is initialised.
        unsafe { std::slice::from_raw_parts(self.start(), self.range.len()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.range.len()) }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the range is within the region.
        unsafe { self.region.start.as_ptr().add(self.range.start) }
    }
}

/// Hands out memory, one piece after the other. A region is freed with the last piece of it.
#[derive(Default)]
pub(super) struct Bump {
    region: Option<Arc<Region>>,
    used: usize,
}

impl Bump {
    /// Zeros, or none if there is not enough memory.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Huge> {
        let size = bytes.checked_next_multiple_of(64)?;
        let fits = |region: &&Arc<Region>| size <= region.layout.size() - self.used;
        let region = match self.region.as_ref().filter(fits) {
            Some(region) => Arc::clone(region),
            None => {
                let last = self.region.as_ref().map_or(0, |region| region.layout.size());
                let next = (2 * last.min(REGIONS[1])).clamp(REGIONS[0], REGIONS[1]);
                let region = Region::new(size.max(next))?;
                self.used = 0;
                Arc::clone(self.region.insert(Arc::new(region)))
            }
        };
        let range = self.used..self.used + bytes;
        self.used += size;
        Some(Huge::of(region, range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap() {
        let mut bump = Bump::default();
        let sizes = [0, 1, 64, 65, REGIONS[0], 3 << 20, REGIONS[1], 5, REGIONS[1] + 1];
        let mut pieces: Vec<Huge> = sizes.iter().map(|size| bump.take(*size).unwrap()).collect();
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert_eq!(piece.bytes().len(), sizes[i]);
            assert_eq!(piece.bytes().as_ptr().align_offset(64), 0);
            assert!(piece.bytes().iter().all(|byte| *byte == 0));
            piece.bytes_mut().fill(1 + i as u8);
        }
        for (i, piece) in pieces.iter().enumerate() {
            assert!(piece.bytes().iter().all(|byte| *byte == 1 + i as u8), "piece {i}");
        }
        assert!(bump.take(usize::MAX).is_none());
    }
}
