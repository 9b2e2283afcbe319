//! The products on a GPU: one kernel in tiles for all of them, and one for few rows.

use crate::DType;
use crate::error::Result;
use crate::gpu::{Binding, Gpu, GpuBuffer, Launch, Program, params};
use crate::kernel::View;
use crate::ops::function::{self, Activation, Function};
use crate::ops::reduce::Folding;

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

params! {
    struct ProductParams { m: u32, n: u32, k: u32, entries: u32, parts: u32, depth: u32 }
}

/// A program's variants.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    pub(super) shape: Shape,
    pub(super) subgroups: bool,
    /// Whether there is one entry and one part.
    pub(super) whole: bool,
    pub(super) a: (DType, Stored),
    pub(super) b: (DType, Stored),
    /// The type of `extra` and of `y`.
    pub(super) extra: DType,
    pub(super) out: DType,
    pub(super) function: Function,
    pub(super) bias: bool,
    pub(super) slope: Option<Side>,
    pub(super) second: Option<Second>,
}

/// What the second result is, and its type.
#[derive(Clone, Copy)]
pub(super) enum Second {
    Pre(DType),
    Sums(Side, DType),
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// `tx·ty` invocations, each with `rm·rn` blocks of 4×4, in steps of `bk`.
    Tiles { tx: u32, ty: u32, rm: u32, rn: u32, bk: u32 },
    /// A workgroup for a row, `share` invocations for a column.
    Rows { share: u32 },
}

impl Shape {
    const WIDE: Shape = Shape::Tiles { tx: 16, ty: 8, rm: 2, rn: 2, bk: 16 }; // 64×128
    const SQUARE: Shape = Shape::Tiles { tx: 8, ty: 8, rm: 2, rn: 2, bk: 16 }; // 64×64
    const NARROW: Shape = Shape::Tiles { tx: 8, ty: 8, rm: 2, rn: 1, bk: 16 }; // 64×32
    /// Neighbouring invocations read neighbours: of a row of `b`, many columns; of a column, many
    /// terms.
    const FLAT: Shape = Shape::Rows { share: 4 };
    const FLAT_TRANSPOSED: Shape = Shape::Rows { share: 16 };

    /// All there are.
    #[cfg(test)]
    const ALL: [Shape; 5] =
        [Shape::WIDE, Shape::SQUARE, Shape::NARROW, Shape::FLAT, Shape::FLAT_TRANSPOSED];

    /// The fastest for `m` rows and `n` columns, of a right side stored like this. A wide tile makes the most of what it reads, unless
    /// much of it is outside.
    fn of(m: usize, n: usize, right: Stored) -> Shape {
        match (m, n) {
            (0..=8, _) if right == Stored::AsIs => Shape::FLAT,
            (0..=8, _) => Shape::FLAT_TRANSPOSED,
            (_, 0..=32) => Shape::NARROW,
            (_, 33..=64 | 129..=192) => Shape::SQUARE,
            _ => Shape::WIDE,
        }
    }

    /// Rows and columns a workgroup computes.
    fn tile(self) -> [usize; 2] {
        match self {
            Shape::Tiles { tx, ty, rm, rn, .. } => [(ty * rm * 4) as usize, (tx * rn * 4) as usize],
            Shape::Rows { share } => [1, (64 / share * 4) as usize],
        }
    }

    /// Whether subgroups of this size lie within a row of invocations, and are enough to read all
    /// rows of its blocks.
    fn fits_subgroups(self, size: u32) -> bool {
        matches!(self, Shape::Tiles { tx, rm, .. } if tx % size == 0 && size >= 4 * rm)
    }
}

