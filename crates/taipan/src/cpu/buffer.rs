//! Host memory: bytes aligned to cache lines, recycled.
//!
//! Fresh memory costs a page fault every 4 KiB, which for a fused kernel's output is a
//! noticeable part of its time. Dropped buffers therefore wait in a pool for the next one of
//! their size. The pool keeps no more than the program once used at the same time, so that it
//! never raises the peak.

use std::collections::BTreeMap;
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
            None => fresh(op, class)?,
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

fn fresh(op: &'static str, lines: usize) -> Result<Vec<Line>> {
    let mut fresh = Vec::new();
    if fresh.try_reserve_exact(lines).is_err() {
        pool().forget(lines);
        let bytes = lines * size_of::<Line>();
        return Err(Error::Memory { op, bytes, device: "cpu" });
    }
    fresh.resize(lines, ZERO);
    Ok(fresh)
}

/// Buffers to be freed after the lock is released: freeing memory can be slow.
type Evicted = Vec<Vec<Line>>;

/// Buffers waiting to be used again, by size. All counts are in lines.
struct Pool {
    idle: BTreeMap<usize, Vec<Vec<Line>>>,
    cached: usize,
    live: usize,
    peak: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: BTreeMap::new(), cached: 0, live: 0, peak: 0 });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// An idle buffer of this size, if there is one, and those that must go because there is none.
    fn take(&mut self, lines: usize) -> (Option<Vec<Line>>, Evicted) {
        self.live += lines;
        self.peak = self.peak.max(self.live);
        match self.idle.get_mut(&lines).and_then(Vec::pop) {
            Some(found) => {
                self.cached -= lines;
                (Some(found), Evicted::new())
            }
            None => (None, self.trim()),
        }
    }

    fn give(&mut self, lines: Vec<Line>) -> Evicted {
        self.live -= lines.len();
        self.cached += lines.len();
        self.idle.entry(lines.len()).or_default().push(lines);
        self.trim()
    }

    /// A buffer that was announced by `take` and could not be made.
    fn forget(&mut self, lines: usize) {
        self.live -= lines;
    }

    /// Remove the largest idle buffers until no more is held than once was in use.
    fn trim(&mut self) -> Evicted {
        let mut evicted = Vec::new();
        while self.cached > 0 && self.live + self.cached > self.peak {
            let Some(mut class) = self.idle.last_entry() else { break };
            match class.get_mut().pop() {
                Some(lines) => {
                    self.cached -= lines.len();
                    evicted.push(lines);
                }
                None => drop(class.remove()),
            }
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_never_raises_the_peak() {
        let mut pool = Pool { idle: BTreeMap::new(), cached: 0, live: 0, peak: 0 };
        let take = |pool: &mut Pool, n| pool.take(n).0.unwrap_or_else(|| vec![ZERO; n]);
        let (a, b) = (take(&mut pool, 10), take(&mut pool, 5));
        assert!(pool.give(a).is_empty());
        assert_eq!((pool.live, pool.cached, pool.peak), (5, 10, 15));
        let c = take(&mut pool, 10);
        assert_eq!((pool.live, pool.cached), (15, 0), "the idle buffer is taken");
        pool.give(b);
        pool.give(c);
        let d = take(&mut pool, 12);
        assert!(pool.live + pool.cached <= pool.peak, "a new size evicts an idle one");
        pool.give(d);
        assert!(pool.live + pool.cached <= pool.peak);
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
