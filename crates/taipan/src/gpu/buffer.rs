//! Memory on a GPU: pooled buffers, uploads and read-backs.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use wgpu::{BufferAddress, BufferUsages};

use super::fault::scoped;
use super::stream::BufferOffset;
use super::{Gpu, index_errors, lock};
use crate::error::{Error, Result, ensure};
use crate::pool::{Memory, Pool, size_class};
use crate::spec::{Spec, View};
use crate::{DType, Device};

/// The minimum size of a buffer: smaller ones would only add size classes.
const LEAST: usize = 256;

/// Transfers are split into chunks of this many bytes, which bounds the staging memory.
const CHUNK: usize = 64 << 20;

/// The usage of tensors' buffers.
const USAGE: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Bytes on a GPU.
pub(crate) struct GpuBuffer {
    device: Device,
    buffer: wgpu::Buffer,
    /// Where it begins; not 0 for a window of another buffer.
    offset: BufferAddress,
    bytes: usize,
    /// Its size class in the pool; none if the pool does not own it.
    class: Option<usize>,
    /// The buffer that a window keeps alive.
    _whole: Option<Arc<GpuBuffer>>,
}

/// A window of a buffer, as a kernel binds it.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(super) buffer: &'a wgpu::Buffer,
    pub(super) offset: BufferAddress,
    pub(super) bytes: usize,
}

impl Binding<'_> {
    /// The window that holds a range of its items, of `bytes` each.
    pub(crate) fn window(self, items: Range<usize>, bytes: usize) -> Self {
        let offset = self.offset + items.start as BufferAddress * bytes as BufferAddress;
        Binding { offset, bytes: padded(items.len() * bytes), ..self }
    }
}

/// A tensor that a kernel reads or writes.
pub(crate) type GpuView<'a> = View<'a, &'a GpuBuffer>;

impl<'a> GpuView<'a> {
    /// The whole buffer.
    pub(crate) fn all(&self) -> Binding<'a> {
        self.data.all()
    }

    /// The whole buffer and its element type.
    pub(crate) fn elements(&self) -> (Binding<'a>, DType) {
        (self.data.all(), self.spec.dtype())
    }

    /// A range of rows, which must begin at the alignment of bindings.
    pub(crate) fn rows(&self, op: &'static str, rows: Range<usize>) -> Result<LocalTensor> {
        let (inner, dtype) = (&self.spec.shape()[1..], self.spec.dtype());
        let spec = Spec::new(op, &[&[rows.len()], inner].concat(), dtype)?;
        let bytes = inner.iter().product::<usize>() * dtype.size();
        Ok(LocalTensor { data: self.data.window(rows, bytes), spec })
    }
}

/// A tensor that exists within a kernel only: in a buffer of its own, or a window of another.
pub(crate) struct LocalTensor {
    pub(crate) spec: Spec,
    data: GpuBuffer,
}

impl LocalTensor {
    /// Its contents are unspecified.
    pub(crate) fn new(
        op: &'static str,
        gpu: &Gpu,
        shape: &[usize],
        dtype: DType,
    ) -> Result<LocalTensor> {
        let spec = Spec::new(op, shape, dtype)?;
        Ok(LocalTensor { data: gpu.scratch(op, spec.bytes())?, spec })
    }

    pub(crate) fn view(&self) -> GpuView<'_> {
        View { spec: &self.spec, data: &self.data }
    }
}

/// All buffers of a GPU.
pub(super) struct Buffers {
    tensors: Pool<wgpu::Buffer>,
    /// Staging buffers for read-backs; never mapped while they are in the pool.
    staging: Pool<wgpu::Buffer>,
    allocations: u64,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers { tensors: Pool::new(), staging: Pool::new(), allocations: 0 }
    }

    pub(super) fn memory(&self) -> Memory {
        self.tensors.memory(1)
    }

    pub(super) fn allocations(&self) -> u64 {
        self.allocations
    }

    fn pool(&mut self, usage: BufferUsages) -> &mut Pool<wgpu::Buffer> {
        if usage.contains(BufferUsages::STORAGE) { &mut self.tensors } else { &mut self.staging }
    }
}

