//! Softmax along a dimension.

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::fold;
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{Gpu, GpuBuffer, LINES, Launch, Program, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run_one};
use crate::spec::{Spec, ensure_dim};
use crate::tensor::Tensor;

impl Tensor {
    /// `exp(x) / Σ exp(x)` along `dim`, computed from `x − max(x)` so that nothing overflows.
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        ensure_dim("softmax", dim, self.shape())?;
        let last = self.rank() - 1;
        if dim == last {
            return apply_one(Softmax, &[self]);
        }
        self.transpose(dim, last)?.softmax(last)?.transpose(dim, last)
    }
}

/// Along the last dimension.
struct Softmax;

impl Op for Softmax {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Output(0)
    }

    /// `dx = y ⊙ (dy − Σ dy·y)`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(run_one(&SoftmaxGrad, &[&dys[0], saved.output(0)])?)])
    }
}

impl Kernel for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        Ok(vec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let n = row_len(inputs[0].spec);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            for_rows(inputs[0].as_slice::<T>(), &[], outputs[0].as_mut_slice::<T>(), n, |row, _| {
                let max = fold::max(row).unwrap_or(<T as Float>::Acc::ZERO);
                exp_of_difference(row, max);
                let scale = <T as Float>::Acc::ONE / fold::sum(row);
                row.iter_mut().for_each(|x| *x *= scale);
            })
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        launch(gpu, inputs, outputs, value_program)
    }
}

struct SoftmaxGrad;

impl Kernel for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let n = row_len(inputs[0].spec);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let (dy, y) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
            for_rows(dy, y, outputs[0].as_mut_slice::<T>(), n, |dy, y| {
                let dot = fold::dot(dy, y);
                dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = *y * (*dy - dot));
            })
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        launch(gpu, inputs, outputs, grad_program)
    }
}

params! { struct SoftmaxParams { lines: u32, n: u32 } }

fn value_program(elem: DType, width: u32) -> Program {
    let source = [
        include_str!("../gpu/math.wgsl"),
        include_str!("../gpu/float_order.wgsl"),
        include_str!("softmax.wgsl"),
        LINES,
    ];
    Program::new::<SoftmaxParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

fn grad_program(elem: DType, width: u32) -> Program {
    let source = [include_str!("softmax_grad.wgsl"), LINES];
    Program::new::<SoftmaxParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

fn launch(
    gpu: &Gpu,
    inputs: &[View<&GpuBuffer>],
    outputs: &[View<&GpuBuffer>],
    program: fn(DType, u32) -> Program,
) -> Result<()> {
    let spec = outputs[0].spec;
    let n = row_len(spec);
    let rows = spec.len() / n;
    gpu.launch(Launch {
        name: "softmax",
        program: program(spec.dtype(), width(n)),
        params: SoftmaxParams { lines: rows as u32, n: n as u32 },
        inputs: &inputs.iter().map(|input| input.data.all()).collect::<Vec<_>>(),
        outputs: &[outputs[0].data.all()],
        groups: rows,
        work: 4 * spec.len() as u64,
    })
}

fn row_len(spec: &Spec) -> usize {
    spec.shape().last().copied().unwrap_or(1)
}

/// `out = f(x, other)` for each `n`-long row, in the wider type; `other` may be empty.
fn for_rows<T: Float>(
    x: &[T],
    other: &[T],
    out: &mut [T],
    n: usize,
    f: impl Fn(&mut [T::Acc], &[T::Acc]) + Sync,
) {
    let rows = (GRAIN / n.max(1)).max(1);
    for_chunks(out, rows * n, |start, chunk| {
        let mut wide = vec![T::Acc::ZERO; n];
        let mut wide_other = vec![T::Acc::ZERO; if other.is_empty() { 0 } else { n }];
        for (i, out) in chunk.chunks_mut(n).enumerate() {
            let at = start + i * n;
            T::widen(&x[at..at + n], &mut wide);
            T::widen(other.get(at..at + n).unwrap_or_default(), &mut wide_other);
            f(&mut wide, &wide_other);
            T::narrow(&wide, out);
        }
    });
}

vectorized! {
    /// `x = exp(x − max)`
    fn exp_of_difference<I: Isa, A: Real>(x: &mut [A], max: A) {
        for x in x {
            *x = (*x - max).exp::<I>();
        }
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    crate::gpu::WIDTHS
        .into_iter()
        .flat_map(|w| [value_program(elem, w), grad_program(elem, w)])
        .collect()
}
