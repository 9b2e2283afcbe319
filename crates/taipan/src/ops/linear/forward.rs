//! The product with bias and activation, as a differentiable op.

use std::ops::Range;

use rayon::prelude::*;

use super::backward::Backward;
use super::gpu::{self, Fused, LocalTensor, Stored};
use super::{Layout, Sizes};
use crate::autograd::{Op, Saved, Slot};
use crate::cpu::CpuBuffer;
use crate::cpu::fold;
use crate::cpu::gemm::{Dense, LaneSums, Lines, Operand, Product, gemm};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::gpu::{Gpu, GpuBuffer, Strided};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run_one, run_saving};
use crate::ops::function::{Function, Saves};
use crate::spec::Spec;
use crate::tensor::Tensor;

/// `function(x·w + bias)`; inputs `x`, `w` and, if there is one, `bias`.
pub(super) struct Linear {
    /// `linear` or `matmul`, for errors.
    pub(super) name: &'static str,
    pub(super) layout: Layout,
    pub(super) function: Function,
    pub(super) derivative: DerivativeFrom,
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
        let backward = Backward::new(self, &saved.specs, &dys[0], activation, products)?;
        let mut grads = vec![None; saved.specs.len()];
        let needs_bias = saved.needs.get(2) == Some(&true);
        if saved.needs[0] {
            grads[0] = Some(backward.dx(saved.input(1))?);
        }
        if saved.needs[1] {
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

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let sizes = Sizes::new(self.layout, inputs)?;
        let x = inputs[0].shape();
        let shape = [&x[..x.len() - 1], &[sizes.n]].concat();
        Ok(vec![Spec::new(self.name, &shape, inputs[0].dtype())?])
    }

    /// `pre = x·w + bias` where the derivative needs it.
    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        match (self.derivative, self.function.saves()) {
            (DerivativeFrom::Saved, Saves::Input) => outputs.to_vec(),
            _ => Vec::new(),
        }
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let specs: Vec<&Spec> = inputs.iter().map(|i| i.spec).collect();
        let sizes = Sizes::new(self.layout, &specs)?;
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let (out, pre) = outputs.split_at_mut(1);
            let pre = pre.first_mut().map(|pre| pre.as_mut_slice::<T>());
            self.forward(sizes, inputs, out[0].as_mut_slice::<T>(), pre)
        })
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let specs: Vec<&Spec> = inputs.iter().map(|i| i.spec).collect();
        let sizes = Sizes::new(self.layout, &specs)?;
        let row = sizes.k * inputs[1].spec.dtype().size();
        let mut windows = gpu.windows(sizes.n, row);
        if sizes.entries > 1 || self.layout == Layout::Kn || windows.next() == Some(0..sizes.n) {
            return self.launch(gpu, sizes, inputs, outputs);
        }
        // The weight is larger than a binding: some of its rows, and columns of the results, at a
        // time.
        for columns in gpu.windows(sizes.n, row) {
            let n = columns.len();
            let rows = |i: usize| LocalTensor::rows(self.name, &inputs[i], columns.clone());
            let slices = (1..inputs.len()).map(rows).collect::<Result<Vec<_>>>()?;
            let x = View { spec: inputs[0].spec, data: inputs[0].data };
            let inputs: Vec<_> =
                [x].into_iter().chain(slices.iter().map(LocalTensor::view)).collect();
            let room =
                |y: &View<_>| LocalTensor::new(self.name, gpu, &[sizes.m, n], y.spec.dtype());
            let blocks = outputs.iter().map(room).collect::<Result<Vec<_>>>()?;
            let views: Vec<_> = blocks.iter().map(LocalTensor::view).collect();
            self.launch(gpu, Sizes { n, ..sizes }, &inputs, &views)?;
            for (block, y) in views.iter().zip(outputs) {
                let dims = vec![[sizes.m, n, sizes.n], [n, 1, 1]];
                gpu.copy(self.name, block, y, Strided { dims, from: 0, to: columns.start })?;
            }
        }
        Ok(())
    }
}

impl Linear {
    fn launch(
        &self,
        gpu: &Gpu,
        sizes: Sizes,
        inputs: &[View<&GpuBuffer>],
        outputs: &[View<&GpuBuffer>],
    ) -> Result<()> {
        let Sizes { entries, m, k, n } = sizes;
        let stored = match self.layout {
            Layout::Kn => Stored::AsIs,
            Layout::Nk => Stored::Transposed,
        };
        let product = gpu::Product {
            op: self.name,
            entries,
            m,
            n,
            k,
            a: gpu::Operand { data: &inputs[0], stored: Stored::AsIs },
            b: gpu::Operand { data: &inputs[1], stored },
            fused: Fused::Epilogue {
                bias: inputs.get(2),
                function: self.function,
                pre: outputs.get(1),
            },
            split_k: false,
        };
        product.launch(gpu, &outputs[0])
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

    /// Fill `out` and, when wanted, `pre`, both `[entries, m, n]`.
    fn forward<T: Float>(
        &self,
        sizes: Sizes,
        inputs: &[View<&CpuBuffer>],
        out: &mut [T],
        pre: Option<&mut [T]>,
    ) -> Result<()> {
        let Sizes { m, k, n, .. } = sizes;
        if out.is_empty() {
            return Ok(());
        }
        let (x, w) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
        let bias = inputs.get(2).map(|bias| {
            let mut wide = vec![T::Acc::ZERO; n];
            T::widen(bias.as_slice::<T>(), &mut wide);
            wide
        });
        let finish = |pre: &mut Option<&mut [T]>, columns: Range<usize>, sums: &mut [T::Acc]| {
            if let Some(bias) = &bias {
                fold::add(sums, &bias[columns.clone()]);
            }
            if let Some(pre) = pre {
                T::narrow(sums, &mut pre[columns]);
            }
            self.function.value(sums);
        };
        // One row of `pre`, or none, for each row of `out`.
        let mut pre: Vec<Option<&mut [T]>> = match pre {
            Some(pre) => pre.chunks_mut(n).map(Some).collect(),
            None => (0..out.len() / n).map(|_| None).collect(),
        };
        out.par_chunks_mut(m * n)
            .zip(pre.par_chunks_mut(m))
            .enumerate()
            .with_min_len(sizes.min_len())
            .try_for_each(|(entry, (out, pre))| {
                let x = Dense { data: &x[entry * m * k..][..m * k], stride: k };
                let w = sizes.weight(self.layout, w, entry);
                let left = Operand { source: &x, lines: Lines::Lanes };
                let right = match self.layout {
                    Layout::Kn => Operand { source: &w, lines: Lines::Depth },
                    Layout::Nk => Operand { source: &w, lines: Lines::Lanes },
                };
                gemm(&Product { m, n, k, left, right }, out, pre, &finish, LaneSums::None)
            })
    }
}
