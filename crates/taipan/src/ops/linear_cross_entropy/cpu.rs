//! The loss on the CPU.

use std::ops::Range;

use super::{LinearCrossEntropy, OP, block_len, blocks, by_need, logits_of};
use crate::cpu::gemm::{Dense, Finish, Gemm, Source};
use crate::cpu::map::add;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::cpu::{CpuBuffer, CpuView};
use crate::dtype::{Float, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;
use crate::ops::cross_entropy::{Row, scale, store};
use crate::ops::embedding::ensure_below;
use crate::product::{Layout, Product, Side};

pub(super) fn forward(op: &LinearCrossEntropy, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let (targets, ignore) = (inputs[2].as_slice::<u32>(), op.ignore);
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let logits = Logits::<T>::new(op.layout, inputs);
        ensure_below(OP, "target", targets, logits.product.n, ignore)?;
        let mut block = logits.room()?;
        let mut rows = vec![Row::<<T as Float>::Acc>::NEW; logits.product.m];
        for classes in blocks(logits.product) {
            let mut rows: Vec<_> = rows.iter_mut().zip(targets).collect();
            let first = classes.start;
            logits.compute(classes, &mut block, &mut rows, &|(row, target), columns, logits| {
                if Some(**target) != ignore {
                    row.take(first + columns.start, logits, **target);
                }
            })?;
        }
        store(&rows, targets, ignore, outputs);
    });
    Ok(())
}

pub(super) fn backward(
    op: &LinearCrossEntropy,
    needs: [bool; 2],
    CpuIo { inputs, outputs }: CpuIo,
) -> Result<()> {
    let [mut dx, mut dw] = by_need(needs, outputs.iter_mut());
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let dw = dw.as_mut().map(|dw| dw.as_mut_slice::<T>());
        let Some(dx) = dx.as_mut().map(|dx| dx.as_mut_slice::<T>()) else {
            return op.grads::<T>(inputs, None, dw);
        };
        // Terms are summed in the wide type.
        match T::as_acc_mut(dx) {
            Some(dx) => op.grads::<T>(inputs, Some(dx), dw),
            None => {
                let bytes = inputs[0].spec.len() * size_of::<<T as Float>::Acc>();
                let mut sums = CpuBuffer::scratch(OP, bytes)?;
                op.grads::<T>(inputs, Some(sums.as_mut_slice()), dw)?;
                let sums = sums.as_slice::<<T as Float>::Acc>();
                for_chunks(dx, GRAIN, |start, dx| T::narrow(&sums[start..][..dx.len()], dx));
                Ok(())
            }
        }
    })
}

impl LinearCrossEntropy {
    fn grads<T: Float>(
        &self,
        inputs: &[CpuView],
        mut dx: Option<&mut [T::Acc]>,
        mut dw: Option<&mut [T]>,
    ) -> Result<()> {
        let logits = Logits::<T>::new(self.layout, inputs);
        let (Product { m, k, n: v, .. }, ignore) = (logits.product, self.ignore);
        let mut block = logits.room()?;
        let rows = Row::load(inputs[3].as_slice::<T::Acc>());
        let mut rows: Vec<_> = rows.iter().zip(inputs[2].as_slice::<u32>()).collect();
        let scale = scale(&inputs[4], &inputs[5]);
        let mut term = CpuBuffer::scratch(OP, dx.as_ref().map_or(0, |dx| size_of_val(*dx)))?;
        for classes in blocks(logits.product) {
            let n = classes.len();
            let finish =
                |(row, target): &mut (&Row<T::Acc>, &u32), columns: Range<usize>, p: &mut [_]| {
                    let target = Some(**target).filter(|_| Some(**target) != ignore);
                    row.grad(classes.start + columns.start, p, target, scale);
                };
            logits.compute(classes.clone(), &mut block, &mut rows, &finish)?;
            let p = Dense { data: &block.as_slice::<T::Acc>()[..m * n], stride: n };
            let product = Product { n, ..logits.product };
            if let Some(dw) = dw.as_deref_mut() {
                let (product, side) = product.gradient(Side::Right);
                let (left, right): (&dyn Source<_>, &dyn Source<_>) = match side {
                    Side::Left => (&p, &logits.x),
                    Side::Right => (&logits.x, &p),
                };
                let gemm = Gemm { product, left, right };
                match self.layout {
                    Layout::Transposed => {
                        gemm.store(&mut dw[classes.start * k..classes.end * k])?;
                    }
                    Layout::RowMajor => {
                        let mut columns = CpuBuffer::scratch(OP, k * n * size_of::<T>())?;
                        gemm.store(columns.as_mut_slice::<T>())?;
                        for (dw, columns) in dw.chunks_mut(v).zip(columns.as_slice::<T>().chunks(n))
                        {
                            dw[classes.clone()].copy_from_slice(columns);
                        }
                    }
                }
            }
            if let Some(dx) = dx.as_deref_mut() {
                let w = logits.weight(classes.clone());
                let (product, _) = product.gradient(Side::Left);
                let gemm = Gemm { product, left: &p, right: &w };
                if classes.start == 0 {
                    gemm.store(dx)?;
                } else {
                    gemm.store(term.as_mut_slice::<T::Acc>())?;
                    let term = term.as_slice::<T::Acc>();
                    for_chunks(dx, GRAIN, |start, dx| add(dx, &term[start..][..dx.len()]));
                }
            }
        }
        Ok(())
    }
}

/// The logits, one block of classes at a time.
struct Logits<'a, T> {
    product: Product,
    x: Dense<'a, T>,
    w: Dense<'a, T>,
}

impl<'a, T: Float> Logits<'a, T> {
    /// From the inputs `x` and `w`.
    fn new(layout: Layout, inputs: &[CpuView<'a>]) -> Self {
        let product = logits_of(layout, inputs[0].spec, inputs[1].spec);
        Logits { product, x: Dense::of(&inputs[0]), w: Dense::of(&inputs[1]) }
    }

    /// A buffer for a block.
    fn room(&self) -> Result<CpuBuffer> {
        let Product { m, n, .. } = self.product;
        CpuBuffer::scratch(OP, m * block_len(self.product).min(n) * size_of::<T::Acc>())
    }

    /// The weight of these classes.
    fn weight(&self, classes: Range<usize>) -> Dense<'a, T> {
        let Dense { data, stride } = self.w;
        let first = match self.product.right {
            Layout::RowMajor => classes.start,
            Layout::Transposed => classes.start * stride,
        };
        Dense { data: data.get(first..).unwrap_or_default(), stride }
    }

    /// `finish(x·w)` of these classes, `[m, n]`, in the wide type, with data per row.
    fn compute<X: Send>(
        &self,
        classes: Range<usize>,
        block: &mut CpuBuffer,
        rows: &mut [X],
        finish: Finish<T::Acc, X>,
    ) -> Result<()> {
        let product = Product { n: classes.len(), ..self.product };
        let block = &mut block.as_mut_slice::<T::Acc>()[..product.m * product.n];
        let gemm = Gemm { product, left: &self.x, right: &self.weight(classes) };
        gemm.store_finished(block, rows, finish)
    }
}
