//! The loss of a classifier whose logits are a product that is never materialised: for a large
//! vocabulary it would be the largest tensor of all.
//!
//! The classes are split into blocks. Forward adds the logits of each block to the state of each
//! row ([`Row`]). Backward recomputes them and turns them into their gradients; each block gives
//! its columns of `dw`, and a term of `dx`.

use std::ops::Range;

use super::gpu::{self, Fused, LocalTensor, Side, Stored};
use super::{Layout, Weight};
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::CpuBuffer;
use crate::cpu::fold;
use crate::cpu::gemm::{Dense, Finish, LaneSums, Lines, Operand, Product, gemm};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{Gpu, GpuBuffer, Strided, kernel_sizes};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run};
use crate::ops::binary::Binary;
use crate::ops::cast::Cast;
use crate::ops::cross_entropy::{
    GpuLoss, Row, ensure_targets, loss_spec, saved_specs, scale, store,
};
use crate::ops::embedding::ensure_below;
use crate::ops::function::Activation;
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "linear_cross_entropy";

/// [`cross_entropy`](crate::cross_entropy) of the logits `x·w`, which are never materialised:
/// besides its result this takes some blocks of at most 8 MiB (16 in f64) and, for backward, a few
/// tensors of the size of `x`.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | `[…, k]` |
/// | `w` | `[k, v]`, or [`Weight::nk`] `[v, k]`, as the table of [`embedding`](crate::embedding) |
/// | `targets` | `[…]`, of type `u32`: classes below `v`, or `ignore` |
/// | result | `[]`, in f32, or f64 for f64 |
///
/// Logits are not rounded to the type of `x` and `w`. Backward recomputes them, so that there are
/// four products in all. On a GPU a `w` stored as `[k, v]` is limited to the size of a binding;
/// with [`Weight::nk`] it may be as large as a tensor can be.
///
/// ```
/// use taipan::{DType, Device, Tensor, Weight, linear_cross_entropy};
///
/// let x = Tensor::randn(&[2, 5, 8], 1, DType::F32, &Device::Cpu)?.tracked();
/// let table = Tensor::randn(&[100, 8], 2, DType::F32, &Device::Cpu)?.tracked();
/// let targets = Tensor::new(&[1u32, 5, 9, 99, 0, 3, 3, 7, 8, 8], &[2, 5], &Device::Cpu)?;
/// let loss = linear_cross_entropy(&x, Weight::nk(&table), &targets, Some(0))?;
/// let grads = loss.backward()?;
/// assert_eq!(grads.of(&table)?.shape(), [100, 8]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn linear_cross_entropy<'a>(
    x: &Tensor,
    w: impl Into<Weight<'a>>,
    targets: &Tensor,
    ignore: Option<u32>,
) -> Result<Tensor> {
    let Weight { tensor: w, layout } = w.into();
    apply_one(LinearCrossEntropy { layout, ignore, rows: targets.len() }, &[x, w, targets])
}

/// Elements of a block of logits, and the limits of its columns: enough for a fast product, few
/// enough for a small block of `w`. Blocks begin at multiples of `UNIT`, which keeps the alignment
/// of bindings.
const BLOCK: usize = 1 << 21;
const COLUMNS: [usize; 2] = [256, 4096];
const UNIT: usize = 128;

/// `[m, k]·[k, v]`
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    v: usize,
}

impl Sizes {
    /// Of `x` and `w`, which were checked.
    fn new(layout: Layout, x: &Spec, w: &Spec) -> Sizes {
        let (x, [first, second]) = (x.shape(), [w.shape()[0], w.shape()[1]]);
        let (k, v) = match layout {
            Layout::Kn => (first, second),
            Layout::Nk => (second, first),
        };
        Sizes { m: x[..x.len() - 1].iter().product(), k, v }
    }

    /// Columns of a block.
    fn step(self) -> usize {
        (BLOCK / self.m.max(1)).clamp(COLUMNS[0], COLUMNS[1]) / UNIT * UNIT
    }

    fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.v).step_by(self.step()).map(move |at| at..(at + self.step()).min(self.v))
    }
}

