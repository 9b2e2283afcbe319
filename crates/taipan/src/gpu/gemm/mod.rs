//! The matrix product, with a fused prologue or epilogue: one tiled kernel for all layouts, and one
//! for few rows.

#[cfg(all(test, feature = "gpu"))]
mod tiles;
mod variant;

#[cfg(test)]
pub(super) use self::variant::programs;
use self::variant::{Adds, ProductParams, Second, Tile, Variant};
use super::{Binding, Gpu, GpuBuffer, GpuView, Grid, Launch};
use crate::DType;
use crate::error::Result;
use crate::function::{Activation, Function};
use crate::product::{Product, Side};
use crate::reduction::{Fold, Reduction};

/// A product, its operands, and what is fused into it.
pub(crate) struct Gemm<'a> {
    pub(crate) product: Product,
    pub(crate) left: &'a GpuView<'a>,
    pub(crate) right: &'a GpuView<'a>,
    pub(crate) fused: Fused<'a>,
    /// Whether a small and deep product may be split along `k`, as for gradients of weights.
    pub(crate) split_k: bool,
}

/// What is fused into a product.
pub(crate) enum Fused<'a> {
    /// `y = function(left·right + bias)`, and optionally `pre = left·right + bias`; or, without a
    /// function, `y = left·right + bias + residual`.
    Epilogue {
        bias: Option<&'a GpuView<'a>>,
        function: Function,
        pre: Option<&'a GpuView<'a>>,
        residual: Option<&'a GpuView<'a>>,
    },
    /// One operand is `grad_pre`: computed from `dy`, which is bound in its place, and `saved`;
    /// without `saved`, it is bound itself.
    Prologue {
        grad_pre: Side,
        saved: Option<&'a GpuView<'a>>,
        function: Function,
        /// The output for the sums of `grad_pre` over `k` and over all entries.
        sums: Option<&'a GpuView<'a>>,
        /// Added to the product, whose shape it has; not with `saved`, nor with a split along `k`.
        addend: Option<&'a GpuView<'a>>,
    },
}

impl Fused<'_> {
    /// Nothing.
    pub(crate) const NONE: Fused<'static> = Fused::Epilogue {
        bias: None,
        function: Function::Activation(Activation::None),
        pre: None,
        residual: None,
    };
}

/// With fewer workgroups a GPU is partly idle, and a deep product is split along `k`.
const ENOUGH_GROUPS: usize = 64;
/// With fewer workgroups than this, another product has smaller tiles: two for each compute unit of a
/// large GPU.
const ENOUGH_TILES: usize = 128;
/// The minimum depth of a split.
const MIN_SPLIT_DEPTH: usize = 512;

/// The number of splits along `k` of a product that may be split and computes no sums.
pub(crate) fn splits(product: Product) -> usize {
    let tile = Tile::of(product, 0);
    let depth = split_depth(product, tile, groups(product, tile));
    product.k.div_ceil(depth).max(1)
}

/// The number of workgroups without a split.
fn groups(Product { entries, m, n, .. }: Product, tile: Tile) -> usize {
    let [rows, columns] = tile.size();
    m.div_ceil(rows) * n.div_ceil(columns) * entries
}

/// The depth that a workgroup sums, of a product that may be split.
fn split_depth(Product { k, .. }: Product, tile: Tile, groups: usize) -> usize {
    let splits = match tile {
        Tile::Block { .. } => ENOUGH_GROUPS.div_ceil(groups.max(1)).min(k / MIN_SPLIT_DEPTH).max(1),
        Tile::Thin { .. } => 1,
    };
    k.div_ceil(splits).next_multiple_of(Tile::STEP).max(Tile::STEP)
}

