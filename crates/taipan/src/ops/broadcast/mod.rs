//! Operands of different shapes: sizes of 1, and leading dimensions that are missing, are repeated.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::BLOCK;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Element, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{Dims, ELEMENTS, Grid, Program, Strided, dims_of, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::ops::reduce::sum_to;
use crate::spec::{Spec, broadcast, strides};
use crate::tensor::Tensor;

/// The second operand of a comparison, or of [`maximum`](Tensor::maximum) and
/// [`minimum`](Tensor::minimum): a tensor, or a number, which is rounded to the tensor's type.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A tensor of the same type, on the same device.
    Tensor(&'a Tensor),
    /// The same number for all elements.
    Number(f64),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<f64> for Operand<'_> {
    fn from(number: f64) -> Self {
        Operand::Number(number)
    }
}

impl Operand<'_> {
    /// As a tensor beside `other`.
    pub(crate) fn beside(self, other: &Tensor) -> Result<Tensor> {
        match self {
            Operand::Tensor(tensor) => Ok(tensor.clone()),
            Operand::Number(number) => Tensor::full(&[], number, other.dtype(), other.device()),
        }
    }
}

impl Tensor {
    /// This tensor repeated along new leading dimensions and dimensions of size 1; PyTorch's
    /// `expand`, but a copy.
    #[doc(alias = "expand")]
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        const OP: &str = "broadcast_to";
        let fits = broadcast(OP, self.shape(), shape).is_ok_and(|both| both == shape);
        ensure!(OP, fits, "{:?} does not broadcast to {shape:?}", self.shape());
        match self.shape() == shape {
            true => Ok(self.clone()),
            false => apply_one(Broadcast(shape.to_vec()), &[self]),
        }
    }
}

/// Broadcasting to a shape that was checked.
struct Broadcast(Vec<usize>);

impl Op for Broadcast {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// The sum over the repeated dimensions.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(sum_to(&dys[0], saved.specs[0].shape())?)])
    }
}

impl Kernel for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast_to"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        Ok(smallvec![Spec::new(self.name(), &self.0, inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let layout = RowLayout::new(&self.0, [inputs[0].spec.shape()]);
        with_dtype!(inputs[0].spec.dtype(), T: Bits => {
            let x = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<T>(), GRAIN, |start, chunk| {
                layout.for_runs(start, chunk, usize::MAX, |out, from| match layout.advances[0] {
                    true => out.copy_from_slice(&x[from[0]..][..out.len()]),
                    false => out.fill(x[from[0]]),
                });
            });
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
        let shape = &self.0;
        let (from, to) = (repeated_strides(inputs[0].spec.shape(), shape), strides(shape));
        let dims = (0..shape.len()).map(|i| [shape[i], from[i], to[i]]).collect();
        let copy = Strided { dims, from: 0, to: 0 };
        gpu.copy(self.name(), &inputs[0], &outputs[0], copy)
    }
}

/// The strides of `from` in each dimension of `to`, to which it broadcasts: 0 where it repeats.
fn repeated_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let own = strides(from).into_iter().zip(from).map(|(s, &size)| if size == 1 { 0 } else { s });
    vec![0; to.len() - from.len()].into_iter().chain(own).collect()
}

/// `N` operands broadcast to one output, as rows: within a row each operand either advances with
/// the output or repeats one element.
pub(super) struct RowLayout<const N: usize> {
    /// Elements of a row.
    row: usize,
    /// Whether each operand advances along a row.
    pub(super) advances: [bool; N],
    /// The outer dimensions, which index the rows: size, and the stride of each operand.
    outer: Vec<(usize, [usize; N])>,
}

