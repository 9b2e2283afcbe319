//! The interface between computations and devices, and the functions that run kernels.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::Device;
use crate::cpu::threads::isolated;
use crate::cpu::{CpuBuffer, CpuView, CpuViewMut};
use crate::error::{Error, Result};
use crate::gpu::{Elements, Gpu, GpuView, Grid, Launch, Params, Program};
use crate::spec::{Spec, View};
use crate::tensor::{Storage, Tensor};

/// One thing for each input or output of a kernel, of which there are rarely more than ten.
pub(crate) type Few<T> = SmallVec<[T; 10]>;

/// One thing for each result of a kernel. Up to three take nothing from the allocator: a decoded
/// token runs some hundreds of kernels.
pub(crate) type Results<T> = SmallVec<[T; 3]>;

/// A computation that checks its inputs and runs on every device. What calls it takes a `dyn`: code
/// that is compiled for each of some fifty kernels would be a tenth of what a page loads.
pub(crate) trait Kernel {
    /// Names the kernel in errors.
    fn name(&self) -> &'static str;

    /// Check the inputs and describe the results.
    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>>;

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

/// The arguments of a kernel on the CPU.
pub(crate) struct CpuIo<'a, 'b> {
    pub(crate) inputs: &'a [CpuView<'b>],
    /// For [`update`], its targets.
    pub(crate) outputs: &'a mut [CpuViewMut<'b>],
}

/// The same on a GPU.
#[derive(Clone, Copy)]
pub(crate) struct GpuIo<'a> {
    /// Names the operation in errors.
    pub(crate) op: &'static str,
    pub(crate) gpu: &'a Gpu,
    pub(crate) inputs: &'a [GpuView<'a>],
    pub(crate) outputs: &'a [GpuView<'a>],
}

impl<'a> GpuIo<'a> {
    /// Launch a program that binds all inputs and all outputs.
    pub(crate) fn launch<P: Params>(&self, program: Program, params: P, grid: Grid) -> Result<()> {
        let bind = |views: &[GpuView<'a>]| views.iter().map(View::all).collect::<Vec<_>>();
        self.gpu.launch(Launch {
            name: self.op,
            program,
            params,
            inputs: &bind(self.inputs),
            outputs: &bind(self.outputs),
            grid,
        })
    }

    /// Launch a program whose `element(i)` reads and writes nothing but element `i` of all inputs
    /// and of the output: see [`Elements`]. `params` are those for a number of elements.
    pub(crate) fn map<P: Params>(&self, program: Program, params: impl Fn(u32) -> P) -> Result<()> {
        self.gpu.map(Elements {
            name: self.op,
            program,
            params: &params,
            inputs: &self.inputs.iter().map(View::elements).collect::<Vec<_>>(),
            output: self.outputs[0].elements(),
            len: self.outputs[0].spec.len(),
        })
    }
}

/// Run `kernel` on the device of its inputs. Does not add to the graph.
pub(crate) fn run(kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Results<Tensor>> {
    let outputs = kernel.outputs(&specs(inputs))?;
    fill(kernel, inputs, outputs)
}

/// [`run`] a kernel with one result.
pub(crate) fn run_one(kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Tensor> {
    Ok(run(kernel, inputs)?.swap_remove(0))
}

/// [`run`] a kernel for backward: its results, and what it saves besides.
pub(crate) fn run_saving(
    kernel: &dyn Kernel,
    inputs: &[&Tensor],
) -> Result<(Results<Tensor>, Vec<Tensor>)> {
    let mut outputs = kernel.outputs(&specs(inputs))?;
    let results = outputs.len();
    outputs.extend(kernel.saved_specs(&outputs));
    let mut outputs = fill(kernel, inputs, outputs)?;
    let saved = outputs.drain(results..).collect();
    Ok((outputs, saved))
}

fn specs<'a>(inputs: &[&'a Tensor]) -> Few<&'a Spec> {
    inputs.iter().map(|t| &t.spec).collect()
}

