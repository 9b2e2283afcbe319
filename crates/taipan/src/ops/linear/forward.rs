//! The product with bias and activation, as a differentiable op.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::backward::Backward;
use super::{OP, check, product_of};
use crate::autograd::{Op, Saved, Slot};
use crate::cpu::gemm::{Dense, Gemm, Source};
use crate::cpu::map::{BLOCK, add};
use crate::cpu::{CpuBuffer, CpuView};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::{Result, ensure};
use crate::function::{Function, Saves};
use crate::gpu::gemm::{self, Fused};
use crate::gpu::{GpuView, LocalTensor, Strided};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one, run_saving};
use crate::product::{Layout, Product};
use crate::spec::{Spec, joined};
use crate::tensor::Tensor;

/// `function(x·w + bias) + residual`; inputs `x`, `w` and, if there are, `bias` and `residual`.
pub(super) struct Linear {
    /// `linear` or `matmul`, for errors.
    pub(super) name: &'static str,
    pub(super) layout: Layout,
    pub(super) function: Function,
    pub(super) derivative: DerivativeFrom,
    /// Whether the last input is a residual.
    pub(super) has_residual: bool,
}

/// Where backward gets the values that the derivative of the activation is computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum DerivativeFrom {
    /// Forward saves them.
    Saved,
    /// Backward recomputes them from the inputs.
    Inputs,
}

impl Op for Linear {
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool {
        let recomputes =
            self.derivative == DerivativeFrom::Inputs && self.function.saves() != Saves::Nothing;
        match slot {
            Slot::Input(0) => needs[1] || recomputes,
            Slot::Input(1) => needs[0] || recomputes,
            Slot::Input(_) => recomputes,
            Slot::Output(_) => self.function.saves() == Saves::Output && !recomputes,
        }
    }

    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let activation = match (self.derivative, self.function.saves()) {
            (_, Saves::Nothing) => None,
            (DerivativeFrom::Inputs, _) => {
                let inputs = 0..saved.specs.len();
                self.recompute_saved(&inputs.map(|i| saved.input(i)).collect::<Vec<_>>())?
            }
            (DerivativeFrom::Saved, Saves::Output) => Some(saved.take_output(0)),
            (DerivativeFrom::Saved, Saves::Input) => Some(saved.take_output(1)),
        };
        let products = saved.needs[..2].iter().filter(|needed| **needed).count();
        let specs = saved.specs.clone();
        let (terms, residual) = self.without_residual(&specs);
        let backward = Backward::new(self, terms, &dys[0], activation, products)?;
        let mut grads = vec![None; specs.len()];
        if residual.is_some() {
            grads[terms.len()] = Some(dys[0].clone());
        }
        let needs_bias = terms.len() > 2 && saved.needs[2];
        if saved.needs[0] {
            let earlier = if backward.can_add() { saved.take_earlier(0) } else { None };
            grads[0] = Some(backward.dx(saved.input(1), earlier.as_ref())?);
        }
        let terms = match saved.needs[1] && !needs_bias {
            true => backward.dw_terms(saved.input(0))?,
            false => None,
        };
        if let Some(terms) = terms {
            saved.sum_later(1, terms);
        } else if saved.needs[1] {
            let (dw, dbias) = backward.dw(saved.input(0), needs_bias)?;
            grads[1] = Some(dw);
            if needs_bias {
                grads[2] = dbias;
            }
        } else if needs_bias {
            grads[2] = Some(backward.dbias()?);
        }
        Ok(grads)
    }
}

impl Kernel for Linear {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (terms, residual) = self.without_residual(inputs);
        check(self.layout, terms)?;
        let product = product_of(self.layout, inputs[0], inputs[1]);
        let x = inputs[0].shape();
        let shape = joined(&[&x[..x.len() - 1], &[product.n]]);
        if let Some(residual) = residual {
            let found = residual.shape();
            ensure!(
                self.name,
                found == &shape[..],
                "the residual is {found:?}, expected {shape:?}"
            );
            residual.dtype().ensure(inputs[0].dtype(), self.name, "the residual")?;
        }
        Ok(smallvec![Spec::new(self.name, &shape, inputs[0].dtype())?])
    }

    /// `pre = x·w + bias` where the derivative needs it.
    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        match (self.derivative, self.function.saves()) {
            (DerivativeFrom::Saved, Saves::Input) => outputs.to_vec(),
            _ => Vec::new(),
        }
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let product = product_of(self.layout, inputs[0].spec, inputs[1].spec);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let (out, pre) = outputs.split_at_mut(1);
            let pre = pre.first_mut().map(|pre| pre.as_mut_slice::<T>());
            let (terms, residual) = self.without_residual(inputs);
            let (x, bias, function) = (&inputs[0], terms.get(2), self.function);
            let right = &Dense::<T>::of(&inputs[1]);
            let forward = Forward::<T> { product, function, x, bias, residual, right };
            forward.store(out[0].as_mut_slice(), pre)
        })
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let GpuIo { op, gpu, inputs, outputs } = io;
        let product @ Product { m, n, k, .. } =
            product_of(self.layout, inputs[0].spec, inputs[1].spec);
        let row = k * inputs[1].spec.dtype().size();
        let one_launch = gpu.windows(n, row).next() == Some(0..n);
        let splits = product.entries == 1 && product.right == Layout::Transposed;
        if one_launch || !splits || self.has_residual {
            return self.launch(io, product);
        }
        // The weight is larger than a binding: some of its rows, and columns of the results, at a
        // time.
        for columns in gpu.windows(n, row) {
            let product = Product { n: columns.len(), ..product };
            let rows = |view: &GpuView| view.rows(op, columns.clone());
            let slices = inputs[1..].iter().map(rows).collect::<Result<Vec<_>>>()?;
            let inputs: Vec<_> =
                [inputs[0]].into_iter().chain(slices.iter().map(LocalTensor::view)).collect();
            let block = |y: &GpuView| LocalTensor::new(op, gpu, &[m, product.n], y.spec.dtype());
            let blocks = outputs.iter().map(block).collect::<Result<Vec<_>>>()?;
            let views: Vec<_> = blocks.iter().map(LocalTensor::view).collect();
            self.launch(GpuIo { inputs: &inputs, outputs: &views, ..io }, product)?;
            for (block, y) in views.iter().zip(outputs) {
                let dims = vec![[m, product.n, n], [product.n, 1, 1]];
                gpu.copy(op, block, y, Strided { dims, from: 0, to: columns.start })?;
            }
        }
        Ok(())
    }
}

