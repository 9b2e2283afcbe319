//! Elements looked up along a dimension, each by an index of its own; and the adjoint, which adds
//! them there.

use smallvec::smallvec;

use super::embedding::ensure_below;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{ELEMENTS, Grid, INDEX_ERRORS, Launch, Program, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::{Spec, ensure_dim};
use crate::tensor::Tensor;

impl Tensor {
    /// `y[…, j, …] = x[…, index[…, j, …], …]`, the indices along `dim`. `index`, of type `u32`, has
    /// the shape of the result: that of this tensor, but for any size of `dim`. An index that is too
    /// large is an error, as in [`embedding`](crate::embedding).
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// // The log-probability of the token that came next.
    /// let logits = Tensor::new(&[0f32, 0.0, 1.0, 1.0], &[2, 2], &Device::Cpu)?;
    /// let next = Tensor::new(&[1u32, 0], &[2, 1], &Device::Cpu)?;
    /// let y = logits.log_softmax(1)?.gather(1, &next)?;
    /// assert_eq!(y.shape(), [2, 1]);
    /// assert!((y.sum()?.item()? + 2.0 * 2f64.ln()).abs() < 1e-6);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn gather(&self, dim: usize, index: &Tensor) -> Result<Tensor> {
        apply_one(Gather(dim), &[self, index])
    }

    /// This tensor, with each element of `source` added at the index along `dim` that `index` has
    /// for it: `y[…, index[…, j, …], …] += source[…, j, …]`. `index`, of type `u32`, and `source`
    /// have the shape of this tensor, but for any size of `dim`. Sums are in the wide type, in the
    /// order of `source`, and rounded once.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let bins = Tensor::new(&[2u32, 0, 2], &[3], &Device::Cpu)?;
    /// let ones = Tensor::ones(&[3], DType::F32, &Device::Cpu)?;
    /// let counts = Tensor::zeros(&[4], DType::F32, &Device::Cpu)?.scatter_add(0, &bins, &ones)?;
    /// assert_eq!(counts.read_blocking::<f32>()?, [1.0, 0.0, 2.0, 0.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn scatter_add(&self, dim: usize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        apply_one(ScatterAdd(dim), &[self, index, source])
    }

    /// Indices as rows of zeros with a one: `[…]` of type `u32` gives `[…, classes]` of `dtype`. An
    /// index that is not below `classes` is an error.
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        self.dtype().ensure(DType::U32, "one_hot", "the input")?;
        let zeros = Tensor::zeros(&[self.shape(), &[classes]].concat(), dtype, self.device())?;
        let index = self.unsqueeze(self.rank())?;
        let ones = Tensor::ones(index.shape(), dtype, self.device())?;
        run_one(&ScatterAdd(self.rank()), &[&zeros, &index, &ones])
    }
}

/// Inputs `x` and `index`, along a dimension.
struct Gather(usize);

impl Op for Gather {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Input(1)
    }

    /// `dx[…, index[…, j, …], …] += dy[…, j, …]`, from 0.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let x = &saved.specs[0];
        let zeros = Tensor::zeros(x.shape(), x.dtype(), dys[0].device())?;
        Ok(vec![Some(run_one(&ScatterAdd(self.0), &[&zeros, saved.input(1), &dys[0]])?), None])
    }
}

