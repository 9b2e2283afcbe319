//! The products on a GPU: one tiled kernel for all of them, and one for few rows.

use std::ops::Range;

use super::variant::{ProductParams, Second, Tile, Variant};
use crate::DType;
use crate::error::Result;
use crate::gpu::{Binding, Gpu, GpuBuffer, Launch};
use crate::kernel::View;
use crate::ops::function::{Activation, Function};
use crate::ops::reduce::Folding;
use crate::spec::Spec;

/// `y = a·b` for each entry of a batch, with a fused prologue or epilogue.
pub(super) struct Product<'a> {
    pub(super) op: &'static str,
    pub(super) entries: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Operand<'a>,
    pub(super) b: Operand<'a>,
    pub(super) fused: Fused<'a>,
    /// Whether a small and deep product may be split along `k`, as for gradients of weights.
    pub(super) split_k: bool,
}

/// A matrix per entry.
pub(super) struct Operand<'a> {
    pub(super) data: &'a View<'a, &'a GpuBuffer>,
    pub(super) stored: Stored,
}

/// How a matrix is stored.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Stored {
    AsIs,
    Transposed,
}

/// One of the operands.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Left = 1,
    Right = 2,
}

/// What is fused into a product.
pub(super) enum Fused<'a> {
    /// `y = function(a·b + bias)`, and optionally `pre = a·b + bias`.
    Epilogue {
        bias: Option<&'a View<'a, &'a GpuBuffer>>,
        function: Function,
        pre: Option<&'a View<'a, &'a GpuBuffer>>,
    },
    /// One operand is `grad_pre`: computed from `dy`, which is bound in its place, and `saved`;
    /// without `saved`, it is bound itself.
    Prologue {
        grad_pre: Side,
        saved: Option<&'a View<'a, &'a GpuBuffer>>,
        function: Function,
        /// The output for the sums of `grad_pre` over `k` and over all entries.
        sums: Option<&'a View<'a, &'a GpuBuffer>>,
    },
}

/// The largest number of columns of `x` for which a single product computes `grad_pre` itself: it
/// reads each element once, and storing `grad_pre` would be another pass.
pub(super) const FEW: usize = 64;

/// With fewer workgroups a GPU is partly idle, and a deep product is split along `k`.
const ENOUGH_GROUPS: usize = 64;
/// The minimum depth of a split.
const MIN_SPLIT_DEPTH: usize = 512;

impl Product<'_> {
    pub(super) fn launch(&self, gpu: &Gpu, y: &View<&GpuBuffer>) -> Result<()> {
        let &Product { op, entries, m, n, k, ref a, ref b, ref fused, .. } = self;
        let tile = self.tile();
        let [rows, columns] = tile.size();
        let groups = m.div_ceil(rows) * n.div_ceil(columns) * entries;
        let depth = self.depth(tile, groups);
        let splits = k.div_ceil(depth).max(1);

        let y = Sliced::new(op, gpu, y, [entries, splits, m * n])?;
        let (mut bias, mut derivative) = (false, None);
        let (mut aux, mut function) = (None, Activation::None.into());
        let (mut sums, mut second) = (None, None);
        match *fused {
            Fused::Epilogue { bias: addend, function: applied, pre } => {
                (bias, aux, function) = (addend.is_some(), addend, applied);
                second = pre.map(|pre| (Second::Pre(pre.spec.dtype()), pre.data.all()));
            }
            Fused::Prologue { grad_pre, saved, function: differentiated, sums: result } => {
                if saved.is_some() {
                    (derivative, aux, function) = (Some(grad_pre), saved, differentiated);
                }
                if let Some(result) = result {
                    let sizes = [1, entries * splits, result.spec.len()];
                    let sliced = sums.insert(Sliced::new(op, gpu, result, sizes)?);
                    second = Some((Second::Sums(grad_pre, sliced.dtype()), sliced.binding()));
                }
            }
        }
        let aux = aux.unwrap_or(a.data);
        let variant = Variant {
            tile,
            subgroups: gpu.subgroup_size().is_some_and(|size| tile.fits_subgroups(size)),
            whole: entries == 1 && splits == 1,
            a: (a.data.spec.dtype(), a.stored),
            b: (b.data.spec.dtype(), b.stored),
            aux: aux.spec.dtype(),
            out: y.dtype(),
            function,
            bias,
            derivative,
            second: second.map(|(second, _)| second),
        };
        let outputs = [Some(y.binding()), second.map(|(_, binding)| binding)];
        let [m, n, k, entries, splits_, depth] =
            [m, n, k, entries, splits, depth].map(|x| x as u32);
        gpu.launch(Launch {
            name: op,
            program: variant.program(),
            params: ProductParams { m, n, k, entries, splits: splits_, depth },
            inputs: &[a.data.data.all(), b.data.data.all(), aux.data.all()],
            outputs: &outputs.into_iter().flatten().collect::<Vec<_>>(),
            groups: groups * splits,
            work: (self.entries * self.m * self.n) as u64 * self.k as u64,
        })?;
        y.sum(gpu)?;
        sums.map_or(Ok(()), |sums| sums.sum(gpu))
    }

    fn tile(&self) -> Tile {
        match Tile::of(self.m, self.n, self.b.stored) {
            // Only the tiled kernel computes sums.
            Tile::Thin { .. } if matches!(self.fused, Fused::Prologue { sums: Some(_), .. }) => {
                Tile::WIDE
            }
            tile => tile,
        }
    }

    /// The depth that a workgroup sums, given the number of workgroups without a split.
    fn depth(&self, tile: Tile, groups: usize) -> usize {
        let splits = match tile {
            Tile::Block { .. } if self.split_k => {
                ENOUGH_GROUPS.div_ceil(groups.max(1)).min(self.k / MIN_SPLIT_DEPTH).max(1)
            }
            _ => 1,
        };
        self.k.div_ceil(splits).next_multiple_of(Tile::STEP).max(Tile::STEP)
    }
}