impl Linear {
    fn launch(&self, GpuIo { op, gpu, inputs, outputs }: GpuIo, product: Product) -> Result<()> {
        let (terms, residual) = self.without_residual(inputs);
        let (bias, function, pre) = (terms.get(2), self.function, outputs.get(1));
        let fused = Fused::Epilogue { bias, function, pre, residual };
        let (left, right) = (&inputs[0], &inputs[1]);
        gemm::Gemm { product, left, right, fused, split_k: false }.store(op, gpu, &outputs[0])
    }

    /// The inputs, or something for each, without that of the residual; and that.
    fn without_residual<'a, T>(&self, inputs: &'a [T]) -> (&'a [T], Option<&'a T>) {
        match inputs.split_last() {
            Some((residual, terms)) if self.has_residual => (terms, Some(residual)),
            _ => (inputs, None),
        }
    }

    /// Recompute what the derivative is computed from.
    pub(super) fn recompute_saved(&self, inputs: &[&Tensor]) -> Result<Option<Tensor>> {
        let saving = Linear { derivative: DerivativeFrom::Saved, ..*self };
        Ok(match self.function.saves() {
            Saves::Nothing => None,
            Saves::Output => Some(run_one(&saving, inputs)?),
            Saves::Input => run_saving(&saving, inputs)?.1.pop(),
        })
    }
}

/// `function(left·right + bias) + residual` on the CPU.
pub(super) struct Forward<'a, T: Float> {
    pub(super) product: Product,
    pub(super) function: Function,
    /// `x`, and `bias` if there is one.
    pub(super) x: &'a CpuView<'a>,
    pub(super) bias: Option<&'a CpuView<'a>>,
    pub(super) residual: Option<&'a CpuView<'a>>,
    pub(super) right: &'a dyn Source<T::Acc>,
}

impl<T: Float> Forward<'_, T> {
    /// Fill `out` and, if it is wanted, `pre`.
    pub(super) fn store(&self, out: &mut [T], pre: Option<&mut [T]>) -> Result<()> {
        let &Forward { product, function, x, bias, residual, right } = self;
        if out.is_empty() {
            return Ok(());
        }
        let bias = bias.map_or(&[][..], |bias| bias.as_slice::<T>());
        let mut wide_bias = match T::as_acc(bias) {
            Some(_) => CpuBuffer::EMPTY,
            None => CpuBuffer::scratch(OP, size_of::<T::Acc>() * bias.len())?,
        };
        let bias = widened(bias, wide_bias.as_mut_slice());
        // Of each row: that of `pre`, and of the residual.
        type Row<'a, T> = (Option<&'a mut [T]>, Option<&'a [T]>);
        let finish = |(pre, residual): &mut Row<T>, columns: Range<usize>, sums: &mut [T::Acc]| {
            if !bias.is_empty() {
                add(sums, &bias[columns.clone()]);
            }
            if let Some(pre) = pre {
                T::narrow(sums, &mut pre[columns.clone()]);
            }
            function.value_in_place(sums);
            if let Some(residual) = residual {
                let mut wide = [T::Acc::ZERO; BLOCK];
                let blocks = residual[columns].chunks(BLOCK);
                for (sums, residual) in sums.chunks_mut(BLOCK).zip(blocks) {
                    add(sums, widened(residual, &mut wide[..residual.len()]));
                }
            }
        };
        let mut pre = pre.into_iter().flat_map(|pre| pre.chunks_mut(product.n));
        let residual = residual.map_or(&[][..], |residual| residual.as_slice::<T>());
        let mut residual = residual.chunks(product.n);
        let mut rows: SmallVec<[Row<T>; 8]> =
            (0..out.len() / product.n).map(|_| (pre.next(), residual.next())).collect();
        let left = &Dense::<T>::of(x);
        Gemm { product, left, right }.store_finished(out, &mut rows, &finish)
    }
}
