//! The interface between computations and devices, and the functions that run kernels.

use std::sync::Arc;

use crate::cpu::CpuBuffer;
use crate::cpu::threads::isolated;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::gpu::{Binding, Gpu, GpuBuffer};
use crate::spec::Spec;
use crate::tensor::{Storage, Tensor};
use crate::{DType, Device};

/// A computation that every device implements.
pub(crate) trait Kernel: Send + 'static {
    /// Names the kernel in errors.
    fn name(&self) -> &'static str;

    /// Its role in its op, in profiles, such as `dw`; empty for the kernel that computes the
    /// results.
    fn role(&self) -> &'static str {
        ""
    }

    /// Check the inputs and describe the results.
    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>>;

    /// What is saved for backward besides inputs and results. If a gradient is needed, these
    /// tensors come after the results among the outputs.
    fn saved_specs(&self, _outputs: &[Spec]) -> Vec<Spec> {
        Vec::new()
    }

    /// Fill all outputs completely: their contents are unspecified before.
    fn cpu(&self, io: CpuIo) -> Result<()>;

    /// The same on a GPU: launch the kernels that fill them.
    fn gpu(&self, io: GpuIo) -> Result<()>;
}

/// A computation that changes tensors in place.
pub(crate) trait Update {
    /// Names the kernel in errors.
    fn name(&self) -> &'static str;

    /// Change the targets, which hold their values.
    fn cpu(&self, io: CpuIo) -> Result<()>;

    /// The same on a GPU. A target shares no memory with an input or another target.
    fn gpu(&self, io: GpuIo) -> Result<()>;
}

/// The arguments of a kernel on the CPU.
pub(crate) struct CpuIo<'a, 'b> {
    pub(crate) inputs: &'a [View<'b, &'b CpuBuffer>],
    /// For an [`Update`], its targets.
    pub(crate) outputs: &'a mut [View<'b, &'b mut CpuBuffer>],
}

/// The same on a GPU.
#[derive(Clone, Copy)]
pub(crate) struct GpuIo<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) inputs: &'a [View<'a, &'a GpuBuffer>],
    pub(crate) outputs: &'a [View<'a, &'a GpuBuffer>],
}

/// A buffer and the spec of its contents.
pub(crate) struct View<'a, B> {
    pub(crate) spec: &'a Spec,
    pub(crate) data: B,
}

impl<'a> View<'a, &'a CpuBuffer> {
    /// The elements.
    pub(crate) fn as_slice<T: Element>(&self) -> &'a [T] {
        self.data.as_slice()
    }
}

impl View<'_, &mut CpuBuffer> {
    /// The elements.
    pub(crate) fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        self.data.as_mut_slice()
    }
}

impl<'a> View<'a, &'a GpuBuffer> {
    /// The whole buffer and its element type, for [`Elements`](crate::gpu::Elements).
    pub(crate) fn elements(&self) -> (Binding<'a>, DType) {
        (self.data.all(), self.spec.dtype())
    }
}

/// Run `kernel` on the device of its inputs. Does not add to the graph.
pub(crate) fn run<K: Kernel>(kernel: &K, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| &t.spec).collect();
    let outputs = kernel.outputs(&specs)?;
    launch(kernel, inputs, outputs)
}

/// [`run`] a kernel with one result.
pub(crate) fn run_one<K: Kernel>(kernel: &K, inputs: &[&Tensor]) -> Result<Tensor> {
    Ok(run(kernel, inputs)?.swap_remove(0))
}

/// [`run`] a kernel for backward: its results, and what it saves besides.
pub(crate) fn run_saving<K: Kernel>(
    kernel: &K,
    inputs: &[&Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| &t.spec).collect();
    let mut outputs = kernel.outputs(&specs)?;
    let results = outputs.len();
    outputs.extend(kernel.saved_specs(&outputs));
    let mut outputs = launch(kernel, inputs, outputs)?;
    let saved = outputs.split_off(results);
    Ok((outputs, saved))
}

/// Run a kernel that changes `targets` in place. A target that shares its memory with another
/// tensor is copied first: the other tensor keeps its values.
pub(crate) fn update<U: Update>(
    kernel: &U,
    inputs: &[&Tensor],
    targets: &mut [&mut Tensor],
) -> Result<()> {
    let op = kernel.name();
    let all = || inputs.iter().copied().chain(targets.iter().map(|t| &**t));
    let device = one_device(op, all())?.clone();
    device.span(op, "", || {
        targets.iter_mut().try_for_each(|target| target.storage.make_unique(op))?;
        match &device {
            Device::Cpu => {
                let inputs = cpu_views(inputs);
                let mut targets: Vec<_> = targets.iter_mut().map(|t| cpu_target(t)).collect();
                isolated(|| kernel.cpu(CpuIo { inputs: &inputs, outputs: &mut targets }))
            }
            Device::Gpu(gpu) => {
                let targets: Vec<&Tensor> = targets.iter().map(|t| &**t).collect();
                kernel.gpu(GpuIo { gpu, inputs: &gpu_views(inputs), outputs: &gpu_views(&targets) })
            }
        }
    })
}

impl Storage {
    /// Copy the contents unless the memory is not shared.
    fn make_unique(&mut self, op: &'static str) -> Result<()> {
        match self {
            Storage::Cpu(data) => {
                if Arc::get_mut(data).is_none() {
                    let mut copy = CpuBuffer::scratch(op, data.bytes().len())?;
                    copy.bytes_mut().copy_from_slice(data.bytes());
                    *data = Arc::new(copy);
                }
            }
            Storage::Gpu(data) => {
                if Arc::get_mut(data).is_none_or(|data| !data.is_pooled()) {
                    *data = Arc::new(data.copied(op)?);
                }
            }
        }
        Ok(())
    }
}