fn fill(
    kernel: &dyn Kernel,
    inputs: &[&Tensor],
    outputs: Results<Spec>,
) -> Result<Results<Tensor>> {
    let (cpu, gpu) = (&mut |io: CpuIo| kernel.cpu(io), &mut |io: GpuIo| kernel.gpu(io));
    compute_dyn((kernel.name(), ""), inputs, outputs, cpu, gpu)
}

/// Run code that fills tensors of these specs completely, on the device of the inputs: for
/// gradients, whose inputs an op has checked. `name` is that of the op and, in profiles, the role of
/// the kernel among others of it, as `dw`; the one that computes the results has none.
pub(crate) fn compute(
    name: (&'static str, &'static str),
    inputs: &[&Tensor],
    outputs: Results<Spec>,
    cpu: impl FnOnce(CpuIo) -> Result<()>,
    gpu: impl FnOnce(GpuIo) -> Result<()>,
) -> Result<Results<Tensor>> {
    let (mut cpu, mut gpu) = (Some(cpu), Some(gpu));
    let cpu = &mut |io: CpuIo| cpu.take().expect(ONCE)(io);
    let gpu = &mut |io: GpuIo| gpu.take().expect(ONCE)(io);
    compute_dyn(name, inputs, outputs, cpu, gpu)
}

const ONCE: &str = "a kernel runs once";

/// [`compute`], compiled once for all kernels.
fn compute_dyn(
    (op, role): (&'static str, &'static str),
    inputs: &[&Tensor],
    outputs: Results<Spec>,
    cpu: &mut dyn FnMut(CpuIo) -> Result<()>,
    gpu: &mut dyn FnMut(GpuIo) -> Result<()>,
) -> Result<Results<Tensor>> {
    let device = one_device(op, inputs.iter().copied())?;
    let storages: Results<Storage> = device.span(op, role, || match device {
        Device::Cpu => {
            let buffers = outputs.iter().map(|spec| CpuBuffer::scratch(op, spec.bytes()));
            let mut buffers = buffers.collect::<Result<Results<_>>>()?;
            let mut views: Results<_> =
                outputs.iter().zip(&mut buffers).map(|(spec, data)| View { spec, data }).collect();
            isolated(|| cpu(CpuIo { inputs: &cpu_views(inputs), outputs: &mut views }))?;
            drop(views);
            Ok(buffers.into_iter().map(|buffer| Storage::Cpu(buffer.into())).collect())
        }
        Device::Gpu(device) => {
            let mut buffers = Few::new();
            for spec in &outputs {
                device.ensure_type(op, "the result", spec.dtype())?;
                buffers.push(device.scratch(op, spec.bytes())?);
            }
            let views: Few<_> =
                outputs.iter().zip(&buffers).map(|(spec, data)| View { spec, data }).collect();
            if outputs.iter().any(|spec| spec.len() > 0) {
                gpu(GpuIo { op, gpu: device, inputs: &gpu_views(inputs), outputs: &views })?;
            }
            drop(views);
            Ok(buffers.into_iter().map(|buffer| Storage::Gpu(Arc::new(buffer))).collect())
        }
    })?;
    let tensors = outputs.into_iter().zip(storages);
    Ok(tensors.map(|(spec, storage)| Tensor::of(spec, storage)).collect())
}

/// [`compute`] with one result.
pub(crate) fn compute_one(
    name: (&'static str, &'static str),
    inputs: &[&Tensor],
    output: Spec,
    cpu: impl FnOnce(CpuIo) -> Result<()>,
    gpu: impl FnOnce(GpuIo) -> Result<()>,
) -> Result<Tensor> {
    Ok(compute(name, inputs, smallvec![output], cpu, gpu)?.swap_remove(0))
}

/// Run code that changes `targets`, which are its outputs, in place. A target that shares its
/// memory with another tensor is copied first: the other tensor keeps its values.
pub(crate) fn update(
    name: (&'static str, &'static str),
    inputs: &[&Tensor],
    targets: &mut [&mut Tensor],
    cpu: impl FnOnce(CpuIo) -> Result<()>,
    gpu: impl FnOnce(GpuIo) -> Result<()>,
) -> Result<()> {
    let (mut cpu, mut gpu) = (Some(cpu), Some(gpu));
    let cpu = &mut |io: CpuIo| cpu.take().expect(ONCE)(io);
    let gpu = &mut |io: GpuIo| gpu.take().expect(ONCE)(io);
    update_dyn(name, inputs, targets, cpu, gpu)
}

