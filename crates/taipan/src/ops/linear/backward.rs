//! The gradients of the product.
//!
//! With `pre = x·w + bias`, `y = φ(pre)` and `grad_pre = dy ⊙ φ'(pre)`:
//! `dx = grad_pre·wᵀ`, `dw = xᵀ·grad_pre`, `dbias` is `grad_pre` summed over its rows.
//!
//! On the CPU `grad_pre` needs no memory of its own. If sums have the type of the elements and the
//! saved tensor is not shared, it overwrites the saved tensor, in one pass. Otherwise each product
//! computes it while packing its operand, without rounding it to the smaller type. On a GPU it is
//! computed once, in f32, or inside the product if that is as fast. On both, `dbias` is summed from
//! the tiles that are loaded for `dw`.

use std::sync::Arc;

use rayon::prelude::*;

use super::forward::Linear;
use super::gpu::{self, Fused, Side, Stored};
use super::{Layout, OP, Sizes};
use crate::cpu::CpuBuffer;
use crate::cpu::fold;
use crate::cpu::gemm::{Dense, LaneSums, Lines, Operand, Product, Source, gemm, prefetch_lines};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::gpu::GpuBuffer;
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run, run_one};
use crate::ops::function::Function;
use crate::ops::reduce::Folding;
use crate::ops::unary::grad_on_gpu;
use crate::spec::Spec;
use crate::tensor::{Storage, Tensor};
use crate::{DType, Device};

/// What the three gradients have in common.
pub(super) struct Backward<'a> {
    layout: Layout,
    function: Function,
    sizes: Sizes,
    /// Of `x`, `w` and, if there is one, `bias`.
    specs: &'a [Spec],
    dy: Tensor,
    /// What `φ'` is computed from: `y`, `pre` or nothing.
    saved: Option<Tensor>,
}

impl<'a> Backward<'a> {
    pub(super) fn new(
        op: &Linear,
        specs: &'a [Spec],
        dy: &Tensor,
        saved: Option<Tensor>,
        products: usize,
    ) -> Result<Self> {
        let sizes = Sizes::new(op.layout, &specs.iter().collect::<Vec<_>>())?;
        let (dy, saved) = match saved {
            Some(saved) => {
                let in_product = products == 1 && sizes.k <= gpu::FEW;
                grad_pre(saved, dy, op.function, in_product)?
            }
            None => (dy.detached(), None),
        };
        Ok(Self { layout: op.layout, function: op.function, sizes, specs, dy, saved })
    }

    pub(super) fn dx(&self, w: &Tensor) -> Result<Tensor> {
        let Self { layout, function, sizes, .. } = *self;
        let kernel = InputGrad { layout, function, sizes, x: self.specs[0].clone() };
        run_one(&kernel, &self.inputs(w))
    }

    /// `dw`, and `dbias` if wanted.
    pub(super) fn dw(&self, x: &Tensor, bias: bool) -> Result<(Tensor, Option<Tensor>)> {
        let Self { layout, function, sizes, .. } = *self;
        let mut results = vec![self.specs[1].clone()];
        if bias && (sizes.k == 0 || sizes.n == 0 || sizes.entries == 0) {
            // There is no product whose tiles the bias could be summed from.
            return Ok((
                run_one(&WeightGrad { layout, function, sizes, results }, &self.inputs(x))?,
                Some(self.dbias()?),
            ));
        }
        results.extend(bias.then(|| self.specs[2].clone()));
        let kernel = WeightGrad { layout, function, sizes, results };
        let mut grads = run(&kernel, &self.inputs(x))?.into_iter();
        let dw = grads.next().expect("WeightGrad's first result");
        Ok((dw, grads.next()))
    }

    /// `dbias` alone, for a weight that is not trained.
    pub(super) fn dbias(&self) -> Result<Tensor> {
        let kernel = BiasGrad { function: self.function, bias: self.specs[2].clone() };
        run_one(&kernel, &self.upstream().collect::<Vec<_>>())
    }

    /// What `grad_pre` is computed from.
    fn upstream(&self) -> impl Iterator<Item = &Tensor> {
        [&self.dy].into_iter().chain(&self.saved)
    }

    fn inputs<'b>(&'b self, other: &'b Tensor) -> Vec<&'b Tensor> {
        [other].into_iter().chain(self.upstream()).collect()
    }
}

