//! The products on a GPU: one kernel in tiles for all of them, and one for few rows.

use std::ops::Range;

use super::variant::{ProductParams, Second, Shape, Variant};
use crate::DType;
use crate::error::Result;
use crate::gpu::{Binding, Gpu, GpuBuffer, Launch};
use crate::kernel::View;
use crate::ops::function::{Activation, Function};
use crate::ops::reduce::Folding;
use crate::spec::Spec;

/// `y = a·b` for each entry of a batch, with what is done before and behind.
pub(super) struct Product<'a> {
    pub(super) op: &'static str,
    pub(super) entries: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Operand<'a>,
    pub(super) b: Operand<'a>,
    pub(super) fused: Fused<'a>,
    /// Whether it is cut into parts where it is deep and small, as gradients of weights are.
    pub(super) divisible: bool,
}

/// A matrix per entry.
pub(super) struct Operand<'a> {
    pub(super) data: &'a View<'a, &'a GpuBuffer>,
    pub(super) stored: Stored,
}

/// How a matrix lies in memory.
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

/// What a product does besides.
pub(super) enum Fused<'a> {
    /// `y = function(a·b + bias)`, and `pre = a·b + bias` if wanted.
    Epilogue {
        bias: Option<&'a View<'a, &'a GpuBuffer>>,
        function: Function,
        pre: Option<&'a View<'a, &'a GpuBuffer>>,
    },
    /// The operand that is `grad_pre`: computed from `dy`, which is bound in its place, and what was
    /// kept; or at hand, without `kept`.
    Prologue {
        grad_pre: Side,
        kept: Option<&'a View<'a, &'a GpuBuffer>>,
        function: Function,
        /// Where the sums of `grad_pre` over the depth of the product go, over all entries.
        sums: Option<&'a View<'a, &'a GpuBuffer>>,
    },
}

/// The most columns of `x` for which a product that is alone computes `grad_pre` itself: it reads each
/// element once, and to store it would be a pass more.
pub(super) const FEW: usize = 64;

/// Fewer workgroups than this leave a GPU idle: then a deep product is cut into parts.
const ENOUGH_GROUPS: usize = 64;
/// The least depth of a part.
const LEAST_DEPTH: usize = 512;

impl Product<'_> {
    pub(super) fn launch(&self, gpu: &Gpu, y: &View<&GpuBuffer>) -> Result<()> {
        let &Product { op, entries, m, n, k, ref a, ref b, ref fused, .. } = self;
        let shape = self.shape();
        let [rows, columns] = shape.tile();
        let groups = m.div_ceil(rows) * n.div_ceil(columns) * entries;
        let depth = self.depth(shape, groups);
        let parts = k.div_ceil(depth).max(1);

        let y = Sliced::new(op, gpu, y, [entries, parts, m * n])?;
        let (mut bias, mut slope) = (false, None);
        let (mut extra, mut function) = (None, Activation::None.into());
        let (mut sums, mut second) = (None, None);
        match *fused {
            Fused::Epilogue { bias: addend, function: applied, pre } => {
                (bias, extra, function) = (addend.is_some(), addend, applied);
                second = pre.map(|pre| (Second::Pre(pre.spec.dtype()), pre.data.all()));
            }
            Fused::Prologue { grad_pre, kept, function: differentiated, sums: result } => {
                if kept.is_some() {
                    (slope, extra, function) = (Some(grad_pre), kept, differentiated);
                }
                if let Some(result) = result {
                    let sizes = [1, entries * parts, result.spec.len()];
                    let sliced = sums.insert(Sliced::new(op, gpu, result, sizes)?);
                    second = Some((Second::Sums(grad_pre, sliced.dtype()), sliced.binding()));
                }
            }
        }
        let extra = extra.unwrap_or(a.data);
        let variant = Variant {
            shape,
            subgroups: gpu.subgroup_size().is_some_and(|size| shape.fits_subgroups(size)),
            whole: entries == 1 && parts == 1,
            a: (a.data.spec.dtype(), a.stored),
            b: (b.data.spec.dtype(), b.stored),
            extra: extra.spec.dtype(),
            out: y.dtype(),
            function,
            bias,
            slope,
            second: second.map(|(second, _)| second),
        };
        let outputs = [Some(y.binding()), second.map(|(_, binding)| binding)];
        let [m, n, k, entries, parts_, depth] = [m, n, k, entries, parts, depth].map(|x| x as u32);
        gpu.launch(Launch {
            name: op,
            program: variant.program(),
            params: ProductParams { m, n, k, entries, parts: parts_, depth },
            inputs: &[a.data.data.all(), b.data.data.all(), extra.data.all()],
            outputs: &outputs.into_iter().flatten().collect::<Vec<_>>(),
            groups: groups * parts,
            work: (self.entries * self.m * self.n) as u64 * self.k as u64,
        })?;
        y.sum(gpu)?;
        sums.map_or(Ok(()), |sums| sums.sum(gpu))
    }

    fn shape(&self) -> Shape {
        match Shape::of(self.m, self.n, self.b.stored) {
            // Only tiles take sums along.
            Shape::Rows { .. } if matches!(self.fused, Fused::Prologue { sums: Some(_), .. }) => {
                Shape::WIDE
            }
            shape => shape,
        }
    }

    /// How much of `k` a workgroup sums, if there are so many without parts.
    fn depth(&self, shape: Shape, groups: usize) -> usize {
        let parts = match shape {
            Shape::Tiles { .. } if self.divisible => {
                ENOUGH_GROUPS.div_ceil(groups.max(1)).min(self.k / LEAST_DEPTH).max(1)
            }
            _ => 1,
        };
        self.k.div_ceil(parts).next_multiple_of(Shape::STEP).max(Shape::STEP)
    }
}

/// A result that a kernel writes in slices, `[outer, slices, inner]`: in f32, to be summed; or, if
/// there is one, in its place.
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
