//! A tensor in parts along a dimension.

use super::slice::DimSplit;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply};
use crate::dtype::with_dtype;
use crate::error::{Result, ensure};
use crate::gpu::{Dims, GpuView, Grid, Launch, Program, TENSORS, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one};
use crate::spec::{Shape, Spec, ensure_dim, joined};
use crate::tensor::Tensor;

impl Tensor {
    /// The parts of these sizes along `dim`, one after the other, which must add up to the whole.
    /// Copies.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let x = Tensor::arange(0, 6, DType::U32, &Device::Cpu)?.reshape(&[2, 3])?;
    /// let parts = x.split(1, &[1, 2])?;
    /// assert_eq!(parts[0].read_blocking::<u32>()?, [0, 3]);
    /// assert_eq!(parts[1].read_blocking::<u32>()?, [1, 2, 4, 5]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn split(&self, dim: usize, sizes: &[usize]) -> Result<Vec<Tensor>> {
        Ok(self.parts(dim, sizes)?.into_vec())
    }

    /// [`split`](Tensor::split) without a list from the allocator, if there are few parts.
    pub(crate) fn parts(&self, dim: usize, sizes: &[usize]) -> Result<Results<Tensor>> {
        ensure!("split", !sizes.is_empty(), "there are no sizes, expected one or more");
        apply(Split { dim, sizes: sizes.into() }, &[self])
    }
}

struct Split {
    dim: usize,
    sizes: Shape,
}

impl Op for Split {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// The gradients of the parts, joined.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let whole = saved.specs[0].clone();
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let split = DimSplit::new(outputs[0].spec.shape(), self.dim);
            with_dtype!(outputs[0].spec.dtype(), T: Bits => {
                let mut start = 0;
                for (part, size) in inputs.iter().zip(&self.sizes) {
                    let range = start..start + size;
                    split.put(part.as_slice::<T>(), range, outputs[0].as_mut_slice::<T>());
                    start += size;
                }
            });
            Ok(())
        };
        let gpu = |io: GpuIo| join_on_gpu(io, self.dim);
        let dys: Vec<&Tensor> = dys.iter().collect();
        Ok(vec![Some(compute_one((self.name(), "backward"), &dys, whole, cpu, gpu)?)])
    }
}

impl Kernel for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (dim, shape) = (self.dim, inputs[0].shape());
        ensure_dim(self.name(), dim, shape)?;
        let sum = self.sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size));
        ensure!(
            self.name(),
            sum == shape[dim],
            "the sizes {:?} add up to {sum}, expected {} for dimension {dim} of {shape:?}",
            self.sizes,
            shape[dim]
        );
        let part = |size: &usize| {
            let shape = joined(&[&shape[..dim], &[*size], &shape[dim + 1..]]);
            Spec::new(self.name(), &shape, inputs[0].dtype())
        };
        self.sizes.iter().map(part).collect()
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let split = DimSplit::new(inputs[0].spec.shape(), self.dim);
        with_dtype!(inputs[0].spec.dtype(), T: Bits => {
            let mut start = 0;
            for (part, size) in outputs.iter_mut().zip(&self.sizes) {
                let range = start..start + size;
                split.take(inputs[0].as_slice::<T>(), range, part.as_mut_slice::<T>());
                start += size;
            }
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        copy_parts(io, self.dim, Direction::Split)
    }
}

/// Join the inputs along `dim` to the output.
pub(super) fn join_on_gpu(io: GpuIo, dim: usize) -> Result<()> {
    copy_parts(io, dim, Direction::Join)
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    /// From the only input to the outputs.
    Split,
    /// From the inputs to the only output.
    Join,
}

fn copy_parts(io: GpuIo, dim: usize, direction: Direction) -> Result<()> {
    let GpuIo { op, gpu, inputs, outputs } = io;
    let (whole, parts) = match direction {
        Direction::Split => (&inputs[0], outputs),
        Direction::Join => (&outputs[0], inputs),
    };
    let split = DimSplit::new(whole.spec.shape(), dim);
    let mut start = 0;
    let parts = parts.iter().map(|part| {
        let range = start..start + part.spec.shape()[dim];
        start = range.end;
        (part, range)
    });
    let parts: Vec<_> = parts.collect();
    if split.is_dense() {
        // Plain copies of buffers, which may be larger than a binding.
        return parts.into_iter().try_for_each(|(part, range)| match direction {
            Direction::Split => split.take_on_gpu(io, whole, part, range),
            Direction::Join => split.put_on_gpu(io, part, range),
        });
    }
    for parts in parts.chunks(gpu.max_tensors(1, 1)) {
        let [run] = kernel_sizes(op, [split.run])?;
        let mut params = SplitParams { dims: Dims::default(), blocks: 0, run };
        let mut elements = 0;
        for (rows, (part, range)) in params.dims.chunks_mut(2).zip(parts) {
            let len = part.spec.len();
            let [first, part_run] =
                kernel_sizes(op, [range.start * split.inner, range.len() * split.inner])?;
            rows[0] = [params.blocks, len as u32, 0, 0];
            rows[1] = [first, part_run, 0, 0];
            params.blocks += len.div_ceil(BLOCK) as u32;
            elements += len;
        }
        let whole = [whole.all()];
        let parts: Vec<_> = parts.iter().map(|(part, _)| GpuView::all(part)).collect();
        let (inputs, outputs) = match direction {
            Direction::Split => (&whole[..], &parts[..]),
            Direction::Join => (&parts[..], &whole[..]),
        };
        gpu.launch(Launch {
            name: op,
            program: program(io.outputs[0].spec.dtype(), direction, parts.len()),
            params,
            inputs,
            outputs,
            grid: Grid::lines(params.blocks as usize, elements),
        })?;
    }
    Ok(())
}

params! { struct SplitParams { dims: Dims, blocks: u32, run: u32 } }

/// Elements of a part that a workgroup copies.
const BLOCK: usize = 1024;

fn program(elem: DType, direction: Direction, parts: usize) -> Program {
    let (whole, each) = match direction {
        Direction::Split => (wgsl!("split.wgsl"), wgsl!("split_part.wgsl")),
        Direction::Join => (wgsl!("join.wgsl"), wgsl!("join_part.wgsl")),
    };
    Program::new::<SplitParams>(
        &[whole, wgsl!("place.wgsl"), TENSORS],
        &[("Elem", elem)],
        &[("BLOCK", BLOCK as u32)],
    )
    .for_each(each, parts)
}

/// Every program of this file, but for the number of parts.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let both = [Direction::Split, Direction::Join];
    let of = |direction| [1, 3, crate::gpu::MAX_TENSORS].map(|n| program(elem, direction, n));
    both.into_iter().flat_map(of).collect()
}
