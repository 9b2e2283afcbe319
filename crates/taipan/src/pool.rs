//! A pool of memory to be reused.
//!
//! New memory is slow: on the host it costs a page fault every 4 KiB, on a GPU a call to the
//! driver. Dropped buffers therefore return to a pool, for the next buffer of their size. Buffers
//! in use and idle ones together stay within 3/2 of the peak of those in use.

use std::collections::{BTreeMap, VecDeque};

/// The memory of a device's tensors, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In use by tensors.
    pub used: usize,
    /// In the pool, to be reused.
    pub cached: usize,
    /// The maximum of `used`.
    pub peak: usize,
}

/// Idle buffers `B`, by size. The owner chooses the unit of sizes.
pub(crate) struct Pool<B> {
    /// In the order of their return, each with its time.
    idle: BTreeMap<usize, VecDeque<(u64, B)>>,
    time: u64,
    cached: usize,
    live: usize,
    peak: usize,
}

impl<B> Pool<B> {
    pub(crate) const fn new() -> Self {
        Pool { idle: BTreeMap::new(), time: 0, cached: 0, live: 0, peak: 0 }
    }

    /// An idle buffer of this size, if there is one; otherwise the buffers to free to make room for
    /// a new one. The caller frees them without holding a lock, because that can be slow.
    pub(crate) fn take(&mut self, size: usize) -> (Option<B>, Vec<B>) {
        match self.idle.get_mut(&size).and_then(VecDeque::pop_back) {
            Some((_, found)) => {
                self.cached -= size;
                self.count(size);
                (Some(found), Vec::new())
            }
            None => (None, self.trim(size)),
        }
    }

    /// Count a new buffer as in use.
    pub(crate) fn count(&mut self, size: usize) {
        self.live += size;
        self.peak = self.peak.max(self.live);
    }

    /// Return a buffer. The caller frees the buffers that it displaces.
    pub(crate) fn give(&mut self, size: usize, buffer: B) -> Vec<B> {
        self.live -= size;
        self.cached += size;
        self.time += 1;
        self.idle.entry(size).or_default().push_back((self.time, buffer));
        self.trim(0)
    }

    /// Count a buffer as freed.
    pub(crate) fn lose(&mut self, size: usize) {
        self.live -= size;
    }

    /// What is in use and idle, if a unit of sizes has so many bytes.
    pub(crate) fn memory(&self, unit: usize) -> Memory {
        let [used, cached, peak] = [self.live, self.cached, self.peak].map(|size| size * unit);
        Memory { used, cached, peak }
    }

    /// Remove all idle buffers, for the caller to free.
    pub(crate) fn clear(&mut self) -> Vec<B> {
        self.cached = 0;
        std::mem::take(&mut self.idle).into_values().flatten().map(|(_, buffer)| buffer).collect()
    }

    /// Remove the buffers that were idle longest until there is room for `size` more.
    fn trim(&mut self, size: usize) -> Vec<B> {
        let mut evicted = Vec::new();
        while self.live + self.cached + size > self.peak + self.peak / 2 {
            let waiting = self.idle.iter_mut().filter(|(_, class)| !class.is_empty());
            let Some((size, class)) = waiting.min_by_key(|(_, class)| class[0].0) else { break };
            if let Some((_, oldest)) = class.pop_front() {
                self.cached -= size;
                evicted.push(oldest);
            }
        }
        evicted
    }
}

/// Sizes are rounded up by at most an eighth, so that buffers of similar sizes are interchangeable.
pub(crate) fn size_class(size: usize) -> usize {
    let step = (size.next_power_of_two() / 16).max(1);
    size.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(used: usize, cached: usize, peak: usize) -> Memory {
        Memory { used, cached, peak }
    }

    #[test]
    fn the_pool_stays_within_its_limit() {
        let mut pool = Pool::new();
        let take = |pool: &mut Pool<()>, n| pool.take(n).0.unwrap_or_else(|| pool.count(n));
        take(&mut pool, 10);
        take(&mut pool, 5);
        assert!(pool.give(10, ()).is_empty());
        assert_eq!(pool.memory(1), memory(5, 10, 15));
        take(&mut pool, 10);
        assert_eq!(pool.memory(1), memory(15, 0, 15), "the idle buffer is taken");
        pool.give(5, ());
        pool.give(10, ());
        take(&mut pool, 12);
        assert_eq!(pool.memory(1), memory(12, 10, 15), "the one idle longest makes room");
        assert!(pool.give(12, ()).is_empty());
        take(&mut pool, 6);
        assert_eq!(pool.memory(1), memory(6, 12, 15), "28 are more than 15·3/2");
        assert_eq!(pool.give(6, ()).len(), 0);
        take(&mut pool, 5);
        assert_eq!(pool.memory(1), memory(5, 6, 15), "23 are more than 15·3/2");
        assert_eq!(pool.give(5, ()).len(), 0);
        assert_eq!(pool.clear().len(), 2);
        assert_eq!(pool.memory(1), memory(0, 0, 15));
    }

    #[test]
    fn size_classes_waste_at_most_an_eighth() {
        for size in 0..10_000 {
            let class = size_class(size);
            assert!(class >= size && class <= size + size / 8, "{size} became {class}");
        }
    }
}
