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

use smallvec::smallvec;

use super::forward::Linear;
use super::{OP, product_of};
use crate::cpu::CpuView;
use crate::cpu::gemm::{Dense, Gemm, Source, prefetch_lines, rounds_bf16};
use crate::cpu::map::{BLOCK, add};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::Result;
use crate::function::Function;
use crate::gpu::gemm::{self, Fused};
use crate::gpu::{GpuView, LocalTensor};
use crate::kernel::{CpuIo, GpuIo, Results, compute, compute_one, update};
use crate::product::{Product, Side};
use crate::reduction::Reduction;
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::terms::Terms;
use crate::{DType, Device};

/// The largest number of columns of `x` for which a single product computes `grad_pre` itself: it
/// reads each element once, and storing `grad_pre` would be another pass.
const FEW: usize = 64;

/// What the three gradients have in common.
pub(super) struct Backward<'a> {
    function: Function,
    /// The product of the forward pass.
    product: Product,
    /// Of `x`, `w` and, if there is one, `bias`.
    specs: &'a [Spec],
    /// `grad_pre`, or what it is computed from: `dy` and, unless `φ'` is 1, `y` or `pre`.
    upstream: Vec<Tensor>,
}

impl<'a> Backward<'a> {
    /// For so many products, `dx` and `dw`.
    pub(super) fn new(
        op: &Linear,
        specs: &'a [Spec],
        dy: &Tensor,
        saved: Option<Tensor>,
        products: usize,
    ) -> Result<Self> {
        let product = product_of(op.layout, &specs[0], &specs[1]);
        let upstream = match saved {
            Some(saved) => {
                let in_product = products == 1 && product.k <= FEW;
                // Both products, or else the bits would depend on whether `saved` is shared.
                let rounds_for = |side| rounds_bf16(product.gradient(side).0.m);
                let rounds = products == 2 && rounds_for(Side::Left) && rounds_for(Side::Right);
                grad_pre(saved, dy, op.function, in_product, rounds)?
            }
            None => vec![dy.detached()],
        };
        Ok(Self { function: op.function, product, specs, upstream })
    }

    /// Whether [`dx`](Backward::dx) can add another gradient in the same pass: on a GPU, unless the
    /// product computes `grad_pre`.
    pub(super) fn can_add(&self) -> bool {
        self.upstream.len() == 1 && self.upstream[0].device() != &Device::Cpu
    }

    /// `dx`, to which `earlier` is added.
    pub(super) fn dx(&self, w: &Tensor, earlier: Option<&Tensor>) -> Result<Tensor> {
        let outputs = smallvec![self.specs[0].clone()];
        Ok(self.gradient("dx", Side::Left, [Some(w), earlier], outputs)?.swap_remove(0))
    }

    /// `dw` in terms, if it is computed so.
    pub(super) fn dw_terms(&self, x: &Tensor) -> Result<Option<Terms>> {
        let (product, _) = self.product.gradient(Side::Right);
        let rows = gemm::splits(product);
        if *x.device() == Device::Cpu || rows == 1 || rows > Terms::MAX_ROWS || product.entries > 1
        {
            return Ok(None);
        }
        let spec = self.specs[1].clone();
        let terms = smallvec![Spec::new(OP, &[rows, spec.len()], DType::F32)?];
        let tensor = self.gradient("dw", Side::Right, [Some(x), None], terms)?.swap_remove(0);
        Ok(Some(Terms { tensor, first: 0, rows, spec }))
    }

    /// `dw`, and `dbias` if wanted.
    pub(super) fn dw(&self, x: &Tensor, bias: bool) -> Result<(Tensor, Option<Tensor>)> {
        // Without a product, there are no tiles that the bias could be summed from.
        let fused = bias && self.specs[1].len() > 0;
        let outputs = [Some(&self.specs[1]), self.specs.get(2).filter(|_| fused)];
        let outputs = outputs.into_iter().flatten().cloned().collect();
        let mut grads = self.gradient("dw", Side::Right, [Some(x), None], outputs)?.into_iter();
        let (dw, dbias) = (grads.next().expect("dw comes first"), grads.next());
        match bias && !fused {
            true => Ok((dw, Some(self.dbias()?))),
            false => Ok((dw, dbias)),
        }
    }