/// `grad_pre`; or `dy` and `saved` unchanged, for the products to compute it from: on a GPU if that
/// is as fast, on the CPU if `saved` cannot be overwritten.
fn grad_pre(
    saved: Tensor,
    dy: &Tensor,
    function: Function,
    in_product: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    match (&saved.storage, &dy.storage, dy.device()) {
        (Storage::Gpu(saved_buffer), Storage::Gpu(dy_buffer), Device::Gpu(gpu)) => {
            if in_product {
                return Ok((dy.detached(), Some(saved)));
            }
            let spec = dy.spec.with_dtype(OP, DType::F32)?;
            let buffer = gpu.scratch(OP, spec.bytes())?;
            let inputs = [
                &View { spec: &dy.spec, data: &**dy_buffer },
                &View { spec: &saved.spec, data: &**saved_buffer },
            ];
            let out = View { spec: &spec, data: &buffer };
            gpu.span(OP, "grad_pre", || grad_on_gpu(OP, gpu, function, inputs, &out))?;
            Ok((Tensor::of(spec, Storage::Gpu(Arc::new(buffer))), None))
        }
        _ => Ok(match overwrite(saved, dy, function) {
            Ok(grad_pre) => (grad_pre, None),
            Err(saved) => (dy.detached(), Some(saved)),
        }),
    }
}

/// `saved` overwritten with `dy ⊙ φ'`; or `saved` unchanged, if that would lose digits or its
/// memory is shared.
fn overwrite(
    mut saved: Tensor,
    dy: &Tensor,
    function: Function,
) -> std::result::Result<Tensor, Tensor> {
    let (Storage::Cpu(buffer), Storage::Cpu(dy)) = (&mut saved.storage, &dy.storage) else {
        return Err(saved);
    };
    let Some(buffer) = Arc::get_mut(buffer) else { return Err(saved) };
    with_dtype!(saved.spec.dtype(), T: Float => {
        let wide = (T::as_acc_mut(buffer.as_mut_slice::<T>()), T::as_acc(dy.as_slice::<T>()));
        let (Some(values), Some(dy)) = wide else { return Err(saved) };
        let gradient = |start: usize, values: &mut [_]| {
            const BLOCK: usize = 1024;
            let mut block = [<T as Float>::Acc::ZERO; BLOCK];
            for (i, values) in values.chunks_mut(BLOCK).enumerate() {
                let block = &mut block[..values.len()];
                block.copy_from_slice(values);
                function.gradient(block, &dy[start + i * BLOCK..][..values.len()], values);
            }
        };
        Device::Cpu.span(OP, "grad_pre", || for_chunks(values, GRAIN, gradient));
    });
    Ok(saved)
}

/// `grad_pre` of one batch entry, `[m, n]`; a line is a row.
struct GradPre<'a, T> {
    function: Function,
    dy: &'a [T],
    saved: Option<&'a [T]>,
    n: usize,
}

impl<'a, T: Float> GradPre<'a, T> {
    /// From the inputs `dy` and, if there is one, the saved tensor.
    fn new(
        function: Function,
        sizes: Sizes,
        inputs: &[View<'a, &'a CpuBuffer>],
        entry: usize,
    ) -> Self {
        let Sizes { m, n, .. } = sizes;
        let own = |view: &View<'a, &'a CpuBuffer>| &view.as_slice::<T>()[entry * m * n..][..m * n];
        Self { function, dy: own(&inputs[0]), saved: inputs.get(1).map(own), n }
    }
}

impl<T: Float> Source<T::Acc> for GradPre<'_, T> {
    fn read<'a>(&'a self, line: usize, from: usize, buffer: &'a mut [T::Acc]) -> &'a [T::Acc] {
        let at = line * self.n + from..line * self.n + from + buffer.len();
        let dy = &self.dy[at.clone()];
        prefetch_lines(self.dy, at.start, self.n, at.len());
        let Some(saved) = self.saved else {
            return widened(dy, buffer); // φ' is 1
        };
        prefetch_lines(saved, at.start, self.n, at.len());
        const BLOCK: usize = 512;
        let [mut wide_dy, mut wide_saved] = [[T::Acc::ZERO; BLOCK]; 2];
        let inputs = dy.chunks(BLOCK).zip(saved[at].chunks(BLOCK));
        for ((dy, saved), out) in inputs.zip(buffer.chunks_mut(BLOCK)) {
            let dy = widened(dy, &mut wide_dy[..out.len()]);
            let saved = widened(saved, &mut wide_saved[..out.len()]);
            self.function.gradient(saved, dy, out);
        }
        buffer
    }
}

