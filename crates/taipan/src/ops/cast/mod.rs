//! Conversion of elements to another type.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::CpuView;
use crate::cpu::map::BLOCK;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Element, Float, with_dtype};
use crate::error::Result;
use crate::gpu::{ELEMENTS, MapParams, Program};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements converted to `dtype`: to floats rounded to the nearest, to integers
    /// truncated and saturated. A conversion to or from integers ends the graph.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let floats = dtype.is_float() && self.dtype().is_float();
        let input = if floats { self.clone() } else { self.detached() };
        apply_one(Cast(dtype), &[&input])
    }
}

pub(super) struct Cast(pub(super) DType);

impl Op for Cast {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// `dy` in the input's type.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(dys[0].cast(saved.specs[0].dtype())?)])
    }
}

impl Kernel for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        Ok(smallvec![inputs[0].with_dtype(self.name(), self.0)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let (x, out) = (&inputs[0], &mut outputs[0]);
        match (x.spec.dtype(), self.0) {
            (DType::F16 | DType::BF16, DType::F32) => {
                with_dtype!(x.spec.dtype(), T: Half => {
                    let x = x.as_slice::<T>();
                    convert(x, out.as_mut_slice::<f32>(), |x: &[T], out: &mut [f32]| {
                        T::widen(x, bytemuck::cast_slice_mut(out));
                    });
                });
            }
            (DType::F32, DType::F16 | DType::BF16) => {
                with_dtype!(self.0, T: Half => {
                    let x = x.as_slice::<f32>();
                    let narrow = |x: &[f32], out: &mut [T]| T::narrow(bytemuck::cast_slice(x), out);
                    convert(x, out.as_mut_slice::<T>(), narrow);
                });
            }
            (DType::I64, to) => with_dtype!(to, T: Element => {
                convert_each(x.as_slice::<i64>(), out.as_mut_slice::<T>(), T::of_i64);
            }),
            // f64 holds every element of the other types.
            (_, to) => with_dtype!(to, T: Element => {
                for_chunks(out.as_mut_slice::<T>(), GRAIN, |start, out| {
                    let mut wide = [0.0; BLOCK];
                    for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                        widen(x, start + i * BLOCK, &mut wide[..out.len()]);
                        out.iter_mut().zip(&wide).for_each(|(out, x)| *out = T::of_f64(*x));
                    }
                });
            }),
        }
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        io.map(program(io.inputs[0].spec.dtype(), self.0), |len| MapParams { len })
    }
}

fn program(from: DType, to: DType) -> Program {
    Program::new::<MapParams>(
        &[wgsl!("cast.wgsl"), ELEMENTS],
        &[("From", from), ("To", to)],
        &[("FLOAT_TO_INT", (from.is_float() && !to.is_float()) as u32)],
    )
}

/// Elements of `x` from `start` on. Apart from the conversion to other types, so that there is one
/// loop for each type and not one for each pair.
fn widen(x: &CpuView, start: usize, out: &mut [f64]) {
    with_dtype!(x.spec.dtype(), S: Element => {
        let x = &x.as_slice::<S>()[start..];
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_f64());
    })
}

fn convert<S: Element, T: Element>(x: &[S], out: &mut [T], f: impl Fn(&[S], &mut [T]) + Sync) {
    for_chunks(out, GRAIN, |start, out| f(&x[start..start + out.len()], out));
}

fn convert_each<S: Element, T: Element>(x: &[S], out: &mut [T], f: impl Fn(S) -> T + Sync) {
    convert(x, out, |x, out| out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x)));
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(types: &[DType]) -> Vec<Program> {
    types.iter().flat_map(|&from| types.iter().map(move |&to| program(from, to))).collect()
}
