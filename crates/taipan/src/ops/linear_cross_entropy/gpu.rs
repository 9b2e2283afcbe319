//! The loss on a GPU.

use std::ops::Range;

use super::{LinearCrossEntropy, OP, blocks, by_need, logits_of};
use crate::DType;
use crate::error::Result;
use crate::gpu::gemm::{Fused, Gemm};
use crate::gpu::{Gpu, GpuView, LocalTensor, Strided, kernel_sizes};
use crate::kernel::{GpuIo, Kernel};
use crate::ops::binary::Binary;
use crate::ops::cast::Cast;
use crate::ops::cross_entropy::GpuLoss;
use crate::product::{Layout, Product, Side};

pub(super) fn forward(op: &LinearCrossEntropy, io: GpuIo) -> Result<()> {
    let logits = Logits::new(op, io);
    // The weight is bound in blocks, so launches do not check the number of classes.
    kernel_sizes(OP, [logits.product.n])?;
    let loss = logits.loss(op, io);
    loss.forward(io.outputs, |rows| {
        blocks(logits.product).try_for_each(|classes| {
            let block = logits.compute(classes.len(), &logits.weight(classes.clone())?)?;
            loss.take(block.view().elements(), classes, rows)
        })
    })
}

pub(super) fn backward(op: &LinearCrossEntropy, needs: [bool; 2], io: GpuIo) -> Result<()> {
    let GpuIo { gpu, inputs, outputs, .. } = io;
    let [dx, dw] = by_need(needs, outputs.iter());
    let logits = Logits::new(op, io);
    if logits.product.m == 0 {
        return dw.map_or(Ok(()), |dw| gpu.fill(OP, dw.data, 0));
    }
    let loss = logits.loss(op, io);
    let saved = [3, 4, 5].map(|i| inputs[i].all());
    let mut sum: Option<LocalTensor> = None;
    for classes in blocks(logits.product) {
        let w = logits.weight(classes.clone())?;
        let block = logits.compute(classes.len(), &w)?;
        let p = LocalTensor::new(OP, gpu, block.spec.shape(), DType::F32)?;
        loss.grad(block.view().elements(), classes.clone(), saved, p.view().elements())?;
        drop(block);
        if let Some(dw) = dw {
            logits.put_dw(&p, classes, dw)?;
        }
        if dx.is_some() {
            let term = logits.dx(&p, &w)?;
            sum = Some(match sum {
                None => term,
                Some(sum) => {
                    let next = LocalTensor::new(OP, gpu, term.spec.shape(), DType::F32)?;
                    let (inputs, outputs) = (&[sum.view(), term.view()], &[next.view()]);
                    Binary::Add.gpu(GpuIo { inputs, outputs, ..io })?;
                    next
                }
            });
        }
    }
    match (dx, sum) {
        (Some(dx), Some(sum)) => {
            Cast(dx.spec.dtype()).gpu(GpuIo { inputs: &[sum.view()], outputs: &[*dx], ..io })
        }
        _ => Ok(()),
    }
}

/// The products, one block of classes at a time.
struct Logits<'a> {
    gpu: &'a Gpu,
    product: Product,
    x: &'a GpuView<'a>,
    w: &'a GpuView<'a>,
}

impl<'a> Logits<'a> {
    /// From the inputs `x` and `w`.
    fn new(op: &LinearCrossEntropy, GpuIo { gpu, inputs, .. }: GpuIo<'a>) -> Self {
        let product = logits_of(op.layout, inputs[0].spec, inputs[1].spec);
        Logits { gpu, product, x: &inputs[0], w: &inputs[1] }
    }

    fn loss(&self, op: &LinearCrossEntropy, io: GpuIo<'a>) -> GpuLoss<'a> {
        let (ignore, classes) = (op.ignore, self.product.n);
        GpuLoss { op: OP, gpu: io.gpu, ignore, classes, targets: &io.inputs[2] }
    }

    /// The weight of these classes: a window of its rows, or a copy of its columns.
    fn weight(&self, classes: Range<usize>) -> Result<LocalTensor> {
        let Product { k, n: v, right, .. } = self.product;
        match right {
            Layout::Transposed => self.w.rows(OP, classes),
            Layout::RowMajor => {
                let n = classes.len();
                let columns = LocalTensor::new(OP, self.gpu, &[k, n], self.w.spec.dtype())?;
                let copy = Strided { dims: vec![[k, v, n], [n, 1, 1]], from: classes.start, to: 0 };
                self.gpu.copy(OP, self.w, &columns.view(), copy)?;
                Ok(columns)
            }
        }
    }

    /// `x·w` of `n` classes, `[m, n]`, in f32.
    fn compute(&self, n: usize, w: &LocalTensor) -> Result<LocalTensor> {
        let product @ Product { m, .. } = self.block(n);
        let logits = LocalTensor::new(OP, self.gpu, &[m, n], DType::F32)?;
        self.store(product, [self.x, &w.view()], false, &logits)?;
        Ok(logits)
    }

    /// `p·wᵀ`, `[m, k]`, in f32.
    fn dx(&self, p: &LocalTensor, w: &LocalTensor) -> Result<LocalTensor> {
        let (product, _) = self.block(p.spec.shape()[1]).gradient(Side::Left);
        let dx = LocalTensor::new(OP, self.gpu, &[product.m, product.n], DType::F32)?;
        self.store(product, [&p.view(), &w.view()], false, &dx)?;
        Ok(dx)
    }

    /// Write `xᵀ·p` to the columns of `dw` of these classes.
    fn put_dw(&self, p: &LocalTensor, classes: Range<usize>, dw: &GpuView) -> Result<()> {
        let Product { k, n: v, right, .. } = self.product;
        let n = classes.len();
        let (product, side) = self.block(n).gradient(Side::Right);
        let operands = match side {
            Side::Left => [&p.view(), self.x],
            Side::Right => [self.x, &p.view()],
        };
        match right {
            Layout::Transposed => self.store(product, operands, true, &dw.rows(OP, classes)?),
            Layout::RowMajor => {
                let block = LocalTensor::new(OP, self.gpu, &[k, n], dw.spec.dtype())?;
                self.store(product, operands, true, &block)?;
                let copy = Strided { dims: vec![[k, n, v], [n, 1, 1]], from: 0, to: classes.start };
                self.gpu.copy(OP, &block.view(), dw, copy)
            }
        }
    }

    /// The product of so many classes.
    fn block(&self, n: usize) -> Product {
        Product { n, ..self.product }
    }

    fn store(
        &self,
        product: Product,
        [left, right]: [&GpuView; 2],
        split_k: bool,
        y: &LocalTensor,
    ) -> Result<()> {
        Gemm { product, left, right, fused: Fused::NONE, split_k }.store(OP, self.gpu, &y.view())
    }
}