impl Gemm<'_> {
    /// Fill `y`, `[entries, m, n]`, and the other results of what is fused. If there are
    /// [`splits`], `y` may also be the products of the splits, `[entries, splits, m, n]` in f32.
    pub(crate) fn store(&self, op: &'static str, gpu: &Gpu, y: &GpuView) -> Result<()> {
        self.store_by(self.tile(gpu), op, gpu, y)
    }

    /// The same with tiles of this size.
    fn store_by(&self, tile: Tile, op: &'static str, gpu: &Gpu, y: &GpuView) -> Result<()> {
        let &Gemm { product, left, right, ref fused, .. } = self;
        let Product { entries, m, n, k, .. } = product;
        let groups = groups(product, tile);
        let depth = match self.split_k {
            true => split_depth(product, tile, groups),
            false => k.next_multiple_of(Tile::STEP).max(Tile::STEP),
        };
        let splits = k.div_ceil(depth).max(1);

        let sum = |outer, len, inner| Reduction { fold: Fold::Sum, outer, len, inner };
        let y = Sliced::new(op, gpu, y, sum(entries, splits, m * n))?;
        let (mut adds, mut derivative) = (Adds::Nothing, None);
        let (mut aux, mut function) = (None, Activation::None.into());
        let (mut sums, mut second, mut third) = (None, None, None);
        match *fused {
            Fused::Epilogue { bias, function: applied, pre, residual } => {
                (aux, function) = (bias.or(residual), applied);
                adds = match (bias, residual) {
                    (None, None) => Adds::Nothing,
                    (Some(_), None) => Adds::Bias,
                    (None, Some(_)) => Adds::Matrix,
                    (Some(_), Some(_)) => Adds::BiasAndMatrix,
                };
                third = bias.and(residual);
                second = pre.map(|pre| (Second::Pre(pre.spec.dtype()), pre.all()));
            }
            Fused::Prologue { grad_pre, saved, function: differentiated, sums: result, addend } => {
                if saved.is_some() {
                    (derivative, aux, function) = (Some(grad_pre), saved, differentiated);
                } else if addend.is_some() {
                    (adds, aux) = (Adds::Matrix, addend);
                }
                if let Some(result) = result {
                    let sum = sum(1, entries * splits, result.spec.len());
                    let sliced = sums.insert(Sliced::new(op, gpu, result, sum)?);
                    second = Some((Second::Sums(grad_pre, sliced.dtype()), sliced.binding()));
                }
            }
        }
        let aux = aux.unwrap_or(left);
        let lines = [product.left.columns(m, k), product.right.columns(k, n)];
        let mut variant = Variant {
            tile,
            subgroups: gpu.subgroup_size().is_some_and(|size| tile.fits_subgroups(size)),
            staged_f16: false,
            vec4: matches!(tile, Tile::Block { .. })
                && derivative.is_none()
                && lines.iter().all(|len| len.is_multiple_of(4)),
            whole: entries == 1 && splits == 1,
            left: (left.spec.dtype(), product.left),
            right: (right.spec.dtype(), product.right),
            aux: aux.spec.dtype(),
            out: y.dtype(),
            function,
            adds,
            derivative,
            second: second.map(|(second, _)| second),
        };
        // To widen numbers once is faster on a CPU, which widens none for free.
        variant.staged_f16 = variant.can_stage_f16() && !gpu.is_software();
        let outputs = [Some(y.binding()), second.map(|(_, binding)| binding)];
        let work = (entries * m * n) as u64 * k as u64;
        let [m, n, k, entries, splits_, depth] =
            [m, n, k, entries, splits, depth].map(|x| x as u32);
        gpu.launch(Launch {
            name: op,
            program: variant.program(),
            params: ProductParams { m, n, k, entries, splits: splits_, depth },
            inputs: &[Some(left), Some(right), Some(aux), third]
                .into_iter()
                .flatten()
                .map(|x| x.all())
                .collect::<Vec<_>>(),
            outputs: &outputs.into_iter().flatten().collect::<Vec<_>>(),
            grid: Grid { groups: groups * splits, work },
        })?;
        y.sum(gpu)?;
        sums.map_or(Ok(()), |sums| sums.sum(gpu))
    }

    fn tile(&self, gpu: &Gpu) -> Tile {
        // A CPU has few cores, and a small tile computes less at a time.
        let min_groups = if gpu.is_software() || self.split_k { 0 } else { ENOUGH_TILES };
        match Tile::of(self.product, min_groups) {
            // Only the tiled kernel computes sums.
            Tile::Thin { .. } if matches!(self.fused, Fused::Prologue { sums: Some(_), .. }) => {
                Tile::WIDE
            }
            tile => tile,
        }
    }
}

/// A result that a kernel writes in slices, `[outer, len, inner]`: in f32, to be summed, or
/// directly if there is one slice, or the slices are the result.
struct Sliced<'a> {
    op: &'static str,
    result: &'a GpuView<'a>,
    partial: Option<GpuBuffer>,
    sum: Reduction,
}

impl<'a> Sliced<'a> {
    fn new(op: &'static str, gpu: &Gpu, result: &'a GpuView<'a>, sum: Reduction) -> Result<Self> {
        let len = sum.outer * sum.len * sum.inner;
        let is_summed = sum.len > 1 && result.spec.len() < len;
        let partial = is_summed.then(|| gpu.scratch(op, len * DType::F32.size())).transpose()?;
        Ok(Self { op, result, partial, sum })
    }

    fn dtype(&self) -> DType {
        if self.partial.is_some() { DType::F32 } else { self.result.spec.dtype() }
    }

    fn binding(&self) -> Binding<'_> {
        self.partial.as_ref().unwrap_or(self.result.data).all()
    }

    fn sum(&self, gpu: &Gpu) -> Result<()> {
        let Some(partial) = &self.partial else { return Ok(()) };
        gpu.reduce(self.op, self.sum, (partial.all(), DType::F32), self.result.elements())
    }
}
