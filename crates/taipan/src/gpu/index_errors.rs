//! Device-side index errors: a kernel that finds an index out of range writes it to a buffer, and
//! the next read-back returns it as an error.

use std::sync::Mutex;

use wgpu::BufferUsages;

use super::{Binding, Gpu, lock};
use crate::error::{Error, Result};

/// Appended to a kernel that binds `index_errors` and has the parameter `slot`.
pub(crate) const INDEX_ERRORS: &str = wgsl!("wgsl/index_errors.wgsl");

/// The number of different index errors: one slot for each op and index name.
const SLOTS: usize = 8;
/// A slot is two words: the greatest index out of range, and the greatest limit exceeded.
pub(super) const BYTES: usize = SLOTS * 8;

pub(super) struct IndexErrors {
    pub(super) buffer: wgpu::Buffer,
    /// The op and the name of its index, for each slot in use.
    kinds: Mutex<Vec<(&'static str, &'static str)>>,
}

impl IndexErrors {
    pub(super) fn new(device: &wgpu::Device) -> IndexErrors {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("taipan index errors"),
            size: BYTES as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        IndexErrors { buffer, kinds: Mutex::default() }
    }
}

impl Gpu {
    /// The slot in which kernels of `op` report an index called `name`.
    pub(crate) fn index_error_slot(&self, op: &'static str, name: &'static str) -> u32 {
        let mut kinds = lock(&self.0.index_errors.kinds);
        let slot = kinds.iter().position(|kind| *kind == (op, name)).unwrap_or(kinds.len());
        if slot == kinds.len() {
            assert!(slot < SLOTS, "more kinds of index errors than slots");
            kinds.push((op, name));
        }
        slot as u32
    }

    /// The buffer that such a kernel binds as `index_errors`, as an output.
    pub(crate) fn index_errors(&self) -> Binding<'_> {
        Binding { buffer: &self.0.index_errors.buffer, offset: 0, bytes: BYTES }
    }

    /// The first error reported, if there is one. An index out of range is never 0.
    pub(super) fn check_index_errors(&self, index_errors: &[u8; BYTES]) -> Result<()> {
        let kinds = lock(&self.0.index_errors.kinds);
        let word = |i: usize| bytemuck::pod_read_unaligned::<u32>(&index_errors[i * 4..][..4]);
        for (slot, &(op, name)) in kinds.iter().enumerate() {
            let (found, limit) = (word(2 * slot), word(2 * slot + 1) as usize);
            if found > 0 {
                return Err(Error::Index { op, name, found, at: None, limit });
            }
        }
        Ok(())
    }
}