/// Inputs `x`, `w` and `targets`; results and saved tensors as those of `cross_entropy`.
struct LinearCrossEntropy {
    layout: Layout,
    ignore: Option<u32>,
    rows: usize,
}

impl Op for LinearCrossEntropy {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(_))
    }

    /// `p = (softmax(x·w) − onehot(target))·dy/count`, `dx = p·wᵀ`, `dw = xᵀ·p`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let Self { layout, ignore, .. } = *self;
        let kernel =
            LinearCrossEntropyGrad { layout, ignore, needs: [saved.needs[0], saved.needs[1]] };
        let mut inputs: Vec<&Tensor> = (0..3).map(|i| saved.input(i)).collect();
        inputs.extend([saved.output(1), saved.output(2), &dys[0]]);
        let mut grads = run(&kernel, &inputs)?.into_iter();
        let mut of = |i: usize| if saved.needs[i] { grads.next() } else { None };
        Ok(vec![of(0), of(1), None])
    }
}

impl Kernel for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (x, w) = (inputs[0].shape(), inputs[1].shape());
        inputs[0].dtype().ensure_float(OP, "the input")?;
        inputs[1].dtype().ensure(inputs[0].dtype(), OP, "the weight")?;
        let [lead @ .., k] = x else {
            return Err(Error::Shape { op: OP, why: "the input is [], expected […, k]".into() });
        };
        let (w_k, form) = match self.layout {
            Layout::Kn => (0, "[k, v]"),
            Layout::Nk => (1, "[v, k]"),
        };
        ensure!(
            OP,
            w.len() == 2 && w[w_k] == *k,
            "the weight is {w:?}, expected {form} with k = {k} for {x:?}"
        );
        ensure_targets(OP, inputs[2], lead)?;
        let Sizes { v, .. } = Sizes::new(self.layout, inputs[0], inputs[1]);
        ensure!(OP, v > 0 || self.rows == 0, "the weight is {w:?}, expected a class or more");
        Ok(vec![loss_spec(OP, self.rows, inputs[0].dtype())?])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        saved_specs(OP, self.rows, &outputs[0])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let sizes = Sizes::new(self.layout, inputs[0].spec, inputs[1].spec);
        let targets = inputs[2].as_slice::<u32>();
        ensure_below(OP, "target", targets, sizes.v, self.ignore)?;
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let logits = Logits::<T>::new(self.layout, sizes, inputs);
            let mut block = logits.room()?;
            let mut rows = vec![Row::<<T as Float>::Acc>::NEW; sizes.m];
            for classes in sizes.blocks() {
                let mut rows: Vec<_> = rows.iter_mut().zip(targets).collect();
                let ignore = self.ignore;
                let first = classes.start;
                logits.compute(classes, &mut block, &mut rows, &|(row, target), columns, logits| {
                    if Some(**target) != ignore {
                        row.take(first + columns.start, logits, **target);
                    }
                })?;
            }
            store(&rows, targets, self.ignore, outputs);
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let sizes = Sizes::new(self.layout, inputs[0].spec, inputs[1].spec);
        // The weight is bound in blocks, so launches do not check the number of classes.
        kernel_sizes(OP, [sizes.v])?;
        let logits = GpuLogits { gpu, layout: self.layout, sizes, x: &inputs[0], w: &inputs[1] };
        let (ignore, targets) = (self.ignore, &inputs[2]);
        let loss = GpuLoss { op: OP, gpu, ignore, classes: sizes.v, targets };
        loss.forward(outputs, |rows| {
            sizes.blocks().try_for_each(|classes| {
                let block = logits.compute(&logits.weight(classes.clone())?)?;
                loss.take(block.view().elements(), classes, rows)
            })
        })
    }
}

/// `dx` and `dw`, if needed; inputs `x`, `w`, `targets`, the saved rows and count, and `dy`.
struct LinearCrossEntropyGrad {
    layout: Layout,
    ignore: Option<u32>,
    needs: [bool; 2],
}

