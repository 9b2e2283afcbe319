//! The command stream: launches and copies, submitted in batches, and the memory of their
//! parameters.

use wgpu::{BufferAddress, BufferUsages};

use super::Inner;
#[cfg(not(target_family = "wasm"))]
use super::clock::Clock;
use super::fault::scoped;
use super::time_limit::SUBMISSION;
use crate::profile;

/// A batch is submitted when it has this many commands, or when one more would take it beyond the
/// time limit of a submission.
pub(super) const BATCH: usize = 128;

/// The most batches in flight: with more, encoding waits for the oldest.
#[cfg(not(target_family = "wasm"))]
const IN_FLIGHT: usize = 16;

/// The alignment of parameters.
const ALIGNMENT: usize = 256;

/// The most bytes that the parameters of one launch take.
pub(super) const MOST_PARAMS: usize = 1024;

/// Bytes for the parameters of a batch.
const ARENA: usize = 128 << 10;

/// The encoder of a batch, and its open pass.
type Batch = (wgpu::CommandEncoder, Option<wgpu::ComputePass<'static>>);

pub(super) struct CommandStream {
    /// The batch being encoded; none if it is empty.
    batch: Option<Batch>,
    pending: usize,
    /// An estimate of the time the pending commands take.
    pending_seconds: f64,
    #[cfg(not(target_family = "wasm"))]
    clock: Option<Clock>,
    #[cfg(not(target_family = "wasm"))]
    in_flight: std::collections::VecDeque<wgpu::SubmissionIndex>,
    /// The parameters of the pending launches, copied to `arena` on submission.
    params: Vec<u8>,
    arena: wgpu::Buffer,
    pub(super) params_layout: wgpu::BindGroupLayout,
    params_group: wgpu::BindGroup,
    launches: u64,
    submissions: u64,
    bound_bytes: u64,
}

/// One dispatch.
pub(super) struct Dispatch<'a> {
    pub(super) pipeline: &'a wgpu::ComputePipeline,
    pub(super) buffers: &'a wgpu::BindGroup,
    pub(super) params: &'a [u8],
    /// Follows the parameters.
    pub(super) first_group: u32,
    pub(super) groups: [u32; 2],
    /// An estimate of the time it takes.
    pub(super) seconds: f64,
    /// Bytes bound; 0 if another dispatch of the launch counts them.
    pub(super) bytes: u64,
}

/// A buffer and an offset in bytes.
pub(super) type BufferOffset<'a> = (&'a wgpu::Buffer, BufferAddress);