impl Variant {
    pub(super) fn program(self) -> Program {
        const NONE: &str = "fn put_second(at: u32, x: f32) {}\n";
        const SOME: &str = "\
            @group(0) @binding(4) var<storage, read_write> second: array<Second>;\n\
            fn put_second(at: u32, x: f32) {\n    second[at] = Second(x);\n}\n";
        let [math, functions] = function::WGSL;
        let (kernel, shape): (_, &[_]) = match self.shape {
            Shape::Tiles { tx, ty, rm, rn, bk } => (
                include_str!("gemm.wgsl"),
                &[("TX", tx), ("TY", ty), ("RM", rm), ("RN", rn), ("BK", bk)],
            ),
            Shape::Rows { share } => (include_str!("thin.wgsl"), &[("SHARE", share)]),
        };
        let fetch = match (self.shape, self.subgroups) {
            (Shape::Rows { .. }, _) => "",
            (_, false) => include_str!("fetch.wgsl"),
            (_, true) => include_str!("fetch_subgroups.wgsl"),
        };
        let (second, pre, sums, second_type) = match self.second {
            None => (NONE, 0, 0, None),
            Some(Second::Pre(dtype)) => (SOME, 1, 0, Some(dtype)),
            Some(Second::Sums(side, dtype)) => (SOME, 0, side as u32, Some(dtype)),
        };
        let mut types =
            vec![("Left", self.a.0), ("Right", self.b.0), ("Extra", self.extra), ("Out", self.out)];
        types.extend(second_type.map(|dtype| ("Second", dtype)));
        let consts = [
            ("WHOLE", self.whole as u32),
            ("TA", (self.a.1 == Stored::Transposed) as u32),
            ("TB", (self.b.1 == Stored::Transposed) as u32),
            ("FUNCTION", self.function.id()),
            ("BIAS", self.bias as u32),
            ("SLOPE", self.slope.map_or(0, |side| side as u32)),
            ("SAVE_PRE", pre),
            ("SUMS", sums),
        ];
        Program::new::<ProductParams>(
            &[math, functions, second, include_str!("operands.wgsl"), kernel, fetch],
            &types,
            &[&consts[..], shape].concat(),
        )
    }
}

/// The most columns of `x` for which the products compute `grad_pre` themselves: each of its
/// elements is then needed once by each, and storing it would be a pass more.
pub(super) const FEW: usize = 32;

/// Fewer workgroups than this leave a GPU idle: then a deep product is cut into parts.
const ENOUGH_GROUPS: usize = 64;
/// The least depth of a part.
const LEAST_DEPTH: usize = 512;

impl Product<'_> {
    pub(super) fn launch(&self, gpu: &Gpu, y: &View<&GpuBuffer>) -> Result<()> {
        let &Product { op, entries, m, n, k, ref a, ref b, ref fused, divisible } = self;
        let mut shape = Shape::of(m, n, b.stored);
        let out = y.spec.dtype();
        let (extra, function, bias, slope) = match *fused {
            Fused::Epilogue { bias, function, .. } => (bias, function, bias.is_some(), None),
            Fused::Prologue { grad_pre, kept, function, .. } => match kept {
                Some(_) => (kept, function, false, Some(grad_pre)),
                None => (None, Activation::None.into(), false, None),
            },
        };
        let sums = match *fused {
            Fused::Prologue { grad_pre, sums: Some(sums), .. } => Some((grad_pre, sums)),
            _ => None,
        };
        if sums.is_some() && matches!(shape, Shape::Rows { .. }) {
            shape = Shape::WIDE; // tiles take the sums along
        }
        let [rows, columns] = shape.tile();
        let groups = m.div_ceil(rows) * n.div_ceil(columns) * entries;
        let parts = match shape {
            Shape::Tiles { .. } if divisible => {
                ENOUGH_GROUPS.div_ceil(groups.max(1)).min(k / LEAST_DEPTH).max(1)
            }
            _ => 1,
        };
        let depth = k.div_ceil(parts).next_multiple_of(64).max(64);
        let parts = k.div_ceil(depth).max(1);
        // What is in parts, or in entries that are summed, is f32 until it is summed.
        let f32s = |len: usize| gpu.scratch(op, len * DType::F32.size());
        let partial = (parts > 1).then(|| f32s(entries * parts * m * n)).transpose()?;
        let sums_len = match sums {
            Some((Side::Left, _)) => m,
            _ => n,
        };
        let partial_sums = (sums.is_some() && entries * parts > 1)
            .then(|| f32s(entries * parts * sums_len))
            .transpose()?;
        let (second, second_out): (_, Option<Binding>) = match (fused, sums) {
            (Fused::Epilogue { pre: Some(pre), .. }, _) => {
                (Some(Second::Pre(pre.spec.dtype())), Some(pre.data.all()))
            }
            (_, Some((side, sums))) => match &partial_sums {
                Some(partial) => (Some(Second::Sums(side, DType::F32)), Some(partial.all())),
                None => (Some(Second::Sums(side, sums.spec.dtype())), Some(sums.data.all())),
            },
            _ => (None, None),
        };
        let subgroups = gpu.subgroup_size().is_some_and(|size| shape.fits_subgroups(size));
        let variant = Variant {
            shape,
            subgroups,
            whole: entries == 1 && parts == 1,
            a: (a.data.spec.dtype(), a.stored),
            b: (b.data.spec.dtype(), b.stored),
            extra: extra.map_or(a.data.spec.dtype(), |extra| extra.spec.dtype()),
            out: if partial.is_some() { DType::F32 } else { out },
            function,
            bias,
            slope,
            second,
        };
        let outputs: Vec<Binding> = [partial.as_ref().map_or(y.data.all(), GpuBuffer::all)]
            .into_iter()
            .chain(second_out)
            .collect();
        gpu.launch(Launch {
            name: op,
            program: variant.program(),
            params: ProductParams {
                m: m as u32,
                n: n as u32,
                k: k as u32,
                entries: entries as u32,
                parts: parts as u32,
                depth: depth as u32,
            },
            inputs: &[a.data.data.all(), b.data.data.all(), extra.unwrap_or(a.data).data.all()],
            outputs: &outputs,
            groups: groups * parts,
        })?;
        if let Some(partial) = &partial {
            let sum = Folding::sum(op, DType::F32, out);
            sum.launch(gpu, partial.all(), [entries, parts, m * n], y.data.all())?;
        }
        if let (Some((_, sums)), Some(partial)) = (sums, &partial_sums) {
            let sum = Folding::sum(op, DType::F32, sums.spec.dtype());
            sum.launch(gpu, partial.all(), [1, entries * parts, sums_len], sums.data.all())?;
        }
        Ok(())
    }
}

