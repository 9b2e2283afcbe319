//! A tensor times a number.

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::map;
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{ELEMENTS, Program, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, run_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// `factor · x`
    pub fn scale(&self, factor: f64) -> Result<Tensor> {
        apply_one(Scale(factor), &[self])
    }
}

/// The factor is a parameter of the kernel, not a constant of its program: it may be different each
/// time.
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
        with_dtype!(inputs[0].spec.dtype(), T: Float + f64 => {
            let factor = <T as Float>::Acc::of(self.0);
            map(inputs[0].as_slice::<T>(), &[], outputs[0].as_mut_slice::<T>(), |x, _, y| {
                y.iter_mut().zip(x).for_each(|(y, x)| *y = *x * factor);
            })
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let factor = self.0 as f32;
        io.map(program(io.outputs[0].spec.dtype()), |len| ScaleParams { len, factor })
    }
}

params! { struct ScaleParams { len: u32, factor: f32 } }

fn program(elem: DType) -> Program {
    let source = [include_str!("scale.wgsl"), ELEMENTS];
    Program::new::<ScaleParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![program(elem)]
}
