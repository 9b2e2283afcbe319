//! A tensor times a number, plus a number.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::map::map;
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{ELEMENTS, Program, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// `factor · x`; the tensor itself for a factor of 1.
    pub fn scale(&self, factor: f64) -> Result<Tensor> {
        if factor == 1.0 && self.dtype().is_float() {
            return Ok(self.clone());
        }
        apply_one(Affine { name: "scale", factor, offset: -0.0 }, &[self])
    }

    /// `factor · x + offset`, rounded once. See also the [operators](Tensor#operators).
    pub fn affine(&self, factor: f64, offset: f64) -> Result<Tensor> {
        apply_one(Affine { name: "affine", factor, offset }, &[self])
    }
}

/// The numbers are parameters of the kernel, not constants of its program: they may be different
/// each time. Adding −0 changes nothing, not even the sign of a zero.
struct Affine {
    name: &'static str,
    factor: f64,
    offset: f64,
}

impl Op for Affine {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// `dx = factor·dy`
    fn backward(&self, _: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(run_one(&Affine { offset: -0.0, ..*self }, &[&dys[0]])?)])
    }
}

impl Kernel for Affine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float + f64 => {
            let [factor, offset] = [self.factor, self.offset].map(<T as Float>::Acc::of);
            map(inputs[0].as_slice::<T>(), &[], outputs[0].as_mut_slice::<T>(), |x, _, y| {
                affine(factor, offset, x, y)
            })
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let [factor, offset] = [self.factor, self.offset].map(|x| x as f32);
        io.map(program(io.outputs[0].spec.dtype()), |len| AffineParams { len, factor, offset })
    }
}

vectorized! {
    fn affine<I: Isa, A: Real>(factor: A, offset: A, x: &[A], y: &mut [A]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = factor.fma::<I>(*x, offset);
        }
    }
}

params! { struct AffineParams { len: u32, factor: f32, offset: f32 } }

fn program(elem: DType) -> Program {
    let source = [wgsl!("affine.wgsl"), ELEMENTS];
    Program::new::<AffineParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![program(elem)]
}