impl Kernel for LinearCrossEntropyGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let needed = (0..2).filter(|&i| self.needs[i]);
        Ok(needed.map(|i| inputs[i].clone()).collect())
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [mut dx, mut dw] = self.by_need(outputs.iter_mut());
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let dw = dw.as_mut().map(|dw| dw.as_mut_slice::<T>());
            let Some(dx) = dx.as_mut().map(|dx| dx.as_mut_slice::<T>()) else {
                return self.on_cpu::<T>(inputs, None, dw);
            };
            // Terms are summed in the wide type.
            match T::as_acc_mut(dx) {
                Some(dx) => self.on_cpu::<T>(inputs, Some(dx), dw),
                None => {
                    let bytes = inputs[0].spec.len() * size_of::<<T as Float>::Acc>();
                    let mut sums = CpuBuffer::scratch(OP, bytes)?;
                    self.on_cpu::<T>(inputs, Some(sums.as_mut_slice()), dw)?;
                    let sums = sums.as_slice::<<T as Float>::Acc>();
                    for_chunks(dx, GRAIN, |start, dx| T::narrow(&sums[start..][..dx.len()], dx));
                    Ok(())
                }
            }
        })
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let [dx, dw] = self.by_need(outputs.iter());
        let sizes = Sizes::new(self.layout, inputs[0].spec, inputs[1].spec);
        if sizes.m == 0 {
            return dw.map_or(Ok(()), |dw| gpu.fill(OP, dw.data, 0));
        }
        let logits = GpuLogits { gpu, layout: self.layout, sizes, x: &inputs[0], w: &inputs[1] };
        let (ignore, targets) = (self.ignore, &inputs[2]);
        let loss = GpuLoss { op: OP, gpu, ignore, classes: sizes.v, targets };
        let saved = [&inputs[3], &inputs[4], &inputs[5]].map(|view| view.data.all());
        let mut sum: Option<LocalTensor> = None;
        for classes in sizes.blocks() {
            let w = logits.weight(classes.clone())?;
            let block = logits.compute(&w)?;
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
                        Binary::Add.gpu(GpuIo {
                            gpu,
                            inputs: &[sum.view(), term.view()],
                            outputs: &[next.view()],
                        })?;
                        next
                    }
                });
            }
        }
        match (dx, sum) {
            (Some(dx), Some(sum)) => {
                let dx = View { spec: dx.spec, data: dx.data };
                Cast(dx.spec.dtype()).gpu(GpuIo { gpu, inputs: &[sum.view()], outputs: &[dx] })
            }
            _ => Ok(()),
        }
    }
}

impl LinearCrossEntropyGrad {
    /// `dx` and `dw` among the outputs.
    fn by_need<O>(&self, mut outputs: impl Iterator<Item = O>) -> [Option<O>; 2] {
        self.needs.map(|needed| if needed { outputs.next() } else { None })
    }

    fn on_cpu<T: Float>(
        &self,
        inputs: &[View<&CpuBuffer>],
        mut dx: Option<&mut [T::Acc]>,
        mut dw: Option<&mut [T]>,
    ) -> Result<()> {
        let sizes = Sizes::new(self.layout, inputs[0].spec, inputs[1].spec);
        let (Sizes { m, k, v }, ignore) = (sizes, self.ignore);
        let logits = Logits::<T>::new(self.layout, sizes, inputs);
        let mut block = logits.room()?;
        let rows = Row::load(inputs[3].as_slice::<T::Acc>());
        let mut rows: Vec<_> = rows.iter().zip(inputs[2].as_slice::<u32>()).collect();
        let scale = scale(&inputs[4], &inputs[5]);
        let mut term = CpuBuffer::scratch(OP, dx.as_ref().map_or(0, |dx| size_of_val(*dx)))?;
        for classes in sizes.blocks() {
            let n = classes.len();
            let finish =
                |(row, target): &mut (&Row<T::Acc>, &u32), columns: Range<usize>, p: &mut [_]| {
                    let target = Some(**target).filter(|_| Some(**target) != ignore);
                    row.grad(classes.start + columns.start, p, target, scale);
                };
            logits.compute(classes.clone(), &mut block, &mut rows, &finish)?;
            let p = Dense { data: &block.as_slice::<T::Acc>()[..m * n], stride: n };
            if let Some(dw) = dw.as_deref_mut() {
                let x = Operand { source: &logits.x, lines: Lines::Depth };
                let p = Operand { source: &p, lines: Lines::Depth };
                match self.layout {
                    Layout::Nk => {
                        let product = Product { m: n, n: k, k: m, left: p, right: x };
                        let dw = &mut dw[classes.start * k..classes.end * k];
                        plain::<T>(&product, dw)?;
                    }
                    Layout::Kn => {
                        let product = Product { m: k, n, k: m, left: x, right: p };
                        let mut columns = CpuBuffer::scratch(OP, k * n * size_of::<T>())?;
                        plain::<T>(&product, columns.as_mut_slice())?;
                        for (dw, columns) in dw.chunks_mut(v).zip(columns.as_slice::<T>().chunks(n))
                        {
                            dw[classes.clone()].copy_from_slice(columns);
                        }
                    }
                }
            }
            if let Some(dx) = dx.as_deref_mut() {
                let w = logits.weight(classes.clone());
                let lines = match self.layout {
                    Layout::Kn => Lines::Lanes,
                    Layout::Nk => Lines::Depth,
                };
                let p = Operand { source: &p, lines: Lines::Lanes };
                let w = Operand { source: &w, lines };
                let product = Product { m, n: k, k: n, left: p, right: w };
                if classes.start == 0 {
                    plain::<T::Acc>(&product, dx)?;
                } else {
                    plain::<T::Acc>(&product, term.as_mut_slice())?;
                    let term = term.as_slice::<T::Acc>();
                    for_chunks(dx, GRAIN, |start, dx| fold::add(dx, &term[start..][..dx.len()]));
                }
            }
        }
        Ok(())
    }
}

