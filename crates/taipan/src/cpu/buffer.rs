//! Host memory: bytes aligned to cache lines, recycled through a [`Pool`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::pool::{Pool, size_class};
use crate::spec::View;

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
        buffer.as_mut_slice().copy_from_slice(data);
        Ok(buffer)
    }

    /// The contents as elements.
    pub(crate) fn as_slice<T: Element>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The contents as elements.
    pub(crate) fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }
}

/// A tensor that a kernel reads.
pub(crate) type CpuView<'a> = View<'a, &'a CpuBuffer>;

/// A tensor that a kernel writes.
pub(crate) type CpuViewMut<'a> = View<'a, &'a mut CpuBuffer>;

impl<'a> CpuView<'a> {
    /// The elements.
    pub(crate) fn as_slice<T: Element>(&self) -> &'a [T] {
        self.data.as_slice()
    }
}

impl CpuViewMut<'_> {
    /// The elements.
    pub(crate) fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        self.data.as_mut_slice()
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        let evicted = pool().give(self.lines.len(), std::mem::take(&mut self.lines));
        drop(evicted);
    }
}

fn fresh(lines: usize) -> Option<Vec<Line>> {
    let mut fresh = Vec::new();
    fresh.try_reserve_exact(lines).ok()?;
    fresh.resize(lines, ZERO);
    pool().count(lines);
    Some(fresh)
}

static POOL: Mutex<Pool<Vec<Line>>> = Mutex::new(Pool::new());

fn pool() -> MutexGuard<'static, Pool<Vec<Line>>> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = CpuBuffer::scratch("test", 1 << 60).err().unwrap();
        assert!(matches!(error, Error::Memory { op: "test", .. }));
    }
}
