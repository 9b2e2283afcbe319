//! Gradients that kernels leave in terms, because a workgroup sees only some rows of a batch. Those
//! of parameters are needed after the whole backward pass: the terms of many are summed together, in
//! one launch.

use crate::error::Result;
use crate::gpu::{Dims, Grid, Launch, Program, TENSORS, params};
use crate::kernel::{CpuIo, GpuIo, Results, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::{DType, Device};

/// A gradient in terms, on a GPU.
pub(crate) struct Terms {
    /// In f32; from element `first` on, which is a multiple of 64, `rows` rows with all elements of
    /// the gradient.
    pub(crate) tensor: Tensor,
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// The gradient.
    pub(crate) spec: Spec,
}

impl Terms {
    /// The most rows: more are summed where they are computed, in several passes.
    pub(crate) const MAX_ROWS: usize = 64;

    /// The number of gradients that one launch can sum.
    pub(crate) fn at_once(&self) -> usize {
        match self.tensor.device() {
            Device::Gpu(gpu) => gpu.max_tensors(2, 0),
            Device::Cpu => 1,
        }
    }
}

/// The gradients, each the sum of its rows from the first to the last.
pub(crate) fn sum_all(all: &[Terms]) -> Result<Results<Tensor>> {
    let inputs: Vec<&Tensor> = all.iter().map(|terms| &terms.tensor).collect();
    let specs = all.iter().map(|terms| terms.spec.clone()).collect();
    let cpu = |_: CpuIo| unreachable!("terms are on a GPU");
    let gpu = |GpuIo { op, gpu, inputs, outputs }: GpuIo| {
        for dtype in [DType::F32, DType::F16] {
            let sums = all.iter().zip(inputs).zip(outputs);
            let sums: Vec<_> = sums.filter(|(_, sum)| sum.spec.dtype() == dtype).collect();
            for sums in sums.chunks(gpu.max_tensors(2, 0)) {
                let mut params = SumParams { dims: Dims::default(), blocks: 0 };
                let (mut inputs, mut work) = (Vec::new(), 0);
                for (rows, ((terms, x), sum)) in params.dims.chunks_mut(2).zip(sums) {
                    let len = sum.spec.len();
                    let range = terms.first..terms.first + terms.rows * len;
                    inputs.push(x.all().window(range.clone(), DType::F32.size()));
                    rows[0] = [params.blocks, len as u32, terms.rows as u32, 0];
                    params.blocks += len.div_ceil(BLOCK) as u32;
                    work += range.len();
                }
                gpu.launch(Launch {
                    name: op,
                    program: program(dtype, sums.len()),
                    params,
                    inputs: &inputs,
                    outputs: &sums.iter().map(|(_, sum)| sum.all()).collect::<Vec<_>>(),
                    grid: Grid::lines(params.blocks as usize, work),
                })?;
            }
        }
        Ok(())
    };
    compute(("backward", "sums"), &inputs, specs, cpu, gpu)
}

params! { struct SumParams { dims: Dims, blocks: u32 } }

/// Elements of a gradient that a workgroup sums.
const BLOCK: usize = 1024;

fn program(out: DType, tensors: usize) -> Program {
    let block = [("BLOCK", BLOCK as u32)];
    Program::new::<SumParams>(&[wgsl!("sum.wgsl"), TENSORS], &[("Out", out)], &block)
        .for_each(wgsl!("sum_tensor.wgsl"), tensors)
}

/// Every program of this file, but for the number of tensors.
#[cfg(test)]
pub(crate) fn programs() -> Vec<Program> {
    let of = |out| [1, 4, crate::gpu::MAX_TENSORS].map(|tensors| program(out, tensors));
    [DType::F32, DType::F16].into_iter().flat_map(of).collect()
}