fn launch<K: Kernel>(kernel: &K, inputs: &[&Tensor], specs: Vec<Spec>) -> Result<Vec<Tensor>> {
    let device = one_device(kernel.name(), inputs.iter().copied())?;
    device.span(kernel.name(), kernel.role(), || match device {
        Device::Cpu => on_cpu(kernel, inputs, specs),
        Device::Gpu(gpu) => on_gpu(kernel, gpu, inputs, specs),
    })
}

/// The device of all tensors, of which there is at least one.
fn one_device<'a>(
    op: &'static str,
    mut tensors: impl Iterator<Item = &'a Tensor>,
) -> Result<&'a Device> {
    let device = tensors.next().expect("a kernel has an input").device();
    match tensors.find(|t| t.device() != device) {
        None => Ok(device),
        Some(other) => {
            let (one, other) = (device.full_name(), other.device().full_name());
            Err(Error::Device { op, why: format!("inputs are on {one} and on {other}") })
        }
    }
}

fn cpu_views<'a>(tensors: &[&'a Tensor]) -> Vec<View<'a, &'a CpuBuffer>> {
    let view = |t: &&'a Tensor| match &t.storage {
        Storage::Cpu(data) => View { spec: &t.spec, data: &**data },
        Storage::Gpu(_) => unreachable!("checked by `one_device`"),
    };
    tensors.iter().map(view).collect()
}

fn gpu_views<'a>(tensors: &[&'a Tensor]) -> Vec<View<'a, &'a GpuBuffer>> {
    let view = |t: &&'a Tensor| match &t.storage {
        Storage::Gpu(data) => View { spec: &t.spec, data: &**data },
        Storage::Cpu(_) => unreachable!("checked by `one_device`"),
    };
    tensors.iter().map(view).collect()
}

fn cpu_target(tensor: &mut Tensor) -> View<'_, &mut CpuBuffer> {
    match &mut tensor.storage {
        Storage::Cpu(data) => {
            let data = Arc::get_mut(data).expect("made unique by `update`");
            View { spec: &tensor.spec, data }
        }
        Storage::Gpu(_) => unreachable!("checked by `one_device`"),
    }
}

fn on_cpu<K: Kernel>(kernel: &K, inputs: &[&Tensor], specs: Vec<Spec>) -> Result<Vec<Tensor>> {
    let mut buffers: Vec<CpuBuffer> = specs
        .iter()
        .map(|spec| CpuBuffer::scratch(kernel.name(), spec.bytes()))
        .collect::<Result<_>>()?;
    let inputs = cpu_views(inputs);
    let mut outputs: Vec<_> =
        specs.iter().zip(&mut buffers).map(|(spec, data)| View { spec, data }).collect();
    isolated(|| kernel.cpu(CpuIo { inputs: &inputs, outputs: &mut outputs }))?;
    let storages = buffers.into_iter().map(|b| Storage::Cpu(Arc::new(b)));
    Ok(specs.into_iter().zip(storages).map(|(spec, storage)| Tensor::of(spec, storage)).collect())
}

fn on_gpu<K: Kernel>(
    kernel: &K,
    gpu: &Gpu,
    inputs: &[&Tensor],
    specs: Vec<Spec>,
) -> Result<Vec<Tensor>> {
    let mut buffers = Vec::with_capacity(specs.len());
    for spec in &specs {
        gpu.ensure_type(kernel.name(), "the result", spec.dtype())?;
        buffers.push(gpu.scratch(kernel.name(), spec.bytes())?);
    }
    let inputs = gpu_views(inputs);
    let outputs: Vec<_> =
        specs.iter().zip(&buffers).map(|(spec, data)| View { spec, data }).collect();
    if specs.iter().any(|spec| spec.len() > 0) {
        kernel.gpu(GpuIo { gpu, inputs: &inputs, outputs: &outputs })?;
    }
    let storages = buffers.into_iter().map(|b| Storage::Gpu(Arc::new(b)));
    Ok(specs.into_iter().zip(storages).map(|(spec, storage)| Tensor::of(spec, storage)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds 1 to each element.
    struct Increment;

    impl Update for Increment {
        fn name(&self) -> &'static str {
            "increment"
        }

        fn cpu(&self, io: CpuIo) -> Result<()> {
            io.outputs[0].as_mut_slice::<f32>().iter_mut().for_each(|x| *x += 1.0);
            Ok(())
        }

        fn gpu(&self, _: GpuIo) -> Result<()> {
            unreachable!("the test is on the CPU")
        }
    }

    fn address(x: &Tensor) -> *const u8 {
        cpu_views(&[x])[0].data.bytes().as_ptr()
    }

    #[test]
    fn an_update_is_in_place_unless_the_memory_is_shared() -> Result<()> {
        let mut x = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?.tracked();
        let before = address(&x);
        update(&Increment, &[], &mut [&mut x])?;
        assert_eq!(address(&x), before);
        let shared = x.reshape(&[2, 1])?;
        update(&Increment, &[], &mut [&mut x])?;
        assert_ne!(address(&x), before);
        assert_eq!(shared.read_blocking::<f32>()?, [2.0, 3.0]);
        assert_eq!(x.read_blocking::<f32>()?, [3.0, 4.0]);
        Ok(())
    }
}