impl Kernel for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        check(self.name(), self.0, inputs[0], inputs[1])?;
        Ok(smallvec![Spec::new(self.name(), inputs[1].shape(), inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let Sizes { n, count, inner } = Sizes::new(self.0, inputs[0].spec, inputs[1].spec);
        let index = inputs[1].as_slice::<u32>();
        ensure_below(self.name(), "index", index, n, None)?;
        with_dtype!(inputs[0].spec.dtype(), T: Bits => {
            let x = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<T>(), GRAIN, |start, chunk| {
                for (i, y) in chunk.iter_mut().enumerate() {
                    let at = start + i;
                    let row = at / inner / count * n + index[at] as usize;
                    *y = x[row * inner + at % inner];
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let sizes = Sizes::new(self.0, io.inputs[0].spec, io.inputs[1].spec);
        let len = io.outputs[0].spec.len();
        launch(io, gather_program(io.outputs[0].spec.dtype()), sizes, Grid::elements(len))
    }
}

/// Inputs `x`, `index` and `source`, along a dimension.
struct ScatterAdd(usize);

impl Op for ScatterAdd {
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool {
        slot == Slot::Input(1) && needs[2]
    }

    /// `dx = dy`, `dsource[…, j, …] = dy[…, index[…, j, …], …]`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let dsource = match saved.needs[2] {
            true => Some(run_one(&Gather(self.0), &[&dys[0], saved.input(1)])?),
            false => None,
        };
        Ok(vec![Some(dys[0].clone()), None, dsource])
    }
}

impl Kernel for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (op, [x, index, source]) = (self.name(), [inputs[0], inputs[1], inputs[2]]);
        x.dtype().ensure_float(op, "the input")?;
        source.dtype().ensure(x.dtype(), op, "the source")?;
        check(op, self.0, x, index)?;
        let (found, expected) = (source.shape(), index.shape());
        ensure!(op, found == expected, "the source is {found:?}, expected {expected:?}");
        Ok(smallvec![x.clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let Sizes { n, count, inner } = Sizes::new(self.0, inputs[0].spec, inputs[1].spec);
        let index = inputs[1].as_slice::<u32>();
        ensure_below(self.name(), "index", index, n, None)?;
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let [x, source] = [&inputs[0], &inputs[2]].map(|view| view.as_slice::<T>());
            for_chunks(outputs[0].as_mut_slice::<T>(), n * inner, |start, y| {
                let mut sums = vec![<T as Float>::Acc::ZERO; y.len()];
                T::widen(&x[start..start + y.len()], &mut sums);
                let at = start / n * count; // of [outer, inner], times count
                let mut terms = vec![<T as Float>::Acc::ZERO; inner];
                for j in (at..at + count * inner).step_by(inner) {
                    T::widen(&source[j..j + inner], &mut terms);
                    for (column, (i, term)) in index[j..].iter().zip(&terms).enumerate() {
                        sums[*i as usize * inner + column] += *term;
                    }
                }
                T::narrow(&sums, y);
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let sizes = Sizes::new(self.0, io.inputs[0].spec, io.inputs[1].spec);
        let len = io.outputs[0].spec.len();
        let grid = Grid { work: len as u64 * (1 + sizes.count) as u64, ..Grid::elements(len) };
        launch(io, scatter_program(io.outputs[0].spec.dtype()), sizes, grid)
    }
}

/// `x` is `[outer, n, inner]`, the index `[outer, count, inner]`.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    count: usize,
    inner: usize,
}

impl Sizes {
    fn new(dim: usize, x: &Spec, index: &Spec) -> Sizes {
        let inner = x.shape()[dim + 1..].iter().product();
        Sizes { n: x.shape()[dim], count: index.shape()[dim], inner }
    }
}

fn check(op: &'static str, dim: usize, x: &Spec, index: &Spec) -> Result<()> {
    index.dtype().ensure(DType::U32, op, "the index")?;
    ensure_dim(op, dim, x.shape())?;
    let (found, expected) = (index.shape(), x.shape());
    let same = |d: usize| d == dim || found[d] == expected[d];
    ensure!(
        op,
        found.len() == expected.len() && (0..found.len()).all(same),
        "the index is {found:?}, expected the sizes of {expected:?} in all dimensions but {dim}"
    );
    let is_empty = expected[dim] == 0 && index.len() > 0;
    ensure!(op, !is_empty, "dimension {dim} of {expected:?} is empty, expected an index or more");
    Ok(())
}

params! {
    struct GatherParams { len: u32, n: u32, count: u32, inner: u32, slot: u32, nan: f32 }
}

fn launch(io: GpuIo, program: Program, sizes: Sizes, grid: Grid) -> Result<()> {
    let GpuIo { op, gpu, inputs, outputs } = io;
    let len = outputs[0].spec.len();
    let [len, n, count, inner] = kernel_sizes(op, [len, sizes.n, sizes.count, sizes.inner])?;
    let slot = gpu.index_error_slot(op, "index");
    gpu.launch(Launch {
        name: op,
        program,
        params: GatherParams { len, n, count, inner, slot, nan: f32::NAN },
        inputs: &inputs.iter().map(|input| input.all()).collect::<Vec<_>>(),
        outputs: &[outputs[0].all(), gpu.index_errors()],
        grid,
    })
}

fn gather_program(elem: DType) -> Program {
    let source = [wgsl!("gather.wgsl"), INDEX_ERRORS, ELEMENTS];
    Program::new::<GatherParams>(&source, &[("Elem", elem)], &[])
}

fn scatter_program(elem: DType) -> Program {
    let source = [wgsl!("scatter_add.wgsl"), INDEX_ERRORS, ELEMENTS];
    Program::new::<GatherParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![gather_program(elem), scatter_program(elem)]
}