impl GpuBuffer {
    /// A buffer that the program owns, whose first `bytes` are a tensor.
    pub(crate) fn foreign(
        op: &'static str,
        gpu: &Gpu,
        buffer: wgpu::Buffer,
        bytes: usize,
    ) -> Result<GpuBuffer> {
        let wanted = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
        let (size, usage) = (buffer.size(), buffer.usage());
        let least = padded(bytes);
        ensure!(op, size >= least as u64, "the buffer has {size} bytes, expected {least} or more");
        ensure!(op, usage.contains(wanted), "the buffer's usage is {usage:?}, expected {wanted:?}");
        gpu.ensure_size(op, bytes)?;
        let device = Device::Gpu(gpu.clone());
        let buffer = GpuBuffer { device, buffer, offset: 0, bytes, class: None, _whole: None };
        gpu.ensure_own(op, &buffer)?;
        Ok(buffer)
    }

    /// The window that holds a range of its items, of `bytes` each, for launches while it lives.
    /// It must begin at the alignment of bindings.
    pub(crate) fn window(&self, items: Range<usize>, bytes: usize) -> GpuBuffer {
        let Binding { offset, .. } = self.all().window(items.clone(), bytes);
        let (device, buffer) = (self.device.clone(), self.buffer.clone());
        let bytes = items.len() * bytes;
        GpuBuffer { device, buffer, offset, bytes, class: None, _whole: None }
    }

    /// The same window, which shares the memory as long as it lives.
    pub(crate) fn shared_window(self: &Arc<Self>, items: Range<usize>, bytes: usize) -> GpuBuffer {
        let mut window = self.window(items, bytes);
        window._whole = Some(self.clone());
        window
    }

    /// A copy of the contents.
    pub(crate) fn copied(&self, op: &'static str) -> Result<GpuBuffer> {
        let gpu = self.gpu();
        let copy = gpu.scratch(op, self.bytes)?;
        gpu.copy_bytes((self, 0), (&copy, 0), padded(self.bytes));
        Ok(copy)
    }

    /// Whether it is owned by taipan: not a window, and not imported.
    pub(crate) fn is_pooled(&self) -> bool {
        self.class.is_some()
    }

    /// Where it is.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The whole buffer.
    pub(crate) fn all(&self) -> Binding<'_> {
        Binding { buffer: &self.buffer, offset: self.offset, bytes: padded(self.bytes) }
    }

    /// An offset in bytes.
    pub(crate) fn at(&self, at: usize) -> BufferOffset<'_> {
        (&self.buffer, self.offset + at as BufferAddress)
    }

    fn gpu(&self) -> &Gpu {
        match &self.device {
            Device::Gpu(gpu) => gpu,
            Device::Cpu => unreachable!("made by a GPU"),
        }
    }

    /// Copy the contents to the host. The same copy fetches device-side index errors.
    pub(crate) async fn read(&self, op: &'static str, out: &mut [u8]) -> Result<()> {
        const USAGE: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::COPY_DST);
        let gpu = self.gpu();
        gpu.check(op)?;
        let most = gpu.most_bytes() - index_errors::BYTES;
        let step = CHUNK.min(most / 4 * 4);
        for (i, chunk) in out.chunks_mut(step).enumerate() {
            let size = padded(chunk.len());
            let (class, staging) = gpu.take(op, size + index_errors::BYTES, USAGE)?;
            {
                let mut stream = lock(&gpu.0.stream);
                stream.copy(&gpu.0, self.at(i * step), (&staging, 0), size as BufferAddress);
                stream.take_index_errors(&gpu.0, &staging, size as BufferAddress);
                stream.submit(&gpu.0);
            }
            let mut index_errors = [0; index_errors::BYTES];
            match gpu.read_mapped(op, &staging, [chunk, &mut index_errors]).await {
                Ok(()) => {
                    gpu.give((class, staging), USAGE);
                    gpu.check_index_errors(&index_errors)?;
                }
                Err(error) => {
                    // It may be mapped, now or later: it does not return to the pool.
                    lock(&gpu.0.buffers).pool(USAGE).lose(class);
                    return Err(error);
                }
            }
        }
        gpu.save_pipelines();
        Ok(())
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        if let Some(class) = self.class {
            self.gpu().give((class, self.buffer.clone()), USAGE);
        }
    }
}

