//! The contract between a computation and the devices, and the one function that honours it.

use std::sync::Arc;

use crate::cpu::CpuBuffer;
use crate::dtype::Element;
use crate::error::Result;
use crate::recording;
use crate::spec::Spec;
use crate::tensor::{Storage, Tensor};

/// A computation every device can perform.
pub(crate) trait Kernel: Send + 'static {
    /// Names the kernel in errors.
    fn name(&self) -> &'static str;

    /// Check the inputs and describe the results.
    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>>;

    /// What backward needs beyond inputs and results. `cpu` finds it behind the results, and
    /// only when somebody will want a gradient.
    fn extras(&self, _outputs: &[Spec]) -> Vec<Spec> {
        Vec::new()
    }

    /// Fill the outputs, all of them and wholly: their contents are unspecified before.
    fn cpu(&self, inputs: &[View<&CpuBuffer>], outputs: &mut [View<&mut CpuBuffer>]) -> Result<()>;
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
    let mut buffers: Vec<CpuBuffer> = specs
        .iter()
        .map(|spec| CpuBuffer::scratch(kernel.name(), spec.bytes()))
        .collect::<Result<_>>()?;
    let inputs: Vec<_> = inputs
        .iter()
        .map(|t| {
            let Storage::Cpu(data) = &t.storage;
            View { spec: &t.spec, data: &**data }
        })
        .collect();
    let mut outputs: Vec<_> =
        specs.iter().zip(&mut buffers).map(|(spec, data)| View { spec, data }).collect();
    // As in `for_pieces`: other tasks may run on this thread meanwhile.
    recording::set_for(true, || kernel.cpu(&inputs, &mut outputs))?;
    let storages = buffers.into_iter().map(|b| Storage::Cpu(Arc::new(b)));
    Ok(specs.into_iter().zip(storages).map(|(spec, storage)| Tensor::of(spec, storage)).collect())
}
