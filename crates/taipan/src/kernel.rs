//! The contract between a computation and the devices, and the one function that honours it.

use std::sync::Arc;

use crate::cpu::CpuBuffer;
use crate::cpu::threads::open_to_others;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::gpu::{Binding, Gpu, GpuBuffer};
use crate::spec::Spec;
use crate::tensor::{Storage, Tensor};
use crate::{DType, Device};

/// A computation every device can perform.
pub(crate) trait Kernel: Send + 'static {
    /// Names the kernel in errors.
    fn name(&self) -> &'static str;

    /// Which of its op's kernels it is, in profiles; empty for the one that computes the results.
    fn stage(&self) -> &'static str {
        ""
    }

    /// Check the inputs and describe the results.
    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>>;

    /// What backward needs beyond inputs and results. `cpu` finds it behind the results, and
    /// only when somebody will want a gradient.
    fn extras(&self, _outputs: &[Spec]) -> Vec<Spec> {
        Vec::new()
    }

    /// Fill the outputs, all of them and wholly: their contents are unspecified before.
    fn cpu(&self, inputs: &[View<&CpuBuffer>], outputs: &mut [View<&mut CpuBuffer>]) -> Result<()>;

    /// The same on a GPU: launch what fills them.
    fn gpu(
        &self,
        gpu: &Gpu,
        inputs: &[View<&GpuBuffer>],
        outputs: &[View<&GpuBuffer>],
    ) -> Result<()>;
}

/// A buffer and the description of what it holds.
pub(crate) struct View<'a, B> {
    pub(crate) spec: &'a Spec,
    pub(crate) data: B,
}

impl<'a> View<'a, &'a CpuBuffer> {
    /// The elements.
    pub(crate) fn of<T: Element>(&self) -> &'a [T] {
        self.data.of()
    }
}

impl View<'_, &mut CpuBuffer> {
    /// The elements.
    pub(crate) fn of_mut<T: Element>(&mut self) -> &mut [T] {
        self.data.of_mut()
    }
}

impl<'a> View<'a, &'a GpuBuffer> {
    /// All of it, as a launch over elements binds it.
    pub(crate) fn elements(&self) -> (Binding<'a>, DType) {
        (self.data.all(), self.spec.dtype())
    }
}

/// Run `kernel` on the device its inputs share. Records nothing.
pub(crate) fn run<K: Kernel>(kernel: &K, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| &t.spec).collect();
    let outputs = kernel.outputs(&specs)?;
    launch(kernel, inputs, outputs)
}

/// [`run`] a kernel with one result.
pub(crate) fn run_one<K: Kernel>(kernel: &K, inputs: &[&Tensor]) -> Result<Tensor> {
    Ok(run(kernel, inputs)?.swap_remove(0))
}

/// [`run`] a kernel with what backward needs: its results, and its extras.
pub(crate) fn run_with_extras<K: Kernel>(
    kernel: &K,
    inputs: &[&Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| &t.spec).collect();
    let mut outputs = kernel.outputs(&specs)?;
    let results = outputs.len();
    outputs.extend(kernel.extras(&outputs));
    let mut outputs = launch(kernel, inputs, outputs)?;
    let extras = outputs.split_off(results);
    Ok((outputs, extras))
}

fn launch<K: Kernel>(kernel: &K, inputs: &[&Tensor], specs: Vec<Spec>) -> Result<Vec<Tensor>> {
    let device = inputs[0].device();
    for input in inputs {
        if input.device() != device {
            let why = format!(
                "inputs are on {} and on {}",
                device.full_name(),
                input.device().full_name()
            );
            return Err(Error::Device { op: kernel.name(), why });
        }
    }
    device.part(kernel.name(), kernel.stage(), || match device {
        Device::Cpu => on_cpu(kernel, inputs, specs),
        Device::Gpu(gpu) => on_gpu(kernel, gpu, inputs, specs),
    })
}

fn on_cpu<K: Kernel>(kernel: &K, inputs: &[&Tensor], specs: Vec<Spec>) -> Result<Vec<Tensor>> {
    let mut buffers: Vec<CpuBuffer> = specs
        .iter()
        .map(|spec| CpuBuffer::scratch(kernel.name(), spec.bytes()))
        .collect::<Result<_>>()?;
    let inputs: Vec<_> = inputs
        .iter()
        .map(|t| match &t.storage {
            Storage::Cpu(data) => View { spec: &t.spec, data: &**data },
            Storage::Gpu(_) => unreachable!("checked by `launch`"),
        })
        .collect();
    let mut outputs: Vec<_> =
        specs.iter().zip(&mut buffers).map(|(spec, data)| View { spec, data }).collect();
    open_to_others(|| kernel.cpu(&inputs, &mut outputs))?;
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
    let inputs: Vec<_> = inputs
        .iter()
        .map(|t| match &t.storage {
            Storage::Gpu(data) => View { spec: &t.spec, data: &**data },
            Storage::Cpu(_) => unreachable!("checked by `launch`"),
        })
        .collect();
    let outputs: Vec<_> =
        specs.iter().zip(&buffers).map(|(spec, data)| View { spec, data }).collect();
    if specs.iter().any(|spec| spec.len() > 0) {
        kernel.gpu(gpu, &inputs, &outputs)?;
    }
    let storages = buffers.into_iter().map(|b| Storage::Gpu(Arc::new(b)));
    Ok(specs.into_iter().zip(storages).map(|(spec, storage)| Tensor::of(spec, storage)).collect())
}
