//! The system's allocator, counting: `#[path]` it into a test binary and it is the allocator there.

#![allow(dead_code)] // Each test binary uses a part.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counting.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `alloc`'s contract.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            BLOCKS.fetch_add(1, Relaxed);
            LARGEST.fetch_max(layout.size(), Relaxed);
            TAKEN.fetch_add(layout.size(), Relaxed);
            let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
            PEAK.fetch_max(live, Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) };
        LIVE.fetch_sub(layout.size(), Relaxed);
    }
}

/// What was taken from the allocator.
#[derive(Debug)]
pub struct Usage {
    /// How many blocks.
    pub blocks: usize,
    /// The bytes of the largest.
    pub largest: usize,
    /// Their bytes in all.
    pub taken: usize,
    /// How much more was held at the same time than before.
    pub peak: usize,
}

/// What `f` takes from the allocator.
pub fn usage<R>(f: impl FnOnce() -> R) -> (R, Usage) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let counts = [&BLOCKS, &LARGEST, &TAKEN];
    counts.iter().for_each(|count| count.store(0, Relaxed));
    let result = f();
    let peak = PEAK.load(Relaxed) - before;
    let [blocks, largest, taken] = counts.map(|count| count.load(Relaxed));
    (result, Usage { blocks, largest, taken, peak })
}

/// Bytes that were taken and not given back.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}