impl<const N: usize> RowLayout<N> {
    pub(super) fn new(shape: &[usize], operands: [&[usize]; N]) -> RowLayout<N> {
        // Per dimension, innermost first: its size and whether each operand has it. Adjacent
        // dimensions that agree are merged.
        let mut dims: Vec<(usize, [bool; N])> = Vec::new();
        for i in 0..shape.len() {
            let has = |s: &[usize]| i < s.len() && s[s.len() - 1 - i] != 1;
            let (size, has) = (shape[shape.len() - 1 - i], operands.map(has));
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == has => last.0 *= size,
                _ => dims.push((size, has)),
            }
        }
        let mut dims = dims.into_iter();
        let (row, advances) = dims.next().unwrap_or((1, [true; N]));
        let mut stride = advances.map(|advances| if advances { row } else { 1 });
        let outer = dims
            .map(|(size, has)| {
                let strides = std::array::from_fn(|i| if has[i] { stride[i] } else { 0 });
                for i in 0..N {
                    stride[i] *= if has[i] { size } else { 1 };
                }
                (size, strides)
            })
            .collect();
        RowLayout { row, advances, outer }
    }

    /// Whether no operand is repeated.
    pub(super) fn is_flat(&self) -> bool {
        self.outer.is_empty() && self.advances == [true; N]
    }

    /// The offset of a row in each operand.
    fn offsets(&self, mut row: usize) -> [usize; N] {
        let mut offsets = [0; N];
        for (size, strides) in &self.outer {
            for i in 0..N {
                offsets[i] += row % size * strides[i];
            }
            row /= size;
        }
        offsets
    }

    /// Split `chunk`, which begins at element `start` of the output, into runs of at most `most`
    /// elements within a row, and call `f` with each and the offset of each operand.
    pub(super) fn for_runs<T>(
        &self,
        start: usize,
        mut chunk: &mut [T],
        most: usize,
        mut f: impl FnMut(&mut [T], [usize; N]),
    ) {
        let mut at = start;
        while !chunk.is_empty() {
            let (row, column) = (at / self.row, at % self.row);
            let n = most.min(self.row - column).min(chunk.len());
            let mut from = self.offsets(row);
            for (from, advances) in from.iter_mut().zip(self.advances) {
                *from += if advances { column } else { 0 };
            }
            f(chunk.split_off_mut(..n).unwrap_or_default(), from);
            at += n;
        }
    }
}

/// An operand of which runs are taken, of at most [`BLOCK`] elements.
pub(super) struct Runs<'a, T> {
    operand: &'a [T],
    /// Whether it advances along a row: otherwise a run is one element, repeated.
    advances: bool,
    /// The element that is repeated in the buffer, and how often.
    repeated: (usize, usize),
    buffer: [T; BLOCK],
}

impl<'a, T: Element> Runs<'a, T> {
    pub(super) fn new(operand: &'a [T], advances: bool) -> Self {
        Runs { operand, advances, repeated: (0, 0), buffer: [T::of_i64(0); BLOCK] }
    }

    /// The elements of a run at this offset.
    pub(super) fn at(&mut self, from: usize, len: usize) -> &[T] {
        if self.advances {
            return &self.operand[from..][..len];
        }
        if self.repeated.0 != from || self.repeated.1 < len {
            self.buffer[..len].fill(self.operand[from]);
            self.repeated = (from, len);
        }
        &self.buffer[..len]
    }
}

params! { pub(super) struct BroadcastParams { dims: Dims, rank: u32, len: u32 } }

/// A program whose `element(i)` reads its inputs, of which there are at most three, at `places(i)`.
/// `flat` says that no input is repeated.
pub(super) fn program(
    source: &'static str,
    types: &[(&'static str, DType)],
    consts: &[(&'static str, u32)],
    flat: bool,
) -> Program {
    let source = [wgsl!("places.wgsl"), source, ELEMENTS];
    Program::new::<BroadcastParams>(&source, types, &[consts, &[("FLAT", flat as u32)]].concat())
}

/// Launch such a program.
pub(super) fn launch(io: GpuIo, program: impl Fn(bool) -> Program) -> Result<()> {
    let y = io.outputs[0].spec;
    if io.inputs.iter().all(|x| x.spec.shape() == y.shape()) {
        let params = |len| BroadcastParams { dims: Dims::default(), rank: 0, len };
        return io.map(program(true), params);
    }
    let mut dims: Vec<[usize; 4]> = y.shape().iter().map(|&size| [size, 0, 0, 0]).collect();
    for (k, input) in io.inputs.iter().enumerate() {
        let strides = repeated_strides(input.spec.shape(), y.shape());
        dims.iter_mut().zip(strides).for_each(|(dim, stride)| dim[1 + k] = stride);
    }
    let (dims, rank) = dims_of(io.op, &dims)?;
    let params = BroadcastParams { dims, rank, len: y.len() as u32 };
    io.launch(program(false), params, Grid::elements(y.len()))
}
