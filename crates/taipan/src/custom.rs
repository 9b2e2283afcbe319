//! User-defined operations: [`CustomOp`], [`custom`].

use std::ops::{Add, Div, Mul, Neg, Sub};

use smallvec::smallvec;

use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{Dims, ELEMENTS, Grid, Program, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::spec::Spec;
use crate::tensor::Tensor;

/// A user-defined operation with its gradient, on the CPU and on GPUs; [`custom`] applies it. It is
/// launched, cached and profiled like the built-in ops, and its results do not depend on the number
/// of threads.
///
/// Each element of the result is a function of the inputs and of its index, given twice: in Rust,
/// for `f32` and `f64` (inputs of f16 and bf16 are converted to f32, and results rounded once), and
/// in WGSL. All inputs have one float type, and so has the result.
///
/// ```
/// use taipan::{BackwardReads, CustomOp, Device, Number, Result, SavedTensors, Tensor, custom};
///
/// /// `x` with its last dimension reversed.
/// struct Flip;
///
/// impl CustomOp for Flip {
///     const NAME: &'static str = "flip";
///     const INPUTS: &'static [&'static str] = &["x"];
///     const BACKWARD_READS: BackwardReads = BackwardReads::Nothing;
///     const WGSL: &'static str = "
///         fn value(i: u32) -> f32 {
///             let column = i % size(0u);
///             return f32(x[i - column + size(0u) - 1u - column]);
///         }";
///
///     fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
///         Ok(inputs[0].to_vec())
///     }
///
///     fn sizes(&self, inputs: &[&[usize]]) -> Vec<usize> {
///         vec![inputs[0].last().copied().unwrap_or(1)]
///     }
///
///     fn cpu<A: Number>(&self, inputs: &[&[A]], sizes: &[usize], first: usize, y: &mut [A]) {
///         for (i, y) in (first..).zip(y) {
///             let column = i % sizes[0];
///             *y = inputs[0][i - column + sizes[0] - 1 - column];
///         }
///     }
///
///     fn backward(&self, _: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
///         Ok(vec![Some(custom(Flip, &[dy])?)])
///     }
/// }
///
/// let x = Tensor::new(&[1f32, 2.0, 3.0], &[3], &Device::Cpu)?.tracked();
/// let y = custom(Flip, &[&x])?;
/// assert_eq!(y.read_blocking::<f32>()?, [3.0, 2.0, 1.0]);
/// let dy = Tensor::new(&[1f32, 0.0, 0.0], &[3], &Device::Cpu)?;
/// assert_eq!(y.backward_from(&dy)?.of(&x)?.read_blocking::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub trait CustomOp: Send + Sync + 'static {
    /// Names the op in errors and profiles.
    const NAME: &'static str;

    /// The names of the inputs in WGSL, at most 7.
    const INPUTS: &'static [&'static str];

    /// What [`backward`](CustomOp::backward) reads: nothing else is saved for it.
    const BACKWARD_READS: BackwardReads;

    /// `fn value(i: u32) -> f32`, element `i` of the result. The inputs are arrays of the type
    /// `Elem`, `f32` or `f16`; `size(k)` and `argument(k)` are what [`sizes`](CustomOp::sizes) and
    /// [`arguments`](CustomOp::arguments) give. Accesses outside of an array read some element of
    /// it.
    const WGSL: &'static str;

    /// The shape of the result, from those of the inputs; or what was found and what was expected.
    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String>;

    /// Up to 32 sizes that `cpu` and WGSL compute with.
    fn sizes(&self, inputs: &[&[usize]]) -> Vec<usize>;

    /// Up to 32 numbers for WGSL; `cpu` reads them from `self`.
    fn arguments(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Fill `y`, the elements of the result from index `first` on. Called in parallel, for disjoint
    /// ranges.
    fn cpu<A: Number>(&self, inputs: &[&[A]], sizes: &[usize], first: usize, y: &mut [A]);

    /// The gradient of each input, in its shape, from that of the result, `dy`; none where
    /// [`saved.needs`](SavedTensors::needs) is false.
    fn backward(&self, saved: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>>;
}

/// What the gradient of a [`CustomOp`] is computed from, besides that of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardReads {
    /// Nothing: the op is linear in each input.
    Nothing,
    /// Its inputs.
    Inputs,
    /// Its result.
    Output,
    /// Both.
    InputsAndOutput,
}

/// What is saved for [`CustomOp::backward`].
pub struct SavedTensors<'a> {
    op: &'static str,
    reads: BackwardReads,
    saved: &'a Saved,
}

impl SavedTensors<'_> {
    /// An input; an error unless [`CustomOp::BACKWARD_READS`] has them.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.reads {
            BackwardReads::Inputs | BackwardReads::InputsAndOutput => Ok(self.saved.input(i)),
            _ => Err(self.missing("an input")),
        }
    }

    /// The result; an error unless [`CustomOp::BACKWARD_READS`] has it.
    pub fn output(&self) -> Result<&Tensor> {
        match self.reads {
            BackwardReads::Output | BackwardReads::InputsAndOutput => Ok(self.saved.output(0)),
            _ => Err(self.missing("the result")),
        }
    }

    /// The shape of an input, which is always known.
    pub fn shape(&self, i: usize) -> &[usize] {
        self.saved.specs[i].shape()
    }

    /// Whether an input needs a gradient.
    pub fn needs(&self, i: usize) -> bool {
        self.saved.needs[i]
    }

    fn missing(&self, what: &str) -> Error {
        let why = format!("backward reads {what}, but BACKWARD_READS is {:?}", self.reads);
        Error::Gradient { op: self.op, why }
    }
}