/// A result that a kernel writes in slices, `[outer, slices, inner]`: in f32, to be summed, or
/// directly if there is one slice.
struct Sliced<'a> {
    op: &'static str,
    result: &'a View<'a, &'a GpuBuffer>,
    partial: Option<GpuBuffer>,
    sizes: [usize; 3],
}

impl<'a> Sliced<'a> {
    fn new(
        op: &'static str,
        gpu: &Gpu,
        result: &'a View<'a, &'a GpuBuffer>,
        sizes: [usize; 3],
    ) -> Result<Self> {
        let bytes = sizes.iter().product::<usize>() * DType::F32.size();
        let partial = (sizes[1] > 1).then(|| gpu.scratch(op, bytes)).transpose()?;
        Ok(Self { op, result, partial, sizes })
    }

    fn dtype(&self) -> DType {
        if self.partial.is_some() { DType::F32 } else { self.result.spec.dtype() }
    }

    fn binding(&self) -> Binding<'_> {
        self.partial.as_ref().unwrap_or(self.result.data).all()
    }

    fn sum(&self, gpu: &Gpu) -> Result<()> {
        let Some(partial) = &self.partial else { return Ok(()) };
        let sum = Folding::sum(self.op, DType::F32, self.result.spec.dtype());
        sum.launch(gpu, partial.all(), self.sizes, self.result.data.all())
    }
}

/// A tensor that exists within a kernel only: in a buffer of its own, or a window of another.
pub(super) struct LocalTensor {
    pub(super) spec: Spec,
    data: GpuBuffer,
}

impl LocalTensor {
    pub(super) fn new(
        op: &'static str,
        gpu: &Gpu,
        shape: &[usize],
        dtype: DType,
    ) -> Result<LocalTensor> {
        let spec = Spec::new(op, shape, dtype)?;
        Ok(LocalTensor { data: gpu.scratch(op, spec.bytes())?, spec })
    }

    /// A range of rows of a tensor, which must begin at the alignment of bindings.
    pub(super) fn rows(
        op: &'static str,
        of: &View<&GpuBuffer>,
        rows: Range<usize>,
    ) -> Result<LocalTensor> {
        let (inner, dtype) = (&of.spec.shape()[1..], of.spec.dtype());
        let spec = Spec::new(op, &[&[rows.len()], inner].concat(), dtype)?;
        let bytes = inner.iter().product::<usize>() * dtype.size();
        Ok(LocalTensor { data: of.data.window(rows, bytes), spec })
    }

    pub(super) fn view(&self) -> View<'_, &GpuBuffer> {
        View { spec: &self.spec, data: &self.data }
    }
}
