//! Comparisons, element by element.

use smallvec::smallvec;

use super::broadcast::{self, Operand, RowLayout, Runs, launch};
use crate::DType;
use crate::cpu::isa::vectorized;
use crate::cpu::map::BLOCK;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Element, Float, Real, widened, with_dtype};
use crate::error::{Error, Result};
use crate::gpu::Program;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::{Spec, broadcast as broadcast_shapes};
use crate::tensor::Tensor;

macro_rules! comparisons {
    ($(#[$docs:meta])* $($variant:ident $name:ident $doc:literal;)*) => {
        #[derive(Clone, Copy, Debug)]
        enum Compare {
            $($variant,)*
        }

        impl Compare {
            fn name(self) -> &'static str {
                match self {
                    $(Compare::$variant => stringify!($name),)*
                }
            }

            #[cfg(test)]
            const ALL: &[Compare] = &[$(Compare::$variant,)*];
        }

        $(#[$docs])*
        impl Tensor {
            $(#[doc = $doc]
            pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                Compare::$variant.run(self, other.into())
            })*
        }
    };
}

comparisons! {
    /// Comparisons with a tensor or a number. The result, a mask, is 1 where it is true and 0 elsewhere,
    /// as `u32`: for [`where_cond`](Tensor::where_cond) and [`masked_fill`](Tensor::masked_fill), or
    /// [`cast`](Tensor::cast) to a float. Shapes broadcast; types must be equal, floats or `u32`. With
    /// NaN all are false but `ne`. There is no gradient.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[-1f32, 0.5, 2.0], &[3], &Device::Cpu)?;
    /// assert_eq!(x.gt(0.0)?.read_blocking::<u32>()?, [0, 1, 1]);
    /// assert_eq!(x.eq(&x)?.read_blocking::<u32>()?, [1, 1, 1]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    Eq eq "`self = other`";
    Ne ne "`self ≠ other`";
    Lt lt "`self < other`";
    Le le "`self ≤ other`";
    Gt gt "`self > other`";
    Ge ge "`self ≥ other`";
}

impl Compare {
    /// What WGSL calls the variants, in their order.
    const NAMES: [&str; 6] = ["EQ", "NE", "LT", "LE", "GT", "GE"];

    fn run(self, a: &Tensor, b: Operand) -> Result<Tensor> {
        run_one(&self, &[a, &b.beside(a)?])
    }
}

impl Kernel for Compare {
    fn name(&self) -> &'static str {
        Compare::name(*self)
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (op, found) = (self.name(), inputs[0].dtype());
        if !found.is_float() && found != DType::U32 {
            let expected = "a float or u32".into();
            return Err(Error::DType { op, name: "the left side", found, expected });
        }
        inputs[1].dtype().ensure(found, op, "the right side")?;
        let shape = broadcast_shapes(op, inputs[0].shape(), inputs[1].shape())?;
        Ok(smallvec![Spec::new(op, &shape, DType::U32)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let shape = outputs[0].spec.shape();
        let layout = RowLayout::new(shape, [inputs[0].spec.shape(), inputs[1].spec.shape()]);
        let out = outputs[0].as_mut_slice::<u32>();
        if inputs[0].spec.dtype() == DType::U32 {
            let operands = [inputs[0].as_slice::<u32>(), inputs[1].as_slice()];
            for_operands(&layout, operands, out, |[a, b], out| zip(*self, a, b, out));
            return Ok(());
        }
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let operands = [inputs[0].as_slice::<T>(), inputs[1].as_slice()];
            for_operands(&layout, operands, out, |[a, b], out| {
                if let (Some(a), Some(b)) = (T::as_acc(a), T::as_acc(b)) {
                    return compare(*self, a, b, out);
                }
                let mut wide = [[<T as Float>::Acc::ZERO; BLOCK]; 2];
                let [wide_a, wide_b] = &mut wide;
                let a = widened(a, &mut wide_a[..out.len()]);
                compare(*self, a, widened(b, &mut wide_b[..out.len()]), out)
            })
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        launch(io, |flat| program(*self, io.inputs[0].spec.dtype(), flat))
    }
}

fn program(op: Compare, elem: DType, flat: bool) -> Program {
    let own = [("OP", op as u32), ("IS_FLOAT", elem.is_float() as u32)];
    let consts: Vec<_> = Compare::NAMES.into_iter().zip(0..).chain(own).collect();
    broadcast::program(wgsl!("compare.wgsl"), &[("Elem", elem)], &consts, flat)
}

/// Call `f` with both operands and the output, some elements at a time.
fn for_operands<T: Element>(
    layout: &RowLayout<2>,
    operands: [&[T]; 2],
    out: &mut [u32],
    f: impl Fn([&[T]; 2], &mut [u32]) + Sync,
) {
    for_chunks(out, GRAIN, |start, chunk| {
        let [mut a, mut b] = [0, 1].map(|i| Runs::new(operands[i], layout.advances[i]));
        layout.for_runs(start, chunk, BLOCK, |out, from| {
            f([a.at(from[0], out.len()), b.at(from[1], out.len())], out);
        });
    });
}

#[inline(always)]
fn zip<A: PartialOrd + Copy>(op: Compare, a: &[A], b: &[A], out: &mut [u32]) {
    #[inline(always)]
    fn with<A: Copy>(a: &[A], b: &[A], out: &mut [u32], f: impl Fn(A, A) -> bool) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = f(*a, *b) as u32;
        }
    }
    match op {
        Compare::Eq => with(a, b, out, |a, b| a == b),
        Compare::Ne => with(a, b, out, |a, b| a != b),
        Compare::Lt => with(a, b, out, |a, b| a < b),
        Compare::Le => with(a, b, out, |a, b| a <= b),
        Compare::Gt => with(a, b, out, |a, b| a > b),
        Compare::Ge => with(a, b, out, |a, b| a >= b),
    }
}

vectorized! {
    fn compare<I: Isa, A: Real>(op: Compare, a: &[A], b: &[A], out: &mut [u32]) {
        zip(op, a, b, out)
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let both = |&op: &Compare| [true, false].map(|flat| program(op, elem, flat));
    Compare::ALL.iter().flat_map(both).collect()
}
