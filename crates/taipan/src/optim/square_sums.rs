//! Sums of squares of many tensors, in blocks.

use smallvec::smallvec;

use crate::cpu::isa::vectorized;
use crate::cpu::math::Math;
use crate::cpu::reduce::{by_lanes, join};
use crate::cpu::threads::{self, GRAIN, try_for_tasks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::gpu::{Dims, GROUP, Grid, Launch, Program, SUM, TENSORS, WORKGROUP, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::spec::Spec;
use crate::{DType, Device};

/// `Σ x²` of each block of every input, one input after the other; the last block of each may be
/// shorter.
pub(super) struct SquareSums {
    op: &'static str,
    pub(super) block: usize,
    /// f64 on the CPU, where the square of no f32 overflows; f32 on a GPU.
    pub(super) dtype: DType,
}

const CPU_BLOCK: usize = 1024;
const GPU_BLOCK: usize = 4096;

impl SquareSums {
    /// Of the gradients that the optimiser `op` has on this device.
    pub(super) fn new(op: &'static str, device: &Device) -> SquareSums {
        match device {
            Device::Cpu => SquareSums { op, block: CPU_BLOCK, dtype: DType::F64 },
            Device::Gpu(_) => SquareSums { op, block: GPU_BLOCK, dtype: DType::F32 },
        }
    }

    fn blocks(&self, x: &Spec) -> usize {
        x.len().div_ceil(self.block)
    }
}

impl Kernel for SquareSums {
    fn name(&self) -> &'static str {
        self.op
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let blocks = inputs.iter().map(|x| self.blocks(x)).sum();
        Ok(smallvec![Spec::new(self.name(), &[blocks], self.dtype)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let mut left = outputs[0].as_mut_slice::<f64>();
        let mut tasks = Vec::new();
        for x in inputs {
            let (sums, rest) = left.split_at_mut(self.blocks(x.spec));
            left = rest;
            let chunks = sums.chunks_mut(GRAIN / CPU_BLOCK).enumerate();
            tasks.extend(chunks.map(|(i, sums)| (x, i * GRAIN, sums)));
        }
        let work: usize = inputs.iter().map(|x| x.spec.len()).sum();
        let threads = if work < GRAIN { 1 } else { threads::count() };
        try_for_tasks(tasks, threads, |_, (x, start, sums)| {
            with_dtype!(x.spec.dtype(), T: Float => square_sums(&x.as_slice::<T>()[start..], sums));
            Ok(())
        })
    }

    /// One launch for as many inputs of a type as can be bound.
    fn gpu(&self, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
        let mut first = 0;
        for dtype in [DType::F32, DType::F16] {
            let mut windows = Vec::new();
            for x in inputs.iter().filter(|x| x.spec.dtype() == dtype) {
                let blocks = gpu.windows(self.blocks(x.spec), GPU_BLOCK * dtype.size());
                windows.extend(blocks.map(|blocks| {
                    let end = (blocks.end * GPU_BLOCK).min(x.spec.len());
                    let elements = blocks.start * GPU_BLOCK..end;
                    (x.all().window(elements.clone(), dtype.size()), elements.len())
                }));
            }
            for windows in windows.chunks(gpu.max_tensors(1, 1)) {
                let mut params = SquareSumsParams { dims: Dims::default(), blocks: 0, first };
                for (row, (_, len)) in params.dims.chunks_mut(2).zip(windows) {
                    row[0] = [params.blocks, *len as u32, 0, 0];
                    params.blocks += len.div_ceil(GPU_BLOCK) as u32;
                }
                first += params.blocks;
                gpu.launch(Launch {
                    name: self.name(),
                    program: program(dtype, windows.len()),
                    params,
                    inputs: &windows.iter().map(|(x, _)| *x).collect::<Vec<_>>(),
                    outputs: &[outputs[0].all()],
                    grid: Grid::lines(
                        params.blocks as usize,
                        windows.iter().map(|(_, len)| len).sum(),
                    ),
                })?;
            }
        }
        Ok(())
    }
}

fn square_sums<T: Float>(x: &[T], sums: &mut [f64]) {
    let mut wide = [T::Acc::ZERO; CPU_BLOCK];
    for (sum, x) in sums.iter_mut().zip(x.chunks(CPU_BLOCK)) {
        *sum = square_sum(widened(x, &mut wide[..x.len()]));
    }
}

vectorized! {
    fn square_sum<I: Isa, A: Real>(x: &[A]) -> f64 {
        join(by_lanes(x, 0f64, |sum, x| {
            let x = x.to_f64();
            x.fma::<I>(x, sum)
        }))
    }
}

params! { struct SquareSumsParams { dims: Dims, blocks: u32, first: u32 } }

fn program(elem: DType, tensors: usize) -> Program {
    Program::new::<SquareSumsParams>(
        &[SUM, WORKGROUP, wgsl!("square_sums.wgsl"), TENSORS],
        &[("Elem", elem)],
        &[("WIDTH", GROUP as u32), ("BLOCK", GPU_BLOCK as u32)],
    )
    .for_each(wgsl!("square_sums_tensor.wgsl"), tensors)
}

/// Every program of this file, but for the number of tensors.
#[cfg(test)]
pub(super) fn programs() -> Vec<Program> {
    let of = |elem| [1, 2, crate::gpu::MAX_TENSORS].map(|tensors| program(elem, tensors));
    [DType::F32, DType::F16].into_iter().flat_map(of).collect()
}