/// A product without prologue or epilogue.
fn plain<T: Float>(product: &Product<T::Acc>, out: &mut [T]) -> Result<()> {
    gemm(product, out, &mut vec![(); product.m], &|_, _, _| {}, LaneSums::None)
}

/// The logits on the CPU, one block of classes at a time.
struct Logits<'a, T> {
    layout: Layout,
    sizes: Sizes,
    x: Dense<'a, T>,
    w: &'a [T],
}

impl<'a, T: Float> Logits<'a, T> {
    /// From the inputs `x` and `w`.
    fn new(layout: Layout, sizes: Sizes, inputs: &[View<'a, &'a CpuBuffer>]) -> Self {
        let x = Dense { data: inputs[0].as_slice::<T>(), stride: sizes.k };
        Logits { layout, sizes, x, w: inputs[1].as_slice::<T>() }
    }

    /// A buffer for a block.
    fn room(&self) -> Result<CpuBuffer> {
        let Sizes { m, v, .. } = self.sizes;
        CpuBuffer::scratch(OP, m * self.sizes.step().min(v) * size_of::<T::Acc>())
    }

    /// The weight of these classes; its lines are rows of the tensor.
    fn weight(&self, classes: Range<usize>) -> Dense<'a, T> {
        let Sizes { k, v, .. } = self.sizes;
        match self.layout {
            Layout::Kn => {
                Dense { data: self.w.get(classes.start..).unwrap_or_default(), stride: v }
            }
            Layout::Nk => Dense { data: &self.w[classes.start * k..classes.end * k], stride: k },
        }
    }

    /// `finish(x·w)` of these classes, `[m, n]`, in the wide type, with data per row.
    fn compute<X: Send>(
        &self,
        classes: Range<usize>,
        block: &mut CpuBuffer,
        rows: &mut [X],
        finish: Finish<T::Acc, X>,
    ) -> Result<()> {
        let Sizes { m, k, .. } = self.sizes;
        let n = classes.len();
        let w = self.weight(classes);
        let lines = match self.layout {
            Layout::Kn => Lines::Depth,
            Layout::Nk => Lines::Lanes,
        };
        let left = Operand { source: &self.x, lines: Lines::Lanes };
        let product = Product { m, n, k, left, right: Operand { source: &w, lines } };
        let block = &mut block.as_mut_slice::<T::Acc>()[..m * n];
        gemm::<T::Acc, X>(&product, block, rows, finish, LaneSums::None)
    }
}

/// The products on a GPU, one block of classes at a time.
struct GpuLogits<'a> {
    gpu: &'a Gpu,
    layout: Layout,
    sizes: Sizes,
    x: &'a View<'a, &'a GpuBuffer>,
    w: &'a View<'a, &'a GpuBuffer>,
}

