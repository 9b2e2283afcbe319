//! A product with a gate: `x ⊙ φ(gate)`.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::{BLOCK, map, multiply};
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::{Result, ensure};
use crate::function::{Activation, Function};
use crate::gpu::{ELEMENTS, Grid, MapParams, Program};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute, run_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "gated";

/// `x ⊙ activation(gate)`, element by element, in one pass.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | any |
/// | `gate` | that of `x` |
/// | result | that of `x` |
///
/// Both have the same float type. `gate` and, if `gate` needs a gradient, `x` are saved for
/// backward, which is one pass, too.
///
/// ```
/// use taipan::{Activation, Device, Tensor, gated};
///
/// let x = Tensor::new(&[1f32, 2.0, 3.0], &[3], &Device::Cpu)?;
/// let gate = Tensor::new(&[-1f32, 0.5, 2.0], &[3], &Device::Cpu)?;
/// let y = gated(&x, &gate, Activation::Relu)?;
/// assert_eq!(y.read_blocking::<f32>()?, [0.0, 1.0, 6.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn gated(x: &Tensor, gate: &Tensor, activation: Activation) -> Result<Tensor> {
    apply_one(Gated(activation.into()), &[x, gate])
}

struct Gated(Function);

impl Op for Gated {
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool {
        match slot {
            Slot::Input(0) => needs[1],
            Slot::Input(_) => true,
            Slot::Output(_) => false,
        }
    }

    /// `dx = dy ⊙ φ(gate)`, `dgate = dy ⊙ x ⊙ φ'(gate)`; the first alone is the op itself.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (dy, gate) = (&dys[0], saved.input(1));
        if !saved.needs[1] {
            return Ok(vec![Some(run_one(self, &[dy, gate])?), None]);
        }
        let Gated(function) = *self;
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let [dx, dgate] = outputs else { unreachable!("two results") };
            with_dtype!(dx.spec.dtype(), T: Float => {
                let inputs = [0, 1, 2].map(|i| inputs[i].as_slice::<T>());
                let (dx, dgate) = (dx.as_mut_slice::<T>(), dgate.as_mut_slice::<T>());
                let work = dx.len();
                let chunks = dx.chunks_mut(GRAIN).zip(dgate.chunks_mut(GRAIN)).enumerate();
                for_tasks(chunks, work, |(i, grads)| {
                    grad_chunk(function, inputs, i * GRAIN, grads)
                })
            });
            Ok(())
        };
        let gpu = |io: GpuIo| launch(io, grad_program(function, dy.dtype()));
        let (inputs, specs) = ([dy, saved.input(0), gate], saved.specs[..].into());
        let grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        Ok(grads.into_iter().map(Some).collect())
    }
}

impl Kernel for Gated {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (x, gate) = (inputs[0], inputs[1]);
        x.dtype().ensure_float(OP, "the input")?;
        gate.dtype().ensure(x.dtype(), OP, "the gate")?;
        let (found, expected) = (gate.shape(), x.shape());
        ensure!(OP, found == expected, "the gate is {found:?}, expected {expected:?}");
        Ok(smallvec![x.clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let (x, gate) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
            map(x, gate, outputs[0].as_mut_slice::<T>(), |x, gate, y| {
                self.0.value(gate, y);
                multiply(y, x);
            })
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        launch(io, value_program(self.0, io.outputs[0].spec.dtype()))
    }
}

/// `dx` and `dgate` from element `start` on, from `dy`, `x` and `gate`.
fn grad_chunk<T: Float>(
    function: Function,
    inputs: [&[T]; 3],
    start: usize,
    (dx, dgate): (&mut [T], &mut [T]),
) {
    let mut wide = [[T::Acc::ZERO; BLOCK]; 3];
    let [mut open, mut product, mut out] = [[T::Acc::ZERO; BLOCK]; 3];
    let blocks = dx.chunks_mut(BLOCK).zip(dgate.chunks_mut(BLOCK)).enumerate();
    for (i, (dx, dgate)) in blocks {
        let n = dx.len();
        let at = start + i * BLOCK;
        let [wide_dy, wide_x, wide_gate] = &mut wide;
        let [dy, x, gate] = [(0, wide_dy), (1, wide_x), (2, wide_gate)]
            .map(|(i, wide)| widened(&inputs[i][at..at + n], &mut wide[..n]));
        let (open, product) = (&mut open[..n], &mut product[..n]);
        function.value(gate, open);
        fill_wide(dx, &mut out, |dx| {
            dx.copy_from_slice(dy);
            multiply(dx, open);
        });
        product.copy_from_slice(dy);
        multiply(product, x);
        open.copy_from_slice(gate);
        fill_wide(dgate, &mut out, |dgate| function.gradient_at(open, product, dgate));
    }
}

fn value_program(function: Function, elem: DType) -> Program {
    let source = [wgsl!("gated.wgsl"), ELEMENTS];
    function.program::<MapParams>(&source, &[("Elem", elem)], &[])
}

fn grad_program(function: Function, elem: DType) -> Program {
    let source = [wgsl!("grad.wgsl"), ELEMENTS];
    function.program::<MapParams>(&source, &[("Elem", elem)], &[])
}

fn launch(io: GpuIo, program: Program) -> Result<()> {
    let len = io.outputs[0].spec.len();
    io.launch(program, MapParams { len: len as u32 }, Grid::elements(len))
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    Activation::ALL
        .iter()
        .copied()
        .map(Function::from)
        .flat_map(|f| [value_program(f, elem), grad_program(f, elem)])
        .collect()
}
