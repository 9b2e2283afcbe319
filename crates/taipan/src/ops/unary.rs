//! Element-wise functions of one tensor.

use super::function::{Function, Saves};
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{ELEMENTS, Elements, Gpu, GpuBuffer, Program, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// `factor · x`
    pub fn scale(&self, factor: f64) -> Result<Tensor> {
        apply_one(Scale(factor), &[self])
    }
}

/// `factor·x`: the factor is a parameter of the kernel, not a constant of its program, because it
/// may be different each time.
struct Scale(f64);

impl Op for Scale {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// `dx = factor·dy`
    fn backward(&self, _: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(run_one(self, &[&dys[0]])?)])
    }
}

impl Kernel for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        Ok(vec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let factor = <T as Float>::Acc::of(self.0);
            map(inputs[0].as_slice::<T>(), &[], outputs[0].as_mut_slice::<T>(), |x, _, y| {
                y.iter_mut().zip(x).for_each(|(y, x)| *y = *x * factor);
            })
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let factor = self.0 as f32;
        gpu.launch_elements(Elements {
            name: self.name(),
            program: scale_program(outputs[0].spec.dtype()),
            params: &|len| ScaleParams { len, factor },
            inputs: &[inputs[0].elements()],
            output: outputs[0].elements(),
            len: outputs[0].spec.len(),
        })
    }
}

params! { struct ScaleParams { len: u32, factor: f32 } }

fn scale_program(elem: DType) -> Program {
    let source = [include_str!("scale.wgsl"), ELEMENTS];
    Program::new::<ScaleParams>(&source, &[("Elem", elem)], &[])
}

pub(super) struct Unary(pub(super) Function);

impl Op for Unary {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        match self.0.saves() {
            Saves::Nothing => false,
            Saves::Input => slot == Slot::Input(0),
            Saves::Output => slot == Slot::Output(0),
        }
    }

    /// `dx = dy ⊙ f'(x)`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let dx = match self.0.saves() {
            Saves::Nothing => run_one(&UnaryGrad(self.0), &[&dys[0]])?,
            Saves::Input => run_one(&UnaryGrad(self.0), &[&dys[0], saved.input(0)])?,
            Saves::Output => run_one(&UnaryGrad(self.0), &[&dys[0], saved.output(0)])?,
        };
        Ok(vec![Some(dx)])
    }
}

impl Kernel for Unary {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        Ok(vec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            map(inputs[0].as_slice::<T>(), &[], outputs[0].as_mut_slice::<T>(), |x, _, y| {
                y.copy_from_slice(x);
                self.0.value(y)
            })
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        gpu.launch_elements(Elements {
            name: self.name(),
            program: value_program(self.0, outputs[0].spec.dtype()),
            params: &|len| UnaryParams { len },
            inputs: &[inputs[0].elements()],
            output: outputs[0].elements(),
            len: outputs[0].spec.len(),
        })
    }
}

/// `dy ⊙ f'`, from `dy` and what the function saves.
struct UnaryGrad(Function);

impl Kernel for UnaryGrad {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        ensure!(self.name(), inputs.iter().all(|i| *i == inputs[0]), "{inputs:?} differ");
        Ok(vec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let saved = inputs.get(1).map_or(&[][..], |saved| saved.as_slice::<T>());
            let (dy, dx) = (inputs[0].as_slice::<T>(), outputs[0].as_mut_slice::<T>());
            map(dy, saved, dx, |dy, saved, dx| self.0.gradient(saved, dy, dx))
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        match inputs {
            [dy, saved] => grad_on_gpu(self.name(), gpu, self.0, [dy, saved], &outputs[0]),
            // Nothing is saved, and the binding is not read.
            _ => grad_on_gpu(self.name(), gpu, self.0, [&inputs[0]; 2], &outputs[0]),
        }
    }
}

/// `dx = dy ⊙ f'(saved)` on a GPU; `dx` may be of a wider type.
pub(super) fn grad_on_gpu(
    op: &'static str,
    gpu: &Gpu,
    function: Function,
    [dy, saved]: [&View<&GpuBuffer>; 2],
    dx: &View<&GpuBuffer>,
) -> Result<()> {
    gpu.launch_elements(Elements {
        name: op,
        program: grad_program(function, dy.spec.dtype(), dx.spec.dtype()),
        params: &|len| UnaryParams { len },
        inputs: &[dy.elements(), saved.elements()],
        output: dx.elements(),
        len: dx.spec.len(),
    })
}

params! { struct UnaryParams { len: u32 } }

fn value_program(function: Function, elem: DType) -> Program {
    let source = [include_str!("unary.wgsl"), ELEMENTS];
    function.program::<UnaryParams>(&source, &[("Elem", elem)], &[])
}

/// From `dy` of type `elem`, the gradient of type `out`.
fn grad_program(function: Function, elem: DType, out: DType) -> Program {
    let source = [include_str!("unary_grad.wgsl"), ELEMENTS];
    function.program::<UnaryParams>(&source, &[("Elem", elem), ("Out", out)], &[])
}

/// `f(x, other, out)` in the wider type, block by block; `other` may be empty.
pub(super) fn map<T: Float>(
    x: &[T],
    other: &[T],
    out: &mut [T],
    f: impl Fn(&[T::Acc], &[T::Acc], &mut [T::Acc]) + Sync,
) {
    const BLOCK: usize = 1024;
    for_chunks(out, GRAIN, |start, out| {
        let [mut wide_x, mut wide_other, mut wide_out] = [[T::Acc::ZERO; BLOCK]; 3];
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let at = start + i * BLOCK..start + i * BLOCK + out.len();
            let x = widened(&x[at.clone()], &mut wide_x[..out.len()]);
            let other = other.get(at).unwrap_or_default();
            let other = widened(other, &mut wide_other[..other.len()]);
            let wide_out = &mut wide_out[..out.len()];
            f(x, other, wide_out);
            T::narrow(wide_out, out);
        }
    });
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let out = [elem, DType::F32];
    let grads = |f: Function| out.map(|out| grad_program(f, elem, out));
    let functions = Function::all().into_iter();
    let all = functions.flat_map(|f| [value_program(f, elem)].into_iter().chain(grads(f)));
    all.chain([scale_program(elem)]).collect()
}
