//! Timestamps by the device's own clock, for profiles.

use std::time::Duration;

use wgpu::{BufferAddress, BufferUsages, Features};

use super::stream::BATCH;
use super::{Gpu, Inner, lock};
use crate::profile::{self, Entry};

/// The features for timestamps between any two commands.
pub(super) const FEATURES: Features =
    Features::TIMESTAMP_QUERY.union(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// Timestamps of a batch: one before each command, and one after the last.
const TIMESTAMPS: usize = BATCH + 1;
const BYTES: BufferAddress = (TIMESTAMPS * size_of::<u64>()) as BufferAddress;

pub(super) struct Clock {
    times: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readable: wgpu::Buffer,
    /// The entry of the command after each timestamp of the pending batch.
    entries: Vec<Option<Entry>>,
}

/// A batch with timestamps, to be submitted.
pub(super) struct Measured {
    readable: wgpu::Buffer,
    entries: Vec<Option<Entry>>,
}

impl Clock {
    /// None if the device lacks the features.
    pub(super) fn new(device: &wgpu::Device) -> Option<Clock> {
        if !device.features().contains(FEATURES) {
            return None;
        }
        let label = Some("taipan times");
        let buffer = |usage| {
            let size = BYTES;
            let mapped_at_creation = false;
            device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation })
        };
        Some(Clock {
            times: device.create_query_set(&wgpu::QuerySetDescriptor {
                label,
                ty: wgpu::QueryType::Timestamp,
                count: TIMESTAMPS as u32,
            }),
            resolved: buffer(BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC),
            readable: buffer(BufferUsages::COPY_DST | BufferUsages::MAP_READ),
            entries: Vec::new(),
        })
    }

    /// Whether the pending batch is measured.
    pub(super) fn is_running(&self) -> bool {
        !self.entries.is_empty()
    }

    /// A timestamp before a command of `entry`.
    pub(super) fn timestamp(&mut self, encoder: &mut wgpu::CommandEncoder, entry: Option<Entry>) {
        encoder.write_timestamp(&self.times, self.entries.len() as u32);
        self.entries.push(entry);
    }

    /// Write the last timestamp of the batch and resolve all; none if the batch is not measured.
    pub(super) fn finish(&mut self, encoder: &mut wgpu::CommandEncoder) -> Option<Measured> {
        if !self.is_running() {
            return None;
        }
        let count = self.entries.len() as u32;
        encoder.write_timestamp(&self.times, count);
        encoder.resolve_query_set(&self.times, 0..count + 1, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.readable, 0, BYTES);
        let entries = std::mem::take(&mut self.entries);
        Some(Measured { readable: self.readable.clone(), entries })
    }
}

impl Measured {
    /// Wait for the batch and report its times.
    pub(super) fn report(self, gpu: &Inner) -> Result<(), String> {
        let (send, mapped) = std::sync::mpsc::channel();
        self.readable.map_async(wgpu::MapMode::Read, .., move |result| {
            let _ = send.send(result); // there is no receiver if waiting failed
        });
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| error.to_string())?;
        let mapped = mapped.recv().map_err(|_| "the timestamps were not mapped")?;
        mapped.map_err(|error| error.to_string())?;
        let view = self.readable.get_mapped_range(..).map_err(|error| error.to_string())?;
        let times: Vec<u64> = bytemuck::pod_collect_to_vec(&view);
        drop(view);
        self.readable.unmap();
        let unit = f64::from(gpu.queue.get_timestamp_period());
        for (entry, pair) in self.entries.into_iter().zip(times.windows(2)) {
            // The clock of a GPU may go backwards.
            let time = pair[1].saturating_sub(pair[0]) as f64 * unit;
            if let Some(entry) = entry {
                entry.report(Duration::from_nanos(time as u64));
            }
        }
        Ok(())
    }
}

impl Gpu {
    /// The clock that measures kernels in profiles.
    pub(crate) fn clock(&self) -> profile::Clock {
        match self.0.device.features().contains(FEATURES) {
            true => profile::Clock::Device,
            false => profile::Clock::Host,
        }
    }

    /// Submit everything and wait until the device is idle; absent on the web, where nothing may
    /// block.
    pub fn synchronize(&self) -> crate::Result<()> {
        self.wait_until_idle();
        self.check("synchronize")
    }

    /// The same. What went wrong is left to the next call that can fail.
    pub(crate) fn wait_until_idle(&self) {
        lock(&self.0.stream).submit(&self.0);
        self.0.queue.submit([]);
        // A lost device is reported by its own callback.
        let _ = self.0.device.poll(wgpu::PollType::wait_indefinitely());
    }
}