    /// The gradient of one operand, given the other and what is added; if there is a second output,
    /// the sums of `grad_pre` over its rows.
    fn gradient(
        &self,
        role: &'static str,
        of: Side,
        [other, earlier]: [Option<&Tensor>; 2],
        outputs: Results<Spec>,
    ) -> Result<Results<Tensor>> {
        let (product, side) = self.product.gradient(of);
        let inputs: Vec<_> = other.into_iter().chain(&self.upstream).chain(earlier).collect();
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            with_dtype!(inputs[0].spec.dtype(), T: Float => {
                let other = Dense::<T>::of(&inputs[0]);
                let grad_pre = GradPre::<T>::new(self.function, &inputs[1..]);
                let gemm = match side {
                    Side::Left => Gemm { product, left: &grad_pre, right: &other },
                    Side::Right => Gemm { product, left: &other, right: &grad_pre },
                };
                let [grad, dbias @ ..] = outputs else { unreachable!("one gradient or two") };
                let Some(dbias) = dbias.first_mut() else {
                    return gemm.store(grad.as_mut_slice::<T>());
                };
                // The sums of each entry, `[entries, n]`, are added in order.
                let n = self.product.n;
                let mut sums = vec![<T as Float>::Acc::ZERO; product.entries * n];
                gemm.store_and_sum(grad.as_mut_slice::<T>(), side, &mut sums)?;
                let mut total = vec![<T as Float>::Acc::ZERO; n];
                sums.chunks(n).for_each(|sums| add(&mut total, sums));
                T::narrow(&total, dbias.as_mut_slice::<T>());
                Ok(())
            })
        };
        let gpu = |GpuIo { op, gpu, inputs, outputs }: GpuIo| {
            let (other, grad_pre) = (&inputs[0], &inputs[1]);
            let (left, right) = match side {
                Side::Left => (grad_pre, other),
                Side::Right => (other, grad_pre),
            };
            let (saved, addend) = match earlier {
                Some(_) => (None, inputs.get(2)),
                None => (inputs.get(2), None),
            };
            let (sums, function) = (outputs.get(1), self.function);
            let fused = Fused::Prologue { grad_pre: side, saved, function, sums, addend };
            let split_k = of == Side::Right;
            gemm::Gemm { product, left, right, fused, split_k }.store(op, gpu, &outputs[0])
        };
        compute((OP, role), &inputs, outputs, cpu, gpu)
    }

    /// `dbias` alone, for a weight that is not trained.
    pub(super) fn dbias(&self) -> Result<Tensor> {
        let n = self.product.n;
        let rows = self.product.entries * self.product.m;
        // Strips of columns in parallel, each summed in blocks of rows, as in the products.
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            const STRIP: usize = 256;
            const ROWS: usize = 512;
            with_dtype!(inputs[0].spec.dtype(), T: Float => {
                let grad_pre = GradPre::<T>::new(self.function, inputs);
                for_chunks(outputs[0].as_mut_slice::<T>(), STRIP, |start, dbias| {
                    let [mut total, mut block, mut line] = [[<T as Float>::Acc::ZERO; STRIP]; 3];
                    for first in (0..rows).step_by(ROWS) {
                        block.fill(<T as Float>::Acc::ZERO);
                        for row in first..rows.min(first + ROWS) {
                            let line = grad_pre.read(row, start, &mut line[..dbias.len()]);
                            add(&mut block, line);
                        }
                        add(&mut total, &block);
                    }
                    T::narrow(&total[..dbias.len()], dbias);
                });
            });
            Ok(())
        };
        let gpu = |GpuIo { op, gpu, inputs, outputs }: GpuIo| {
            let (dy, dbias) = (&inputs[0], &outputs[0]);
            if rows == 0 {
                return gpu.fill(op, dbias.data, 0);
            }
            let sum = |grad_pre: &GpuView| {
                let sum = Reduction::sum_of_rows(rows, n);
                gpu.reduce(op, sum, grad_pre.elements(), dbias.elements())
            };
            let Some(saved) = inputs.get(1) else { return sum(dy) };
            let grad_pre = LocalTensor::new(op, gpu, dy.spec.shape(), DType::F32)?;
            gpu.map_gradient(op, self.function, [dy, saved], &grad_pre.view())?;
            sum(&grad_pre.view())
        };
        let inputs: Vec<_> = self.upstream.iter().collect();
        compute_one((OP, "dbias"), &inputs, self.specs[2].clone(), cpu, gpu)
    }
}

