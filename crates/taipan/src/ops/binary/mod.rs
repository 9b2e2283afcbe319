//! Element-wise arithmetic of two tensors, with broadcasting.

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{Dims, ELEMENTS, Grid, Program, Strided, dims_of, params};
use crate::kernel::{CpuIo, GpuIo, Kernel};
use crate::ops::reduce::sum_to;
use crate::spec::{Spec, broadcast, strides};
use crate::tensor::Tensor;

/// Element-wise arithmetic. Shapes are aligned at their last dimensions and sizes of 1 are
/// repeated: `[4, 1, 3]` with `[2, 1]` gives `[4, 2, 3]`. Types must be equal.
impl Tensor {
    /// `self + other`
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Add, &[self, other])
    }

    /// `self − other`
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Sub, &[self, other])
    }

    /// `self · other`, element by element; for the matrix product see
    /// [`matmul`](Tensor::matmul).
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Mul, &[self, other])
    }

    /// `self / other`
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        apply_one(Binary::Div, &[self, other])
    }

    /// This tensor repeated along new leading dimensions and dimensions of size 1.
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

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

impl Op for Binary {
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool {
        match (self, slot) {
            (Binary::Mul, Slot::Input(i)) => needs[1 - i],
            (Binary::Div, Slot::Input(1)) => true,
            (Binary::Div, Slot::Output(0)) => needs[1],
            _ => false,
        }
    }

    /// Before the sum over repeated dimensions:
    /// `+`: `da = dy, db = dy`; `−`: `db = −dy`; `·`: `da = dy·b, db = dy·a`;
    /// `/`: `da = dy/b, db = −da·y`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let dy = &dys[0];
        let grad = |i: usize| match (self, i) {
            (Binary::Add, _) | (Binary::Sub, 0) => Ok(dy.clone()),
            (Binary::Sub, _) => dy.neg(),
            (Binary::Mul, i) => dy.mul(saved.input(1 - i)),
            (Binary::Div, 0) => dy.div(saved.input(1)),
            (Binary::Div, _) => dy.div(saved.input(1))?.mul(saved.output(0))?.neg(),
        };
        (0..2)
            .map(|i| match saved.needs[i] {
                true => Ok(Some(sum_to(&grad(i)?, saved.specs[i].shape())?)),
                false => Ok(None),
            })
            .collect()
    }
}