/// `dx = grad_pre·wᵀ`; inputs `w`, `dy` and, if there is one, the saved tensor.
struct InputGrad {
    layout: Layout,
    function: Function,
    sizes: Sizes,
    x: Spec,
}

impl Kernel for InputGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "dx"
    }

    fn outputs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.x.clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let Sizes { m, k, n, .. } = self.sizes;
        with_dtype!(self.x.dtype(), T: Float => {
            outputs[0]
                .as_mut_slice::<T>()
                .par_chunks_mut((m * k).max(1))
                .enumerate()
                .with_min_len(self.sizes.min_len())
                .try_for_each(|(entry, dx)| {
                    let upstream = &inputs[1..];
                    let grad_pre = GradPre::<T>::new(self.function, self.sizes, upstream, entry);
                    let w = self.sizes.weight(self.layout, inputs[0].as_slice::<T>(), entry);
                    let lines = match self.layout {
                        Layout::Kn => Lines::Lanes,
                        Layout::Nk => Lines::Depth,
                    };
                    let product = Product {
                        m,
                        n: k,
                        k: n,
                        left: Operand { source: &grad_pre, lines: Lines::Lanes },
                        right: Operand { source: &w, lines },
                    };
                    gemm(&product, dx, &mut vec![(); m], &|_, _, _| {}, LaneSums::None)
                })
        })
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let Sizes { entries, m, k, n } = self.sizes;
        let stored = match self.layout {
            Layout::Kn => Stored::Transposed,
            Layout::Nk => Stored::AsIs,
        };
        let product = gpu::Product {
            op: OP,
            entries,
            m,
            n: k,
            k: n,
            a: gpu::Operand { data: &inputs[1], stored: Stored::AsIs },
            b: gpu::Operand { data: &inputs[0], stored },
            fused: Fused::Prologue {
                grad_pre: Side::Left,
                saved: inputs.get(2),
                function: self.function,
                sums: None,
            },
            split_k: false,
        };
        product.launch(gpu, &outputs[0])
    }
}

/// `dw = xᵀ·grad_pre` and, if `results` has two, `dbias`; inputs `x`, `dy` and, if there is one,
/// the saved tensor.
struct WeightGrad {
    layout: Layout,
    function: Function,
    sizes: Sizes,
    results: Vec<Spec>,
}

