//! Sums of squares of many tensors, in blocks.

use crate::cpu::isa::vectorized;
use crate::cpu::math::Math;
use crate::cpu::reduce::{by_lanes, join};
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::gpu::{GROUP, Grid, LINES, Launch, Program, SUM, WORKGROUP, params};
use crate::kernel::{CpuIo, GpuIo, Kernel};
use crate::spec::Spec;
use crate::{DType, Device};

/// `Σ x²` of each block of every input, one input after the other; the last block of each may be
/// shorter.
pub(super) struct SquareSums {
    block: usize,
    /// f64 on the CPU, where the square of no f32 overflows; f32 on a GPU.
    dtype: DType,
}

const CPU_BLOCK: usize = 1024;
const GPU_BLOCK: usize = 4096;

impl SquareSums {
    pub(super) fn on(device: &Device) -> SquareSums {
        match device {
            Device::Cpu => SquareSums { block: CPU_BLOCK, dtype: DType::F64 },
            Device::Gpu(_) => SquareSums { block: GPU_BLOCK, dtype: DType::F32 },
        }
    }

    fn blocks(&self, x: &Spec) -> usize {
        x.len().div_ceil(self.block)
    }
}

impl Kernel for SquareSums {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let blocks = inputs.iter().map(|x| self.blocks(x)).sum();
        Ok(vec![Spec::new(self.name(), &[blocks], self.dtype)?])
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
        let work = inputs.iter().map(|x| x.spec.len()).sum();
        for_tasks(tasks, work, |(x, start, sums)| {
            with_dtype!(x.spec.dtype(), T: Float => square_sums(&x.as_slice::<T>()[start..], sums));
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
        let mut first = 0;
        for x in inputs {
            let dtype = x.spec.dtype();
            for window in gpu.windows(self.blocks(x.spec), GPU_BLOCK * dtype.size()) {
                let elements = window.start * GPU_BLOCK..(window.end * GPU_BLOCK).min(x.spec.len());
                gpu.launch(Launch {
                    name: self.name(),
                    program: program(dtype),
                    params: SquareSumsParams {
                        lines: window.len() as u32,
                        len: elements.len() as u32,
                        first: first as u32,
                    },
                    inputs: &[x.all().window(elements.clone(), dtype.size())],
                    outputs: &[outputs[0].all()],
                    grid: Grid::lines(window.len(), elements.len()),
                })?;
                first += window.len();
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

params! { struct SquareSumsParams { lines: u32, len: u32, first: u32 } }

fn program(elem: DType) -> Program {
    Program::new::<SquareSumsParams>(
        &[SUM, WORKGROUP, include_str!("square_sums.wgsl"), LINES],
        &[("Elem", elem)],
        &[("WIDTH", GROUP as u32), ("BLOCK", GPU_BLOCK as u32)],
    )
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs() -> Vec<Program> {
    [DType::F32, DType::F16].map(program).into()
}