impl Gpu {
    /// Copy bytes from a place of one buffer to a place of another; multiples of 4.
    pub(crate) fn copy_bytes(
        &self,
        (from, at): (&GpuBuffer, usize),
        (to, at_to): (&GpuBuffer, usize),
        bytes: usize,
    ) {
        lock(&self.0.stream).copy(&self.0, from.at(at), to.at(at_to), bytes as u64);
    }

    /// A buffer whose contents are unspecified, for `op` to fill.
    pub(crate) fn scratch(&self, op: &'static str, bytes: usize) -> Result<GpuBuffer> {
        self.check(op)?;
        self.ensure_size(op, bytes)?;
        let (class, buffer) = self.take(op, bytes, USAGE)?;
        let device = Device::Gpu(self.clone());
        Ok(GpuBuffer { device, buffer, offset: 0, bytes, class: Some(class), _whole: None })
    }

    /// Copy from a staging buffer after all submitted work is done: first `out`, then, from the
    /// next whole word on, `after`.
    async fn read_mapped(
        &self,
        op: &'static str,
        buffer: &wgpu::Buffer,
        [out, after]: [&mut [u8]; 2],
    ) -> Result<()> {
        let middle = padded(out.len());
        let size = (middle + after.len()) as BufferAddress;
        let (done, mapped) = callback();
        let asked = scoped(&self.0.device, wgpu::ErrorFilter::Validation, |_| {
            buffer.map_async(wgpu::MapMode::Read, ..size, done)
        });
        // Natively this completes the mapping; in a browser it does nothing, and the await yields
        // to the browser until the buffer is mapped.
        let polled = self.0.device.poll(wgpu::PollType::wait_indefinitely());
        self.check(op)?;
        let fail = |why: String| Error::Device { op, why };
        asked.map_err(fail)?;
        polled.map_err(|error| fail(error.to_string()))?;
        mapped.await.map_err(|error| fail(error.to_string()))?;
        self.check(op)?;
        let view = buffer.get_mapped_range(..size).map_err(|error| fail(error.to_string()))?;
        out.copy_from_slice(&view[..out.len()]);
        after.copy_from_slice(&view[middle..]);
        drop(view);
        buffer.unmap();
        Ok(())
    }

    /// A copy of `data`.
    pub(crate) fn upload(&self, op: &'static str, data: &[u8]) -> Result<GpuBuffer> {
        self.span("upload", "", || {
            let target = self.scratch(op, data.len())?;
            self.write(op, &target, data)?;
            Ok(target)
        })
    }

    fn write(&self, op: &'static str, target: &GpuBuffer, data: &[u8]) -> Result<()> {
        // A write is executed before everything that is not submitted yet, some of which may still
        // read the former contents of the buffer.
        lock(&self.0.stream).submit(&self.0);
        for (i, chunk) in data.chunks(CHUNK).enumerate() {
            let at = (i * CHUNK) as BufferAddress;
            let (whole, rest) = chunk.split_at(chunk.len() / 4 * 4);
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            scoped(&self.0.device, wgpu::ErrorFilter::Validation, |_| {
                self.0.queue.write_buffer(&target.buffer, at, whole);
                if !rest.is_empty() {
                    self.0.queue.write_buffer(&target.buffer, at + whole.len() as u64, &last);
                }
            })
            .map_err(|why| Error::Device { op, why })?;
            if data.len() > CHUNK {
                self.0.queue.submit([]);
                let _ = self.0.device.poll(wgpu::PollType::wait_indefinitely());
            }
        }
        // Otherwise the copy is part of the next submission.
        #[cfg(not(target_family = "wasm"))]
        if crate::profile::is_on() {
            self.wait_until_idle();
        }
        self.check(op)
    }