impl GpuLogits<'_> {
    /// The weight of these classes: a window of its rows, or a copy of its columns.
    fn weight(&self, classes: Range<usize>) -> Result<LocalTensor> {
        let Sizes { k, v, .. } = self.sizes;
        match self.layout {
            Layout::Nk => LocalTensor::rows(OP, self.w, classes),
            Layout::Kn => {
                let n = classes.len();
                let columns = LocalTensor::new(OP, self.gpu, &[k, n], self.w.spec.dtype())?;
                let copy = Strided { dims: vec![[k, v, n], [n, 1, 1]], from: classes.start, to: 0 };
                self.gpu.copy(OP, self.w, &columns.view(), copy)?;
                Ok(columns)
            }
        }
    }

    /// `x·w`, `[m, n]`, in f32.
    fn compute(&self, w: &LocalTensor) -> Result<LocalTensor> {
        let Sizes { m, k, .. } = self.sizes;
        let (n, stored) = match self.layout {
            Layout::Kn => (w.spec.shape()[1], Stored::AsIs),
            Layout::Nk => (w.spec.shape()[0], Stored::Transposed),
        };
        let logits = LocalTensor::new(OP, self.gpu, &[m, n], DType::F32)?;
        let function = Activation::None.into();
        let product = gpu::Product {
            op: OP,
            entries: 1,
            m,
            n,
            k,
            a: gpu::Operand { data: self.x, stored: Stored::AsIs },
            b: gpu::Operand { data: &w.view(), stored },
            fused: Fused::Epilogue { bias: None, function, pre: None },
            split_k: false,
        };
        product.launch(self.gpu, &logits.view())?;
        Ok(logits)
    }

    /// `p·wᵀ`, `[m, k]`, in f32.
    fn dx(&self, p: &LocalTensor, w: &LocalTensor) -> Result<LocalTensor> {
        let Sizes { m, k, .. } = self.sizes;
        let stored = match self.layout {
            Layout::Kn => Stored::Transposed,
            Layout::Nk => Stored::AsIs,
        };
        let dx = LocalTensor::new(OP, self.gpu, &[m, k], DType::F32)?;
        let product = gpu::Product {
            op: OP,
            entries: 1,
            m,
            n: k,
            k: p.spec.shape()[1],
            a: gpu::Operand { data: &p.view(), stored: Stored::AsIs },
            b: gpu::Operand { data: &w.view(), stored },
            fused: grad_pre(Side::Left),
            split_k: false,
        };
        product.launch(self.gpu, &dx.view())?;
        Ok(dx)
    }

    /// Write `xᵀ·p` to the columns of `dw` of these classes.
    fn put_dw(&self, p: &LocalTensor, classes: Range<usize>, dw: &View<&GpuBuffer>) -> Result<()> {
        let Sizes { m, k, v } = self.sizes;
        let n = classes.len();
        let p = &p.view();
        let (a, b, side, block) = match self.layout {
            Layout::Kn => {
                let block = LocalTensor::new(OP, self.gpu, &[k, n], dw.spec.dtype())?;
                (self.x, p, Side::Right, block)
            }
            Layout::Nk => (p, self.x, Side::Left, LocalTensor::rows(OP, dw, classes.clone())?),
        };
        let product = gpu::Product {
            op: OP,
            entries: 1,
            m: block.spec.shape()[0],
            n: block.spec.shape()[1],
            k: m,
            a: gpu::Operand { data: a, stored: Stored::Transposed },
            b: gpu::Operand { data: b, stored: Stored::AsIs },
            fused: grad_pre(side),
            split_k: true,
        };
        product.launch(self.gpu, &block.view())?;
        if self.layout == Layout::Kn {
            let copy = Strided { dims: vec![[k, n, v], [n, 1, 1]], from: 0, to: classes.start };
            self.gpu.copy(OP, &block.view(), dw, copy)?;
        }
        Ok(())
    }
}

/// An operand that is the gradient of logits.
fn grad_pre(grad_pre: Side) -> Fused<'static> {
    Fused::Prologue { grad_pre, saved: None, function: Activation::None.into(), sums: None }
}