/// Every program of this file.
#[cfg(test)]
pub(crate) fn programs(elem: DType) -> Vec<Program> {
    use crate::ops::function::Kept;
    const PLAIN: Function = Function::Activation(Activation::None);
    let mut all = Vec::new();
    let both = [Stored::AsIs, Stored::Transposed];
    let yes_no = [false, true].into_iter();
    let ways =
        yes_no.clone().flat_map(|subgroups| yes_no.clone().map(move |whole| (subgroups, whole)));
    for (shape, (subgroups, whole)) in
        Shape::ALL.into_iter().flat_map(|s| ways.clone().map(move |w| (s, w)))
    {
        if subgroups && !shape.fits_subgroups(8) {
            continue;
        }
        let base = Variant {
            shape,
            subgroups,
            whole,
            a: (elem, Stored::AsIs),
            b: (elem, Stored::AsIs),
            extra: elem,
            out: elem,
            function: PLAIN,
            bias: false,
            slope: None,
            second: None,
        };
        for function in Activation::ALL.map(Function::from) {
            let pres: &[_] = match function.kept() {
                Kept::Input => &[None, Some(Second::Pre(elem))],
                _ => &[None],
            };
            for (stored, bias, &second) in both.iter().flat_map(|&stored| {
                let biases = [false, true].into_iter();
                biases.flat_map(move |bias| pres.iter().map(move |second| (stored, bias, second)))
            }) {
                all.push(Variant { b: (elem, stored), function, bias, second, ..base });
            }
            // Backward: `grad_pre` computed here, or at hand in f32 or, if φ' is 1, as `dy`.
            let (slopes, types) = match function {
                PLAIN => (false, [elem, DType::F32]),
                _ => (true, [elem; 2]),
            };
            let slope = |side| slopes.then_some(side);
            for grad_pre in types {
                all.extend(both.map(|stored| Variant {
                    a: (grad_pre, Stored::AsIs),
                    b: (elem, stored),
                    extra: if slopes { elem } else { grad_pre },
                    function,
                    slope: slope(Side::Left),
                    ..base
                }));
                for (out, sums) in [
                    (elem, None),
                    (elem, Some(elem)),
                    (elem, Some(DType::F32)),
                    (DType::F32, None),
                    (DType::F32, Some(DType::F32)),
                ] {
                    let parts = out != elem || sums.is_some_and(|sums| sums != elem);
                    if whole && parts && elem != DType::F32
                        || sums.is_some() && matches!(shape, Shape::Rows { .. })
                    {
                        continue;
                    }
                    all.push(Variant {
                        a: (elem, Stored::Transposed),
                        b: (grad_pre, Stored::AsIs),
                        out,
                        function,
                        slope: slope(Side::Right),
                        second: sums.map(|sums| Second::Sums(Side::Right, sums)),
                        ..base
                    });
                    all.push(Variant {
                        a: (grad_pre, Stored::Transposed),
                        b: (elem, Stored::AsIs),
                        extra: if slopes { elem } else { grad_pre },
                        out,
                        function,
                        slope: slope(Side::Left),
                        second: sums.map(|sums| Second::Sums(Side::Left, sums)),
                        ..base
                    });
                }
            }
        }
    }
    all.into_iter().map(Variant::program).collect()
}