/// [`update`], compiled once for all kernels.
fn update_dyn(
    (op, role): (&'static str, &'static str),
    inputs: &[&Tensor],
    targets: &mut [&mut Tensor],
    cpu: &mut dyn FnMut(CpuIo) -> Result<()>,
    gpu: &mut dyn FnMut(GpuIo) -> Result<()>,
) -> Result<()> {
    let all = || inputs.iter().copied().chain(targets.iter().map(|t| &**t));
    let device = one_device(op, all())?.clone();
    device.span(op, role, || {
        targets.iter_mut().try_for_each(|target| target.storage.make_unique(op))?;
        match &device {
            Device::Cpu => {
                let mut targets: Few<_> = targets.iter_mut().map(|t| cpu_target(t)).collect();
                isolated(|| cpu(CpuIo { inputs: &cpu_views(inputs), outputs: &mut targets }))
            }
            Device::Gpu(device) => {
                let targets: Vec<&Tensor> = targets.iter().map(|t| &**t).collect();
                let (inputs, outputs) = (&gpu_views(inputs), &gpu_views(&targets));
                gpu(GpuIo { op, gpu: device, inputs, outputs })
            }
        }
    })
}

impl Storage {
    /// Copy the contents unless the memory is not shared.
    fn make_unique(&mut self, op: &'static str) -> Result<()> {
        match self {
            Storage::Cpu(data) => {
                if data.as_mut().is_none() {
                    let mut copy = CpuBuffer::scratch(op, data.bytes().len())?;
                    copy.bytes_mut().copy_from_slice(data.bytes());
                    *data = copy.into();
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

fn cpu_views<'a>(tensors: &[&'a Tensor]) -> Few<CpuView<'a>> {
    let view = |t: &&'a Tensor| match &t.storage {
        Storage::Cpu(data) => View { spec: &t.spec, data: &**data },
        Storage::Gpu(_) => unreachable!("checked by `one_device`"),
    };
    tensors.iter().map(view).collect()
}

fn gpu_views<'a>(tensors: &[&'a Tensor]) -> Few<GpuView<'a>> {
    let view = |t: &&'a Tensor| match &t.storage {
        Storage::Gpu(data) => View { spec: &t.spec, data: &**data },
        Storage::Cpu(_) => unreachable!("checked by `one_device`"),
    };
    tensors.iter().map(view).collect()
}

fn cpu_target(tensor: &mut Tensor) -> CpuViewMut<'_> {
    match &mut tensor.storage {
        Storage::Cpu(data) => {
            let data = data.as_mut().expect("made unique by `update`");
            View { spec: &tensor.spec, data }
        }
        Storage::Gpu(_) => unreachable!("checked by `one_device`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn increment(x: &mut Tensor) -> Result<()> {
        let on_cpu = |io: CpuIo| {
            io.outputs[0].as_mut_slice::<f32>().iter_mut().for_each(|x| *x += 1.0);
            Ok(())
        };
        update(("increment", ""), &[], &mut [x], on_cpu, |_| unreachable!("x is on the CPU"))
    }

    fn address(x: &Tensor) -> *const u8 {
        cpu_views(&[x])[0].data.bytes().as_ptr()
    }

    #[test]
    fn an_update_is_in_place_unless_the_memory_is_shared() -> Result<()> {
        let mut x = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?.tracked();
        let before = address(&x);
        increment(&mut x)?;
        assert_eq!(address(&x), before);
        let shared = x.reshape(&[2, 1])?;
        increment(&mut x)?;
        assert_ne!(address(&x), before);
        assert_eq!(shared.read_blocking::<f32>()?, [2.0, 3.0]);
        assert_eq!(x.read_blocking::<f32>()?, [3.0, 4.0]);
        Ok(())
    }
}
