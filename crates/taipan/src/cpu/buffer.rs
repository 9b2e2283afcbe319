//! Host memory: bytes aligned to cache lines, recycled through a [`Pool`].

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(target_os = "linux")]
use super::huge_pages::{Bump, HUGE_PAGE, Huge};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::pool::{self, Pool, size_class};
use crate::spec::View;

/// Bytes of a cache line.
const LINE: usize = 64;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Bytes on the host.
pub(crate) struct CpuBuffer {
    memory: Memory,
    bytes: usize,
}

/// Whole cache lines.
enum Memory {
    Heap(Vec<Line>),
    #[cfg(target_os = "linux")]
    Huge(Huge),
    /// Not from the pool.
    #[cfg(target_os = "linux")]
    Arena(Huge),
}

/// Gives buffers that are next to each other in memory: see [`crate::Arena`].
#[derive(Default)]
pub(crate) struct CpuArena {
    #[cfg(target_os = "linux")]
    bump: Bump,
}

impl CpuArena {
    /// A buffer whose contents are zero.
    pub(crate) fn take(&mut self, op: &'static str, bytes: usize) -> Result<CpuBuffer> {
        #[cfg(target_os = "linux")]
        let memory = self.bump.take(bytes.next_multiple_of(LINE)).map(Memory::Arena);
        #[cfg(not(target_os = "linux"))]
        let memory = heap(bytes.div_ceil(LINE));
        let memory = memory.ok_or(Error::Memory { op, bytes, device: "cpu" })?;
        Ok(CpuBuffer { memory, bytes })
    }
}

impl CpuBuffer {
    /// A buffer of no bytes.
    pub(crate) const EMPTY: CpuBuffer = CpuBuffer { memory: Memory::Heap(Vec::new()), bytes: 0 };

    /// A buffer whose contents are unspecified, for `op` to fill.
    pub(crate) fn scratch(op: &'static str, bytes: usize) -> Result<Self> {
        let class = size_class(bytes.div_ceil(LINE));
        let (idle, evicted) = pool().take(class);
        drop(evicted);
        let memory = match idle {
            Some(memory) => memory,
            None => fresh(class).ok_or(Error::Memory { op, bytes, device: "cpu" })?,
        };
        Ok(Self { memory, bytes })
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
        &self.memory.bytes()[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.bytes]
    }
}

/// A buffer that tensors share.
#[derive(Clone)]
pub(crate) struct SharedBuffer(Arc<CpuBuffer>);

thread_local! {
    /// Handles whose last tensor was dropped by this thread, for the next ones: with the memory from
    /// the pool, a tensor takes nothing from the allocator.
    static IDLE: RefCell<Vec<Arc<CpuBuffer>>> = const { RefCell::new(Vec::new()) };
}

/// The most idle handles of a thread: more than a layer has tensors.
const MOST_IDLE: usize = 256;

impl SharedBuffer {
    /// Whether other tensors have the same memory.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// To be changed, unless other tensors have the same memory.
    pub(crate) fn as_mut(&mut self) -> Option<&mut CpuBuffer> {
        Arc::get_mut(&mut self.0)
    }
}

impl From<CpuBuffer> for SharedBuffer {
    fn from(buffer: CpuBuffer) -> SharedBuffer {
        let idle = IDLE.try_with(|idle| idle.borrow_mut().pop());
        let Some(mut handle) = idle.ok().flatten() else {
            return SharedBuffer(Arc::new(buffer));
        };
        *Arc::get_mut(&mut handle).expect("an idle handle has no other owner") = buffer;
        SharedBuffer(handle)
    }
}

impl Deref for SharedBuffer {
    type Target = CpuBuffer;

    fn deref(&self) -> &CpuBuffer {
        &self.0
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        // If two threads drop the last two at the same time, neither is the only owner: then the
        // `Arc` frees its memory itself.
        let Some(buffer) = Arc::get_mut(&mut self.0) else { return };
        drop(std::mem::replace(buffer, CpuBuffer::EMPTY));
        // A thread that ends may have dropped its list.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() < MOST_IDLE {
                idle.push(self.0.clone());
            }
        });
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
        let memory = std::mem::replace(&mut self.memory, Memory::Heap(Vec::new()));
        let lines = memory.bytes().len() / LINE;
        let from_pool = match memory {
            Memory::Heap(_) => lines > 0,
            #[cfg(target_os = "linux")]
            Memory::Huge(_) => true,
            #[cfg(target_os = "linux")]
            Memory::Arena(_) => false,
        };
        if !from_pool {
            return;
        }
        let evicted = pool().give(lines, memory);
        drop(evicted);
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Heap(lines) => bytemuck::cast_slice(lines),
            #[cfg(target_os = "linux")]
            Memory::Huge(huge) | Memory::Arena(huge) => huge.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(lines) => bytemuck::cast_slice_mut(lines),
            #[cfg(target_os = "linux")]
            Memory::Huge(huge) | Memory::Arena(huge) => huge.bytes_mut(),
        }
    }
}

/// New memory of zeros, or none if there is not enough.
fn fresh(lines: usize) -> Option<Memory> {
    #[cfg(target_os = "linux")]
    let memory = match lines.checked_mul(LINE)? {
        bytes if bytes >= HUGE_PAGE => Memory::Huge(Huge::new(bytes)?),
        _ => heap(lines)?,
    };
    #[cfg(not(target_os = "linux"))]
    let memory = heap(lines)?;
    pool().count(lines);
    Some(memory)
}

fn heap(lines: usize) -> Option<Memory> {
    let mut heap = Vec::new();
    heap.try_reserve_exact(lines).ok()?;
    heap.resize(lines, Line([0; LINE]));
    Some(Memory::Heap(heap))
}

static POOL: Mutex<Pool<Memory>> = Mutex::new(Pool::new());

/// What all tensors of the CPU take, but for those in an arena.
pub(crate) fn memory() -> pool::Memory {
    pool().memory(LINE)
}

fn pool() -> MutexGuard<'static, Pool<Memory>> {
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
