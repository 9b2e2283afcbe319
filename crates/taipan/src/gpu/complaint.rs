//! Mistakes that only the device can see, such as an index beyond a table: kernels write them down, and
//! the next read-back brings them along.

use std::sync::Mutex;

use wgpu::BufferUsages;

use super::{Binding, Gpu, lock};
use crate::error::{Error, Result};

/// Goes behind a kernel that binds `complaints` and has the parameter `slot`.
pub(crate) const COMPLAINTS: &str = include_str!("complaint.wgsl");

/// How many kinds of mistakes there can be.
const SLOTS: usize = 8;
/// A slot is the greatest index found and the greatest limit that one did not keep: two words.
pub(super) const BYTES: usize = SLOTS * 8;

pub(super) struct Complaints {
    pub(super) buffer: wgpu::Buffer,
    /// The op and what its index is called, for each slot in use.
    kinds: Mutex<Vec<(&'static str, &'static str)>>,
}

impl Complaints {
    pub(super) fn new(device: &wgpu::Device) -> Complaints {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("taipan complaints"),
            size: BYTES as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Complaints { buffer, kinds: Mutex::default() }
    }
}

impl Gpu {
    /// The slot in which kernels of `op` complain of an index called `name`.
    pub(crate) fn slot(&self, op: &'static str, name: &'static str) -> u32 {
        let mut kinds = lock(&self.0.complaints.kinds);
        let slot = kinds.iter().position(|kind| *kind == (op, name)).unwrap_or(kinds.len());
        if slot == kinds.len() {
            assert!(slot < SLOTS, "more kinds of complaints than slots");
            kinds.push((op, name));
        }
        slot as u32
    }

    /// What such a kernel binds as `complaints`, as an output.
    pub(crate) fn complaints(&self) -> Binding<'_> {
        Binding { buffer: &self.0.complaints.buffer, offset: 0, bytes: BYTES }
    }

    /// The first complaint, if there is one. Indices that are complained of are never 0.
    pub(super) fn hear(&self, complaints: &[u8; BYTES]) -> Result<()> {
        let kinds = lock(&self.0.complaints.kinds);
        let word = |i: usize| bytemuck::pod_read_unaligned::<u32>(&complaints[i * 4..][..4]);
        for (slot, &(op, name)) in kinds.iter().enumerate() {
            let (found, limit) = (word(2 * slot), word(2 * slot + 1) as usize);
            if found > 0 {
                return Err(Error::Index { op, name, found, at: None, limit });
            }
        }
        Ok(())
    }
}