/// The numbers that [`CustomOp::cpu`] computes with: f32 and f64.
pub trait Number:
    Copy
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest number of this type.
    fn from_f64(value: f64) -> Self;
    /// The same number.
    fn into_f64(self) -> f64;
}

impl Number for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    fn into_f64(self) -> f64 {
        self.into()
    }
}

impl Number for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }

    fn into_f64(self) -> f64 {
        self
    }
}

/// Apply a user-defined operation: see [`CustomOp`].
pub fn custom<O: CustomOp>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    ensure!(
        O::NAME,
        inputs.len() == O::INPUTS.len() && (1..=7).contains(&inputs.len()),
        "{} inputs found, expected {} (1 to 7)",
        inputs.len(),
        O::INPUTS.len()
    );
    apply_one(Custom(op), inputs)
}

struct Custom<O>(O);

impl<O: CustomOp> Op for Custom<O> {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        match O::BACKWARD_READS {
            BackwardReads::Nothing => false,
            BackwardReads::Inputs => matches!(slot, Slot::Input(_)),
            BackwardReads::Output => matches!(slot, Slot::Output(_)),
            BackwardReads::InputsAndOutput => true,
        }
    }

    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let op = O::NAME;
        let grads = {
            let saved = SavedTensors { op, reads: O::BACKWARD_READS, saved };
            self.0.backward(&saved, &dys[0])?
        };
        let invalid = |why: String| Error::Gradient { op, why };
        if grads.len() != saved.specs.len() {
            let (found, expected) = (grads.len(), saved.specs.len());
            return Err(invalid(format!("backward gives {found} gradients, expected {expected}")));
        }
        for (i, (grad, spec)) in grads.iter().zip(&saved.specs).enumerate() {
            match grad {
                Some(grad) if grad.spec != *spec => {
                    let (found, expected) = (grad.shape(), spec.shape());
                    let types = (grad.dtype(), spec.dtype());
                    return Err(invalid(format!(
                        "the gradient of {} is {found:?} in {}, expected {expected:?} in {}",
                        O::INPUTS[i],
                        types.0,
                        types.1
                    )));
                }
                None if saved.needs[i] => {
                    return Err(invalid(format!("backward gives none for {}", O::INPUTS[i])));
                }
                _ => {}
            }
        }
        Ok(grads)
    }
}

impl<O: CustomOp> Kernel for Custom<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let dtype = inputs[0].dtype();
        dtype.ensure_float(O::NAME, O::INPUTS[0])?;
        for (input, name) in inputs.iter().zip(O::INPUTS) {
            input.dtype().ensure(dtype, O::NAME, name)?;
        }
        let shape = self.0.shape(&shapes(inputs.iter().copied()));
        let shape = shape.map_err(|why| Error::Shape { op: O::NAME, why })?;
        Ok(smallvec![Spec::new(O::NAME, &shape, dtype)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let sizes = self.0.sizes(&shapes(inputs.iter().map(|input| input.spec)));
        with_dtype!(outputs[0].spec.dtype(), T: Float => {
            type Wide = <T as Float>::Acc;
            // Elements of the wider type are read and written without a copy.
            let room = |len: usize| if size_of::<T>() == size_of::<Wide>() { 0 } else { len };
            let zeros = |len: usize| vec![Wide::ZERO; room(len)];
            let mut buffers: Vec<_> = inputs.iter().map(|x| zeros(x.spec.len())).collect();
            let wide = inputs.iter().zip(&mut buffers);
            let wide: Vec<&[Wide]> =
                wide.map(|(x, buffer)| widened(x.as_slice::<T>(), buffer)).collect();
            for_chunks(outputs[0].as_mut_slice::<T>(), GRAIN, |first, y| {
                let mut buffer = zeros(y.len());
                fill_wide(y, &mut buffer, |y| self.0.cpu(&wide, &sizes, first, y));
            })
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let len = io.outputs[0].spec.len();
        let sizes = self.0.sizes(&shapes(io.inputs.iter().map(|input| input.spec)));
        let arguments = self.0.arguments();
        let mut dims = Dims::default();
        for (name, count) in [("sizes", sizes.len()), ("arguments", arguments.len())] {
            ensure!(
                O::NAME,
                count <= dims.len(),
                "{count} {name}, expected at most {}",
                dims.len()
            );
        }
        for (dim, size) in dims.iter_mut().zip(sizes) {
            [dim[0]] = kernel_sizes(O::NAME, [size])?;
        }
        for (dim, argument) in dims.iter_mut().zip(arguments) {
            dim[1] = (argument as f32).to_bits();
        }
        let types = [("Elem", io.outputs[0].spec.dtype())];
        let program = Program::new::<CustomParams>(&[O::WGSL, ENTRY, ELEMENTS], &types, &[]);
        let params = CustomParams { dims, len: len as u32 };
        io.launch(program.of_user(O::INPUTS), params, Grid::elements(len))
    }
}

params! { struct CustomParams { dims: Dims, len: u32 } }

/// Between the user's `value` and the entry point.
const ENTRY: &str = "
fn size(k: u32) -> u32 {
    return p.dims[k].x;
}

fn argument(k: u32) -> f32 {
    return bitcast<f32>(p.dims[k].y);
}

fn element(i: u32) {
    y[i] = Elem(value(i));
}
";

fn shapes<'a>(specs: impl Iterator<Item = &'a Spec>) -> Vec<&'a [usize]> {
    specs.map(Spec::shape).collect()
}
