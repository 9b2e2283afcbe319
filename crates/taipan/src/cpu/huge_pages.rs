//! Memory of huge pages, which Linux grants on request. With small pages, reading it is up to twice
//! as slow: the processor waits for the translation of addresses.

use std::ops::Range;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// The size of a huge page on x86-64, and of one on most ARM systems.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// New memory that [`Bump`] hands out. What is not used of it is never touched, and takes no memory.
const REGION: usize = 64 << 20;

/// Bytes that one owner has, beginning at a multiple of 64.
pub(super) struct Huge {
    region: Arc<MmapRaw>,
    range: Range<usize>,
}

impl Huge {
    /// Zeros, or none if there is not enough memory.
    pub(super) fn new(bytes: usize) -> Option<Huge> {
        Bump::default().take(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `Bump::take` gives this range, which is within the region, to nobody else; the
        // region is initialised by the system.
        unsafe { std::slice::from_raw_parts(self.start(), self.range.len()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.range.len()) }
    }

    fn start(&self) -> *mut u8 {
        self.region.as_mut_ptr().wrapping_add(self.range.start)
    }
}

/// Hands out memory, one piece after the other. A region is freed with the last piece of it.
#[derive(Default)]
pub(super) struct Bump {
    region: Option<Arc<MmapRaw>>,
    used: usize,
}

impl Bump {
    /// Zeros, or none if there is not enough memory.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Huge> {
        let size = bytes.checked_next_multiple_of(64)?;
        let fits = |region: &&Arc<MmapRaw>| size <= region.len() - self.used;
        let region = match self.region.as_ref().filter(fits) {
            Some(region) => Arc::clone(region),
            None => {
                let len = size.max(REGION).checked_add(HUGE_PAGE)?;
                let map = MmapOptions::new().len(len).map_anon().ok()?;
                // Where it is refused, the pages are small: slower, and otherwise the same.
                let _ = map.advise(Advice::HugePage);
                self.used = map.as_ptr().align_offset(HUGE_PAGE);
                Arc::clone(self.region.insert(Arc::new(map.into())))
            }
        };
        let range = self.used..self.used + bytes;
        self.used += size;
        Some(Huge { region, range })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap() {
        let mut bump = Bump::default();
        let sizes = [0, 1, 64, 65, 3 << 20, REGION, 5, REGION + 1];
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
