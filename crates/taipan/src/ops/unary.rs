//! Element-wise functions of one tensor.

use smallvec::smallvec;

use crate::autograd::{Op, Saved, Slot};
use crate::cpu::map::map;
use crate::dtype::with_dtype;
use crate::error::{Result, ensure};
use crate::function::{Function, Saves};
use crate::gpu::MapParams;
use crate::gpu::map::value_program;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// `x` limited to `low … high`, either of which may be infinite; its derivative is 1 between
    /// them, and 0 at the limits and outside.
    pub fn clamp(&self, low: f64, high: f64) -> Result<Tensor> {
        const OP: &str = "clamp";
        let ordered = low <= high;
        ensure!(OP, ordered, "the limits are {low} and {high}, expected the lower one first");
        let above = if low == f64::NEG_INFINITY { self.clone() } else { self.clamp_min(low)? };
        if high == f64::INFINITY { Ok(above) } else { above.clamp_max(high) }
    }
}

/// `f(x)`
pub(crate) struct Unary(pub(crate) Function);

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
        let Unary(function) = *self;
        let dy = &dys[0];
        let inputs = match function.saves() {
            Saves::Nothing => vec![dy],
            Saves::Input => vec![dy, saved.input(0)],
            Saves::Output => vec![dy, saved.output(0)],
        };
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            with_dtype!(inputs[0].spec.dtype(), T: Float => {
                let saved = inputs.get(1).map_or(&[][..], |saved| saved.as_slice::<T>());
                let (dy, dx) = (inputs[0].as_slice::<T>(), outputs[0].as_mut_slice::<T>());
                map(dy, saved, dx, |dy, saved, dx| function.gradient(saved, dy, dx))
            });
            Ok(())
        };
        let gpu = |GpuIo { op, gpu, inputs, outputs }: GpuIo| {
            let saved = inputs.get(1).unwrap_or(&inputs[0]);
            gpu.map_gradient(op, function, [&inputs[0], saved], &outputs[0])
        };
        let name = (self.name(), "backward");
        Ok(vec![Some(compute_one(name, &inputs, dy.spec.clone(), cpu, gpu)?)])
    }
}

impl Kernel for Unary {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        let parameter = self.0.parameter();
        let is_finite = parameter.is_finite();
        ensure!(self.name(), is_finite, "the parameter is {parameter}, expected a finite number");
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float + f64 => {
            let (x, y) = (inputs[0].as_slice::<T>(), outputs[0].as_mut_slice::<T>());
            map(x, &[], y, |x, _, y| self.0.value(x, y))
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        io.map(value_program(self.0, io.outputs[0].spec.dtype()), |len| MapParams { len })
    }
}
