//! The largest elements along the last dimension.

use std::cmp::Reverse;

use smallvec::smallvec;

use crate::autograd::{Op, Saved, Slot, apply};
use crate::cpu::reduce;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{DType, Element, Float, Real, widened, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{ELEMENTS, FLOAT_ORDER, Grid, LINES, Program, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// The `k` largest elements along the last dimension and their indices, from the largest down.
    ///
    /// | tensor | shape | type |
    /// |---|---|---|
    /// | `self` | `[…, n]` | a float |
    /// | values | `[…, k]`, with `k ≤ n` | the same |
    /// | indices | `[…, k]` | `u32` |
    ///
    /// Of equal elements, those with smaller indices come first; a NaN counts as largest. Only the
    /// values have a gradient, which flows back to the selected elements.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[1f32, 5.0, 3.0, 5.0], &[4], &Device::Cpu)?;
    /// let (values, indices) = x.topk(3)?;
    /// assert_eq!(values.read_blocking::<f32>()?, [5.0, 5.0, 3.0]);
    /// assert_eq!(indices.read_blocking::<u32>()?, [1, 3, 2]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn topk(&self, k: usize) -> Result<(Tensor, Tensor)> {
        let mut results = apply(TopK(k), &[self])?;
        let indices = results.swap_remove(1).detached();
        Ok((results.swap_remove(0), indices))
    }
}

/// The `k` largest elements, and their indices.
pub(super) struct TopK(pub(super) usize);

impl Op for TopK {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Output(1)
    }

    /// `dx[indices] = dy`, 0 elsewhere; indices are distinct.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let x = saved.specs[0].clone();
        let (k, n) = (self.0, last(&x));
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            with_dtype!(inputs[0].spec.dtype(), T: Element => {
                let (dy, indices) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<u32>());
                let rows = (GRAIN / n.max(1)).max(1);
                for_chunks(outputs[0].as_mut_slice::<T>(), rows * n, |start, chunk| {
                    chunk.fill(T::of_f64(0.0));
                    for (i, dx) in chunk.chunks_mut(n).enumerate() {
                        let at = (start / n + i) * k..(start / n + i + 1) * k;
                        for (j, dy) in indices[at.clone()].iter().zip(&dy[at]) {
                            dx[*j as usize] = *dy;
                        }
                    }
                });
            });
            Ok(())
        };
        let gpu = |io: GpuIo| {
            io.gpu.fill(io.op, io.outputs[0].data, 0)?;
            let len = io.inputs[0].spec.len();
            let params = TopKGradParams { len: len as u32, n: n as u32, k: k as u32 };
            io.launch(grad_program(io.outputs[0].spec.dtype()), params, Grid::elements(len))
        };
        let inputs = [&dys[0], saved.output(1)];
        Ok(vec![Some(compute_one((self.name(), "backward"), &inputs, x, cpu, gpu)?)])
    }
}

impl Kernel for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (shape, k) = (inputs[0].shape(), self.0);
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        ensure!(self.name(), !shape.is_empty(), "the input is [], expected 1 dimension or more");
        let (rows, n) = (&shape[..shape.len() - 1], last(inputs[0]));
        ensure!(self.name(), k <= n, "k is {k}, expected at most {n} for {shape:?}");
        ensure!(self.name(), u32::try_from(n).is_ok(), "{n} elements exceed a u32 index");
        let shape = [rows, &[k]].concat();
        let spec = |dtype| Spec::new(self.name(), &shape, dtype);
        Ok(smallvec![spec(inputs[0].dtype())?, spec(DType::U32)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [values, indices] = outputs else { unreachable!("`outputs` names two") };
        let (n, k) = (last(inputs[0].spec), self.0);
        if values.spec.len() == 0 {
            return Ok(());
        }
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            let rows = (GRAIN / n).max(1);
            for_chunks(indices.as_mut_slice::<u32>(), rows * k, |start, chunk| {
                for (i, indices) in chunk.chunks_mut(k).enumerate() {
                    largest(&x[(start / k + i) * n..][..n], indices);
                }
            });
            let indices = indices.as_mut_slice::<u32>();
            for (i, (value, j)) in values.as_mut_slice::<T>().iter_mut().zip(indices).enumerate() {
                *value = x[i / k * n + *j as usize];
            }
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let (n, k) = (last(io.inputs[0].spec), self.0);
        let rows = io.outputs[0].spec.len() / k;
        // A chunk takes four to eight passes to find its smallest element, usually four, and one
        // more.
        let passes = 5 * k.div_ceil(CHUNK);
        let params = TopKParams { lines: rows as u32, n: n as u32, k: k as u32 };
        let program = value_program(io.inputs[0].spec.dtype(), width(n));
        io.launch(program, params, Grid::lines(rows, passes * rows * n))
    }
}

/// The size of the last dimension.
fn last(spec: &Spec) -> usize {
    spec.shape()[spec.shape().len() - 1]
}

/// The indices of the `k` largest elements of a row. Keeps up to `2k` candidates and then drops the
/// smaller half: `O(n + k·log k)`.
fn largest<T: Float>(x: &[T], indices: &mut [u32]) {
    const BLOCK: usize = 64;
    let k = indices.len();
    // Greater for greater elements and, among equal ones, for smaller indices.
    type Key = (u64, Reverse<u32>);
    let mut candidates: Vec<Key> = Vec::new();
    // Elements that do not exceed this are not among the k largest.
    let mut least = 0;
    let mut wide = [T::Acc::ZERO; BLOCK];
    for (i, x) in x.chunks(BLOCK).enumerate() {
        let x = widened(x, &mut wide[..x.len()]);
        if reduce::max(x).is_none_or(|max| order(max) <= least) {
            continue;
        }
        let keys = x.iter().zip((i * BLOCK) as u32..).map(|(x, j)| (order(*x), Reverse(j)));
        candidates.extend(keys.filter(|(order, _)| *order > least));
        if candidates.len() > 2 * k {
            least = candidates.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1.0;
            candidates.truncate(k);
        }
    }
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    indices.iter_mut().zip(candidates).for_each(|(index, (_, Reverse(j)))| *index = j);
}

/// Maps a float to an integer with the same order; NaN is the greatest, and 0 is below all.
fn order<A: Real>(x: A) -> u64 {
    let bits = x.to_f64().to_bits();
    let magnitude = bits & (u64::MAX >> 1);
    match magnitude {
        _ if magnitude > f64::INFINITY.to_bits() => u64::MAX,
        0 => 1 << 63,
        _ if magnitude == bits => magnitude | 1 << 63,
        _ => !bits,
    }
}

/// Elements that a workgroup sorts at a time.
const CHUNK: usize = 1024;

params! { struct TopKParams { lines: u32, n: u32, k: u32 } }
params! { struct TopKGradParams { len: u32, n: u32, k: u32 } }

fn value_program(elem: DType, width: u32) -> Program {
    let source = [FLOAT_ORDER, wgsl!("topk.wgsl"), LINES];
    let consts = [("WIDTH", width), ("CHUNK", CHUNK as u32)];
    Program::new::<TopKParams>(&source, &[("Elem", elem)], &consts)
}

fn grad_program(elem: DType) -> Program {
    let source = [wgsl!("grad.wgsl"), ELEMENTS];
    Program::new::<TopKGradParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let values = crate::gpu::WIDTHS.into_iter().map(|width| value_program(elem, width));
    values.chain([grad_program(elem)]).collect()
}