    /// An error that names the limit if a buffer of this size is too large.
    fn ensure_size(&self, op: &'static str, bytes: usize) -> Result<()> {
        match self.most_bytes() {
            most if padded(bytes) > most => Err(self.too_large(op, bytes, "max_buffer_size", most)),
            _ => Ok(()),
        }
    }

    /// An error that names the limit if a binding is too large.
    pub(super) fn ensure_bindable(&self, op: &'static str, binding: &Binding) -> Result<()> {
        const NAME: &str = "max_storage_buffer_binding_size";
        match self.0.limits.max_storage_buffer_binding_size {
            most if binding.bytes as u64 > most => {
                Err(self.too_large(op, binding.bytes, NAME, most))
            }
            _ => Ok(()),
        }
    }

    fn too_large(
        &self,
        op: &'static str,
        bytes: usize,
        limit: &str,
        most: impl std::fmt::Display,
    ) -> Error {
        let name = self.name();
        let why = format!("a tensor of {bytes} bytes exceeds {limit} of {name}, which is {most}");
        Error::Device { op, why }
    }

    /// The maximum size of a buffer, in whole words.
    fn most_bytes(&self) -> usize {
        usize::try_from(self.0.limits.max_buffer_size).unwrap_or(usize::MAX) / 4 * 4
    }

    /// A buffer of at least this size, from the pool if it has one, and its size class.
    fn take(
        &self,
        op: &'static str,
        bytes: usize,
        usage: BufferUsages,
    ) -> Result<(usize, wgpu::Buffer)> {
        let class = size_class(padded(bytes).max(LEAST).div_ceil(4)).saturating_mul(4);
        let class = class.min(self.most_bytes());
        let (found, evicted) = lock(&self.0.buffers).pool(usage).take(class);
        drop(evicted);
        if let Some(buffer) = found {
            return Ok((class, buffer));
        }
        let create = || {
            let descriptor = wgpu::BufferDescriptor {
                label: Some("taipan"),
                size: class as BufferAddress,
                usage,
                mapped_at_creation: false,
            };
            scoped(&self.0.device, wgpu::ErrorFilter::OutOfMemory, |device| {
                device.create_buffer(&descriptor)
            })
            .ok()
        };
        let buffer = create().or_else(|| {
            // Free the idle buffers; pending commands may still hold some of them.
            let idle = {
                let mut buffers = lock(&self.0.buffers);
                [buffers.tensors.clear(), buffers.staging.clear()]
            };
            drop(idle);
            lock(&self.0.stream).submit(&self.0);
            let _ = self.0.device.poll(wgpu::PollType::wait_indefinitely());
            create()
        });
        let buffer = buffer.ok_or(Error::Memory { op, bytes, device: "gpu" })?;
        self.check(op)?;
        let mut buffers = lock(&self.0.buffers);
        buffers.pool(usage).count(class);
        buffers.allocations += 1;
        Ok((class, buffer))
    }

    fn give(&self, (class, buffer): (usize, wgpu::Buffer), usage: BufferUsages) {
        let evicted = lock(&self.0.buffers).pool(usage).give(class, buffer);
        drop(evicted);
    }
}

/// Copies and bindings are whole words, and at least one.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4).max(4)
}

/// A callback, and a future of its argument.
fn callback<T: Send + 'static>() -> (impl FnOnce(T) + Send + 'static, impl Future<Output = T>) {
    let slot = Arc::new(Mutex::new((None::<T>, None::<Waker>)));
    let called = slot.clone();
    let call = move |value| {
        let waker = {
            let mut slot = lock(&called);
            slot.0 = Some(value);
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    let future = std::future::poll_fn(move |context| {
        let mut slot = lock(&slot);
        match slot.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    (call, future)
}
