//! Permutations of dimensions.

use smallvec::smallvec;

use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::with_dtype;
use crate::error::{Result, ensure};
use crate::gpu::Strided;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results};
use crate::spec::{Spec, ensure_dim, strides};
use crate::tensor::Tensor;

impl Tensor {
    /// Two dimensions exchanged. Copies; a transposed weight of [`linear`](crate::linear) needs
    /// no copy, see [`Weight::nk`](crate::Weight::nk).
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor> {
        const OP: &str = "transpose";
        ensure_dim(OP, a, self.shape())?;
        ensure_dim(OP, b, self.shape())?;
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// Dimension `i` of the result is dimension `order[i]` of this tensor. Copies.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        apply_one(Permute(order.to_vec()), &[self])
    }
}

struct Permute(Vec<usize>);

impl Op for Permute {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// The inverse order.
    fn backward(&self, _: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let mut inverse = vec![0; self.0.len()];
        for (i, &dim) in self.0.iter().enumerate() {
            inverse[dim] = i;
        }
        Ok(vec![Some(dys[0].permute(&inverse)?)])
    }
}

impl Kernel for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (order, shape) = (&self.0, inputs[0].shape());
        let mut sorted = order.clone();
        sorted.sort_unstable();
        ensure!(
            self.name(),
            sorted.into_iter().eq(0..shape.len()),
            "{order:?} is no order of the dimensions of {shape:?}"
        );
        let shape: Vec<usize> = order.iter().map(|&dim| shape[dim]).collect();
        Ok(smallvec![Spec::new(self.name(), &shape, inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let before = strides(inputs[0].spec.shape());
        let shape = outputs[0].spec.shape();
        let dims: Vec<(usize, usize)> =
            self.0.iter().zip(shape).map(|(&dim, &size)| (size, before[dim])).collect();
        let (&(row, stride), outer) = dims.split_last().unwrap_or((&(1, 1), &[]));
        let offset = |mut index: usize| {
            let mut offset = 0;
            for (size, stride) in outer.iter().rev() {
                offset += index % size * stride;
                index /= size;
            }
            offset
        };
        with_dtype!(inputs[0].spec.dtype(), T: Bits => {
            // Several rows are written together: for a transposed matrix, their elements are
            // adjacent in the input and share cache lines.
            const ROWS: usize = 16;
            let x = inputs[0].as_slice::<T>();
            let rows = (GRAIN / row.max(1)).max(1).next_multiple_of(ROWS);
            for_chunks(outputs[0].as_mut_slice::<T>(), rows * row, |start, chunk| {
                for (i, out) in chunk.chunks_mut(ROWS * row).enumerate() {
                    let mut offsets = [0; ROWS];
                    let offsets = &mut offsets[..out.len() / row];
                    for (j, at) in offsets.iter_mut().enumerate() {
                        *at = offset(start / row + i * ROWS + j);
                    }
                    if stride == 1 {
                        for (out, &mut at) in out.chunks_mut(row).zip(offsets) {
                            out.copy_from_slice(&x[at..at + row]);
                        }
                        continue;
                    }
                    for column in 0..row {
                        for (j, at) in offsets.iter().enumerate() {
                            out[j * row + column] = x[at + column * stride];
                        }
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
        let (from, to) = (strides(inputs[0].spec.shape()), strides(outputs[0].spec.shape()));
        let shape = outputs[0].spec.shape();
        let dims =
            self.0.iter().enumerate().map(|(i, &dim)| [shape[i], from[dim], to[i]]).collect();
        gpu.copy(self.name(), &inputs[0], &outputs[0], Strided { dims, from: 0, to: 0 })
    }
}