impl CommandStream {
    pub(super) fn new(device: &wgpu::Device) -> CommandStream {
        let arena = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("taipan parameters"),
            size: (ARENA + MOST_PARAMS) as BufferAddress,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let size = wgpu::BufferSize::new(MOST_PARAMS as u64);
        let params_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("taipan parameters"),
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Uniform,
                    has_dynamic_offset: true,
                    min_binding_size: size,
                },
                count: None,
            }],
        });
        let params_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("taipan parameters"),
            layout: &params_layout,
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &arena,
                    offset: 0,
                    size,
                }),
            }],
        });
        CommandStream {
            batch: None,
            pending: 0,
            pending_seconds: 0.0,
            #[cfg(not(target_family = "wasm"))]
            clock: Clock::new(device),
            #[cfg(not(target_family = "wasm"))]
            in_flight: Default::default(),
            params: Vec::new(),
            arena,
            params_layout,
            params_group,
            launches: 0,
            submissions: 0,
            bound_bytes: 0,
        }
    }

    /// Launches, submissions and bytes bound so far.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        (self.launches, self.submissions, self.bound_bytes)
    }

    pub(super) fn dispatch(&mut self, gpu: &Inner, dispatch: Dispatch) {
        if self.params.len() + dispatch.params.len() > ARENA {
            self.submit(gpu);
        }
        self.begin_command(gpu, dispatch.seconds);
        let at = self.params.len() as u32;
        self.params.extend_from_slice(dispatch.params);
        self.params.extend_from_slice(&dispatch.first_group.to_le_bytes());
        self.params.resize(self.params.len().next_multiple_of(ALIGNMENT), 0);
        let (encoder, pass) = self.batch.get_or_insert_with(|| (encoder(gpu), None));
        let pass = pass.get_or_insert_with(|| {
            encoder.begin_compute_pass(&Default::default()).forget_lifetime()
        });
        pass.set_pipeline(dispatch.pipeline);
        pass.set_bind_group(0, dispatch.buffers, &[]);
        pass.set_bind_group(1, &self.params_group, &[at]);
        pass.dispatch_workgroups(dispatch.groups[0], dispatch.groups[1], 1);
        self.launches += 1;
        self.bound_bytes += dispatch.bytes;
        profile::count_dispatch();
    }

    /// Before a command is encoded that takes so long: submit the batch if it has no room for it.
    fn begin_command(&mut self, gpu: &Inner, seconds: f64) {
        if self.pending >= BATCH || self.pending_seconds + seconds > SUBMISSION {
            self.submit(gpu);
        }
        #[cfg(not(target_family = "wasm"))]
        self.timestamp(gpu);
        self.pending += 1;
        self.pending_seconds += seconds;
    }

    /// Encode a copy.
    pub(super) fn copy(
        &mut self,
        gpu: &Inner,
        from: BufferOffset,
        to: BufferOffset,
        size: BufferAddress,
    ) {
        self.begin_command(gpu, gpu.rate.seconds(0, 2 * size));
        let encoder = self.outside_pass(gpu);
        encoder.copy_buffer_to_buffer(from.0, from.1, to.0, to.1, size);
    }

    /// Copy the index errors that kernels reported, then clear them.
    pub(super) fn take_index_errors(&mut self, gpu: &Inner, to: &wgpu::Buffer, at: BufferAddress) {
        let index_errors = &gpu.index_errors.buffer;
        self.copy(gpu, (index_errors, 0), (to, at), index_errors.size());
        self.outside_pass(gpu).clear_buffer(index_errors, 0, None);
    }

    /// Encode a timestamp before the next command, if that or an earlier one of the batch is
    /// measured.
    #[cfg(not(target_family = "wasm"))]
    fn timestamp(&mut self, gpu: &Inner) {
        let Some(clock) = &mut self.clock else { return };
        let entry = profile::entry();
        if entry.is_some() || clock.is_running() {
            let (encoder, pass) = self.batch.get_or_insert_with(|| (encoder(gpu), None));
            *pass = None; // ends it
            clock.timestamp(encoder, entry);
        }
    }

    fn outside_pass(&mut self, gpu: &Inner) -> &mut wgpu::CommandEncoder {
        let (encoder, pass) = self.batch.get_or_insert_with(|| (encoder(gpu), None));
        *pass = None; // ends it
        encoder
    }

    pub(super) fn submit(&mut self, gpu: &Inner) {
        if let Some(batch) = self.batch.take() {
            profile::span("submit", "", || self.submit_batch(gpu, batch));
        }
    }

    #[cfg_attr(target_family = "wasm", allow(unused_mut))] // a browser has no clock to finish
    fn submit_batch(&mut self, gpu: &Inner, (mut encoder, pass): Batch) {
        let submission = scoped(&gpu.device, wgpu::ErrorFilter::Validation, |_| {
            drop(pass);
            #[cfg(not(target_family = "wasm"))]
            let measured = self.clock.as_mut().and_then(|clock| clock.finish(&mut encoder));
            #[cfg(target_family = "wasm")]
            let measured = ();
            if !self.params.is_empty() {
                // Written before this submission runs and after earlier ones: the queue is ordered.
                gpu.queue.write_buffer(&self.arena, 0, &self.params);
            }
            (gpu.queue.submit([encoder.finish()]), measured)
        });
        self.params.clear();
        (self.pending, self.pending_seconds) = (0, 0.0);
        self.submissions += 1;
        let submission = submission.map_err(|why| gpu.faults.fail(why));
        let Ok((_submission, _measured)) = submission else { return };
        #[cfg(not(target_family = "wasm"))]
        {
            if let Some(Err(why)) = _measured.map(|measured| measured.report(gpu)) {
                gpu.faults.fail(why);
            }
            self.in_flight.push_back(_submission);
            if self.in_flight.len() > IN_FLIGHT {
                // A lost device is reported by its own callback.
                let submission_index = self.in_flight.pop_front();
                let _ = gpu.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
            }
        }
    }
}

fn encoder(gpu: &Inner) -> wgpu::CommandEncoder {
    gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("taipan") })
}