impl Kernel for Binary {
    fn name(&self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
        }
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let op = self.name();
        inputs[0].dtype().ensure_float(op, "the left side")?;
        inputs[1].dtype().ensure(inputs[0].dtype(), op, "the right side")?;
        let shape = broadcast(op, inputs[0].shape(), inputs[1].shape())?;
        Ok(vec![Spec::new(op, &shape, inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let shape = outputs[0].spec.shape();
        let layout = RowLayout::new(shape, inputs[0].spec.shape(), inputs[1].spec.shape());
        with_dtype!(inputs[0].spec.dtype(), T: Float + f64 => {
            let (a, b) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
            layout.run::<T>(*self, a, b, outputs[0].as_mut_slice::<T>())
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let (a, b, y) = (io.inputs[0].spec, io.inputs[1].spec, io.outputs[0].spec);
        if a == b {
            let params = |len| BinaryParams { dims: Dims::default(), rank: 0, len };
            return io.map(program(*self, y.dtype(), true), params);
        }
        let [a, b] = [a, b].map(|x| repeated_strides(x.shape(), y.shape()));
        let dims: Vec<_> = y.shape().iter().zip(a).zip(b).map(|((&n, a), b)| [n, a, b]).collect();
        let (dims, rank) = dims_of(self.name(), &dims)?;
        let params = BinaryParams { dims, rank, len: y.len() as u32 };
        io.launch(program(*self, y.dtype(), false), params, Grid::elements(y.len()))
    }
}

params! { struct BinaryParams { dims: Dims, rank: u32, len: u32 } }

fn program(op: Binary, elem: DType, flat: bool) -> Program {
    Program::new::<BinaryParams>(
        &[include_str!("arithmetic.wgsl"), ELEMENTS],
        &[("Elem", elem)],
        &[("OP", op as u32), ("FLAT", flat as u32)],
    )
}

/// The strides of `from` in each dimension of `to`, to which it broadcasts: 0 where it repeats.
fn repeated_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let own = strides(from).into_iter().zip(from).map(|(s, &size)| if size == 1 { 0 } else { s });
    vec![0; to.len() - from.len()].into_iter().chain(own).collect()
}

/// Two operands broadcast to one output, as rows: within a row each operand either advances with
/// the output or repeats one element.
struct RowLayout {
    /// Elements of a row.
    row: usize,
    /// Whether each operand advances along a row.
    advances: [bool; 2],
    /// The outer dimensions, which index the rows: size, and the stride of each operand.
    outer: Vec<(usize, [usize; 2])>,
}

impl RowLayout {
    fn new(shape: &[usize], a: &[usize], b: &[usize]) -> RowLayout {
        // Per dimension, innermost first: its size and whether each operand has it. Adjacent
        // dimensions that agree are merged.
        let mut dims: Vec<(usize, [bool; 2])> = Vec::new();
        for i in 0..shape.len() {
            let has = |s: &[usize]| i < s.len() && s[s.len() - 1 - i] != 1;
            let (size, has) = (shape[shape.len() - 1 - i], [has(a), has(b)]);
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == has => last.0 *= size,
                _ => dims.push((size, has)),
            }
        }
        let mut dims = dims.into_iter();
        let (row, advances) = dims.next().unwrap_or((1, [true; 2]));
        let mut stride = advances.map(|advances| if advances { row } else { 1 });
        let outer = dims
            .map(|(size, has)| {
                let strides = [0, 1].map(|i| if has[i] { stride[i] } else { 0 });
                for i in 0..2 {
                    stride[i] *= if has[i] { size } else { 1 };
                }
                (size, strides)
            })
            .collect();
        RowLayout { row, advances, outer }
    }

    /// The offset of a row in each operand.
    fn offsets(&self, mut row: usize) -> [usize; 2] {
        let mut offsets = [0; 2];
        for (size, strides) in &self.outer {
            for i in 0..2 {
                offsets[i] += row % size * strides[i];
            }
            row /= size;
        }
        offsets
    }

    /// Split `chunk`, which begins at element `start` of the output, into runs of at most `most`
    /// elements within a row, and call `f` with each and the offset of each operand.
    fn for_runs<T>(
        &self,
        start: usize,
        mut chunk: &mut [T],
        most: usize,
        mut f: impl FnMut(&mut [T], [usize; 2]),
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

    fn run<T: Float>(&self, op: Binary, a: &[T], b: &[T], out: &mut [T]) {
        const BLOCK: usize = 1024;
        for_chunks(out, GRAIN, |start, chunk| {
            let mut wide = [[T::Acc::ZERO; BLOCK]; 2];
            self.for_runs(start, chunk, BLOCK, |out, from| {
                for (k, src) in [a, b].into_iter().enumerate() {
                    let wide = &mut wide[k][..out.len()];
                    if self.advances[k] {
                        T::widen(&src[from[k]..][..out.len()], wide);
                    } else {
                        T::widen(&src[from[k]..][..1], &mut wide[..1]);
                        wide.fill(wide[0]);
                    }
                }
                let [x, y] = &mut wide;
                arithmetic(op, &mut x[..out.len()], &y[..out.len()]);
                T::narrow(&x[..out.len()], out);
            });
        });
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

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.name(), &self.0, inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let from = inputs[0].spec.shape();
        let layout = RowLayout::new(&self.0, from, from);
        with_dtype!(inputs[0].spec.dtype(), T: Element => {
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

#[inline(always)]
fn zip<A: Real>(x: &mut [A], y: &[A], f: impl Fn(A, A) -> A) {
    for (x, y) in x.iter_mut().zip(y) {
        *x = f(*x, *y);
    }
}

vectorized! {
    /// `x = x op y`
    fn arithmetic<I: Isa, A: Real>(op: Binary, x: &mut [A], y: &[A]) {
        match op {
            Binary::Add => zip(x, y, |x, y| x + y),
            Binary::Sub => zip(x, y, |x, y| x - y),
            Binary::Mul => zip(x, y, |x, y| x * y),
            Binary::Div => zip(x, y, |x, y| x / y),
        }
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let all = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];
    all.into_iter().flat_map(|op| [true, false].map(|flat| program(op, elem, flat))).collect()
}
