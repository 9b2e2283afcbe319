//! Host memory: bytes aligned to cache lines, recycled.
//!
//! Fresh memory costs a page fault every 4 KiB, which for a fused kernel's output is a
//! noticeable part of its time. Dropped buffers therefore wait in a pool for the next one of
//! their size. What is in use and what waits together stay within five quarters of what was once in use
//! at the same time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dtype::Element;
use crate::error::{Error, Result};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

const ZERO: Line = Line([0; 64]);

/// Bytes on the host.
pub(crate) struct CpuBuffer {
    lines: Vec<Line>,
    bytes: usize,
}

impl CpuBuffer {
    /// A buffer whose contents are unspecified, for `op` to fill.
    pub(crate) fn scratch(op: &'static str, bytes: usize) -> Result<Self> {
        let class = size_class(bytes.div_ceil(size_of::<Line>()));
        let (idle, evicted) = pool().take(class);
        drop(evicted);
        let lines = match idle {
            Some(lines) => lines,
            None => fresh(class).ok_or(Error::Memory { op, bytes, device: "cpu" })?,
        };
        Ok(Self { lines, bytes })
    }

    /// A copy of `data`.
    pub(crate) fn from_slice<T: Element>(op: &'static str, data: &[T]) -> Result<Self> {
        let mut buffer = Self::scratch(op, size_of_val(data))?;
        buffer.of_mut().copy_from_slice(data);
        Ok(buffer)
    }

    /// The contents as elements.
    pub(crate) fn of<T: Element>(&self) -> &[T] {
        bytemuck::cast_slice(&bytemuck::cast_slice::<Line, u8>(&self.lines)[..self.bytes])
    }

    /// The contents as elements.
    pub(crate) fn of_mut<T: Element>(&mut self) -> &mut [T] {
        let bytes = self.bytes;
        bytemuck::cast_slice_mut(
            &mut bytemuck::cast_slice_mut::<Line, u8>(&mut self.lines)[..bytes],
        )
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        let evicted = pool().give(std::mem::take(&mut self.lines));
        drop(evicted);
    }
}

/// Sizes are rounded up by at most an eighth, so that neighbours can take each other's place.
fn size_class(lines: usize) -> usize {
    let step = (lines.next_power_of_two() / 16).max(1);
    lines.next_multiple_of(step)
}

fn fresh(lines: usize) -> Option<Vec<Line>> {
    let mut fresh = Vec::new();
    fresh.try_reserve_exact(lines).ok()?;
    fresh.resize(lines, ZERO);
    pool().count(lines);
    Some(fresh)
}

/// Buffers to be freed after the lock is released: freeing memory can be slow.
type Evicted = Vec<Vec<Line>>;

/// Buffers waiting to be used again, by size. All counts are in lines.
struct Pool {
    /// The latest behind the earlier, each with the time it came.
    idle: BTreeMap<usize, VecDeque<(u64, Vec<Line>)>>,
    time: u64,
    cached: usize,
    live: usize,
    peak: usize,
}

static POOL: Mutex<Pool> =
    Mutex::new(Pool { idle: BTreeMap::new(), time: 0, cached: 0, live: 0, peak: 0 });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// An idle buffer of this size, if there is one, and those that make room for a new one if
    /// there is none.
    fn take(&mut self, lines: usize) -> (Option<Vec<Line>>, Evicted) {
        match self.idle.get_mut(&lines).and_then(VecDeque::pop_back) {
            Some((_, found)) => {
                self.cached -= lines;
                self.count(lines);
                (Some(found), Evicted::new())
            }
            None => (None, self.trim(lines)),
        }
    }

    /// Another buffer is in use.
    fn count(&mut self, lines: usize) {
        self.live += lines;
        self.peak = self.peak.max(self.live);
    }

    fn give(&mut self, lines: Vec<Line>) -> Evicted {
        self.live -= lines.len();
        self.cached += lines.len();
        self.time += 1;
        self.idle.entry(lines.len()).or_default().push_back((self.time, lines));
        self.trim(0)
    }

    /// Remove the buffers that were idle longest until there is room for `lines` more.
    fn trim(&mut self, lines: usize) -> Evicted {
        let mut evicted = Evicted::new();
        while self.live + self.cached + lines > self.peak + self.peak / 4 {
            let waiting = self.idle.values_mut().filter(|class| !class.is_empty());
            let Some(class) = waiting.min_by_key(|class| class[0].0) else { break };
            if let Some((_, oldest)) = class.pop_front() {
                self.cached -= oldest.len();
                evicted.push(oldest);
            }
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_keeps_within_its_limit() {
        let mut pool = Pool { idle: BTreeMap::new(), time: 0, cached: 0, live: 0, peak: 0 };
        let take = |pool: &mut Pool, n| {
            pool.take(n).0.unwrap_or_else(|| {
                pool.count(n);
                vec![ZERO; n]
            })
        };
        let (a, b) = (take(&mut pool, 10), take(&mut pool, 5));
        assert!(pool.give(a).is_empty());
        assert_eq!((pool.live, pool.cached, pool.peak), (5, 10, 15));
        let c = take(&mut pool, 10);
        assert_eq!((pool.live, pool.cached), (15, 0), "the idle buffer is taken");
        pool.give(b);
        pool.give(c);
        let d = take(&mut pool, 12);
        assert_eq!((pool.live, pool.cached), (12, 0), "those idle longest make room");
        assert!(pool.give(d).is_empty());
        let e = take(&mut pool, 6);
        assert_eq!((pool.live, pool.cached), (6, 12), "18 of 15·5/4");
        assert_eq!(pool.give(e).len(), 0);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = CpuBuffer::scratch("test", 1 << 60).err().unwrap();
        assert!(matches!(error, Error::Memory { op: "test", .. }));
    }

    #[test]
    fn size_classes_waste_at_most_an_eighth() {
        for lines in 0..10_000 {
            let class = size_class(lines);
            assert!(class >= lines && class <= lines + lines / 8, "{lines} became {class}");
        }
    }
}