impl Kernel for WeightGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "dw"
    }

    fn outputs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(self.results.clone())
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let Sizes { m, k, n, .. } = self.sizes;
        with_dtype!(self.results[0].dtype(), T: Float => {
            let (dw, dbias) = outputs.split_at_mut(1);
            let dw = dw[0].as_mut_slice::<T>();
            if dw.is_empty() {
                return Ok(()); // then there is no bias either: see `dw` above
            }
            // The sums of each entry, `[entries, n]`, to be added in order; none without a bias.
            let n_sums = if dbias.is_empty() { 0 } else { n };
            let mut sums = vec![<T as Float>::Acc::ZERO; self.sizes.entries * n_sums];
            let sums_of_entries: Vec<&mut [_]> = match n_sums {
                0 => (0..self.sizes.entries).map(|_| &mut [][..]).collect(),
                n => sums.chunks_mut(n).collect(),
            };
            dw.par_chunks_mut(k * n)
                .zip(sums_of_entries)
                .enumerate()
                .with_min_len(self.sizes.min_len())
                .try_for_each(|(entry, (dw, sums))| {
                    let x = &inputs[0].as_slice::<T>()[entry * m * k..][..m * k];
                    let x = Dense { data: x, stride: k };
                    let x = Operand { source: &x, lines: Lines::Depth };
                    let upstream = &inputs[1..];
                    let grad_pre = GradPre::<T>::new(self.function, self.sizes, upstream, entry);
                    let grad_pre = Operand { source: &grad_pre, lines: Lines::Depth };
                    let (product, lane_sums) = match self.layout {
                        Layout::Kn => {
                            let product = Product { m: k, n, k: m, left: x, right: grad_pre };
                            (product, LaneSums::Right(sums))
                        }
                        Layout::Nk => {
                            let product = Product { m: n, n: k, k: m, left: grad_pre, right: x };
                            (product, LaneSums::Left(sums))
                        }
                    };
                    let lane_sums = if n_sums == 0 { LaneSums::None } else { lane_sums };
                    gemm(&product, dw, &mut vec![(); product.m], &|_, _, _| {}, lane_sums)
                })?;
            if let Some(dbias) = dbias.first_mut() {
                let mut total = vec![<T as Float>::Acc::ZERO; n];
                sums.chunks(n).for_each(|sums| fold::add(&mut total, sums));
                T::narrow(&total, dbias.as_mut_slice::<T>());
            }
            Ok(())
        })
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let Sizes { entries, m, k, n } = self.sizes;
        let x = gpu::Operand { data: &inputs[0], stored: Stored::Transposed };
        let grad_pre = gpu::Operand { data: &inputs[1], stored: Stored::AsIs };
        let (rows, columns, a, b, side) = match self.layout {
            Layout::Kn => (k, n, x, grad_pre, Side::Right),
            Layout::Nk => {
                let x = gpu::Operand { stored: Stored::AsIs, ..x };
                let grad_pre = gpu::Operand { stored: Stored::Transposed, ..grad_pre };
                (n, k, grad_pre, x, Side::Left)
            }
        };
        let product = gpu::Product {
            op: OP,
            entries,
            m: rows,
            n: columns,
            k: m,
            a,
            b,
            fused: Fused::Prologue {
                grad_pre: side,
                saved: inputs.get(2),
                function: self.function,
                sums: outputs.get(1),
            },
            split_k: true,
        };
        product.launch(gpu, &outputs[0])
    }
}

/// `dbias` without a product; inputs `dy` and, if there is one, the saved tensor.
struct BiasGrad {
    function: Function,
    bias: Spec,
}

impl Kernel for BiasGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "dbias"
    }

    fn outputs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.bias.clone()])
    }

    /// Strips of columns in parallel, each summed in blocks of rows, as in the products.
    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        const STRIP: usize = 256;
        const ROWS: usize = 512;
        let n = self.bias.len();
        let rows = inputs[0].spec.len() / n.max(1);
        let sizes = Sizes { entries: 1, m: rows, k: 0, n };
        with_dtype!(self.bias.dtype(), T: Float => {
            let grad_pre = GradPre::<T>::new(self.function, sizes, inputs, 0);
            for_chunks(outputs[0].as_mut_slice::<T>(), STRIP, |start, dbias| {
                let [mut total, mut block, mut line] = [[<T as Float>::Acc::ZERO; STRIP]; 3];
                for first in (0..rows).step_by(ROWS) {
                    block.fill(<T as Float>::Acc::ZERO);
                    for row in first..rows.min(first + ROWS) {
                        let line = grad_pre.read(row, start, &mut line[..dbias.len()]);
                        fold::add(&mut block, line);
                    }
                    fold::add(&mut total, &block);
                }
                T::narrow(&total[..dbias.len()], dbias);
            });
            Ok(())
        })
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let (dy, dbias) = (&inputs[0], &outputs[0]);
        let n = self.bias.len();
        let rows = dy.spec.len() / n.max(1);
        if rows == 0 {
            return gpu.fill(OP, dbias.data, 0);
        }
        let sum = |x: &View<&GpuBuffer>| {
            let sum = Folding::sum(OP, x.spec.dtype(), dbias.spec.dtype());
            sum.launch(gpu, x.data.all(), [1, rows, n], dbias.data.all())
        };
        match inputs.get(1) {
            None => sum(dy),
            Some(saved) => {
                let spec = dy.spec.with_dtype(OP, DType::F32)?;
                let buffer = gpu.scratch(OP, spec.bytes())?;
                let grad_pre = View { spec: &spec, data: &buffer };
                grad_on_gpu(OP, gpu, self.function, [dy, saved], &grad_pre)?;
                sum(&grad_pre)
            }
        }
    }
}