/// `grad_pre`; or `dy` and `saved` unchanged, for the products to compute it from: on a GPU if that
/// is as fast, on the CPU if `saved` is shared or overwriting it would lose digits, unless the
/// products round them anyway.
fn grad_pre(
    mut saved: Tensor,
    dy: &Tensor,
    function: Function,
    in_product: bool,
    rounds: bool,
) -> Result<Vec<Tensor>> {
    const NAME: (&str, &str) = (OP, "grad_pre");
    let dtype = saved.dtype();
    let in_place = dtype == dtype.wider() || dtype == DType::BF16 && rounds;
    match dy.device() {
        Device::Cpu if in_place && !saved.is_shared() => {
            let overwrite = |CpuIo { inputs, outputs }: CpuIo| {
                let (dy, saved) = (&inputs[0], &mut outputs[0]);
                with_dtype!(dtype, T: Float => {
                    overwrite::<T>(function, saved.as_mut_slice(), dy.as_slice());
                });
                Ok(())
            };
            let gpu = |_: GpuIo| unreachable!("on the CPU");
            update(NAME, &[dy], &mut [&mut saved], overwrite, gpu)?;
            Ok(vec![saved])
        }
        Device::Gpu(_) if !in_product => {
            let spec = dy.spec.with_dtype(OP, DType::F32)?;
            let gpu = |GpuIo { op, gpu, inputs, outputs }: GpuIo| {
                gpu.map_gradient(op, function, [&inputs[0], &inputs[1]], &outputs[0])
            };
            let cpu = |_: CpuIo| unreachable!("on a GPU");
            Ok(vec![compute_one(NAME, &[dy, &saved], spec, cpu, gpu)?])
        }
        _ => Ok(vec![dy.detached(), saved]),
    }
}

/// `saved = dy ⊙ φ'`
fn overwrite<T: Float>(function: Function, saved: &mut [T], dy: &[T]) {
    for_chunks(saved, GRAIN, |start, saved| {
        let [mut wide_saved, mut wide_dy, mut buffer] = [[T::Acc::ZERO; BLOCK]; 3];
        for (saved, dy) in saved.chunks_mut(BLOCK).zip(dy[start..].chunks(BLOCK)) {
            let dy = widened(&dy[..saved.len()], &mut wide_dy[..saved.len()]);
            let wide_saved = &mut wide_saved[..saved.len()];
            T::widen(saved, wide_saved);
            fill_wide(saved, &mut buffer, |grad| function.gradient(wide_saved, dy, grad));
        }
    });
}

/// `grad_pre`, `[…, n]`; a line is a row.
struct GradPre<'a, T> {
    function: Function,
    dy: &'a [T],
    saved: Option<&'a [T]>,
    n: usize,
}

impl<'a, T: Float> GradPre<'a, T> {
    /// From `dy` and, unless `φ'` is 1, the saved tensor.
    fn new(function: Function, inputs: &[CpuView<'a>]) -> Self {
        let Dense { data: dy, stride: n } = Dense::of(&inputs[0]);
        Self { function, dy, saved: inputs.get(1).map(|saved| saved.as_slice()), n }
    }
}

impl<T: Float> Source<T::Acc> for GradPre<'_, T> {
    fn is_bf16(&self) -> bool {
        T::DTYPE == DType::BF16
    }

    fn read<'a>(&'a self, line: usize, from: usize, buffer: &'a mut [T::Acc]) -> &'a [T::Acc] {
        let at = line * self.n + from..line * self.n + from + buffer.len();
        let dy = &self.dy[at.clone()];
        prefetch_lines(self.dy, at.start, self.n, at.len());
        let Some(saved) = self.saved else {
            return widened(dy, buffer); // φ' is 1
        };
        prefetch_lines(saved, at.start, self.n, at.len());
        const BLOCK: usize = 128;
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
