//! The programs of the products, and the choice of one by the sizes.

use crate::DType;
#[cfg(test)]
use crate::function::Activation;
use crate::function::Function;
use crate::gpu::{GROUPS, Program, params};
use crate::product::{Layout, Product, Side};

params! {
    pub(super) struct ProductParams {
        m: u32, n: u32, k: u32, entries: u32, splits: u32, depth: u32,
    }
}

/// A variant of the program.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    pub(super) tile: Tile,
    pub(super) subgroups: bool,
    /// Whether tiles are staged in f16, which both operands are.
    pub(super) staged_f16: bool,
    /// Whether operands are loaded four elements at a time: lines are multiples of four.
    pub(super) vec4: bool,
    /// Whether there is one entry and no split along `k`.
    pub(super) whole: bool,
    pub(super) left: (DType, Layout),
    pub(super) right: (DType, Layout),
    /// The type of what is added, or of the saved tensor.
    pub(super) aux: DType,
    pub(super) out: DType,
    pub(super) function: Function,
    pub(super) adds: Adds,
    pub(super) derivative: Option<Side>,
    pub(super) second: Option<Second>,
}

/// What is added to the sums.
#[derive(Clone, Copy)]
pub(super) enum Adds {
    Nothing,
    /// `[n]`, to each row.
    Bias,
    /// `[m, n]`
    Matrix,
    /// Both; the matrix is bound by itself.
    BiasAndMatrix,
}

/// The second result, and its type.
#[derive(Clone, Copy)]
pub(super) enum Second {
    Pre(DType),
    Sums(Side, DType),
}

/// The block of the result that a workgroup computes, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Tile {
    /// `tx·ty` invocations, each with `rm·rn` blocks of 4×4, in steps of `bk`.
    Block { tx: u32, ty: u32, rm: u32, rn: u32, bk: u32 },
    /// `rows` rows, with `share` invocations for a column.
    Thin { rows: u32, share: u32 },
}

impl Tile {
    pub(super) const WIDE: Tile = Tile::Block { tx: 16, ty: 8, rm: 2, rn: 2, bk: 16 }; // 64×128
    const SQUARE: Tile = Tile::Block { tx: 8, ty: 8, rm: 2, rn: 2, bk: 16 }; // 64×64
    const NARROW: Tile = Tile::Block { tx: 8, ty: 8, rm: 2, rn: 1, bk: 16 }; // 64×32
    const SMALL: Tile = Tile::Block { tx: 8, ty: 8, rm: 1, rn: 1, bk: 16 }; // 32×32
    /// From the largest to the smallest.
    pub(super) const BLOCKS: [Tile; 4] = [Tile::WIDE, Tile::SQUARE, Tile::NARROW, Tile::SMALL];
    /// The most rows of a thin tile.
    const FEW_ROWS: u32 = 8;

    /// Splits begin at multiples of this, which is a multiple of every `bk`.
    pub(super) const STEP: usize = 64;

    /// All there are.
    #[cfg(test)]
    const ALL: [Tile; 8] = [
        Tile::WIDE,
        Tile::SQUARE,
        Tile::NARROW,
        Tile::SMALL,
        Tile::thin(1, Layout::RowMajor),
        Tile::thin(1, Layout::Transposed),
        Tile::thin(2, Layout::RowMajor),
        Tile::thin(2, Layout::Transposed),
    ];

    /// The fastest for a product. A wide tile reuses most of what it loads, unless much of it is
    /// outside the result, or there are fewer tiles than the GPU has room for.
    pub(super) fn of(product: Product, min_groups: usize) -> Tile {
        let Product { entries, m, n, .. } = product;
        let largest = match (m, n) {
            (0..=8, _) => return Tile::thin(m, product.right),
            (0..=32, 0..=32) => Tile::SMALL,
            (_, 0..=32) => Tile::NARROW,
            (_, 33..=64 | 129..=192) => Tile::SQUARE,
            _ => Tile::WIDE,
        };
        let fits = |tile: &Tile| {
            let [rows, columns] = tile.size();
            entries * m.div_ceil(rows) * n.div_ceil(columns) >= min_groups
        };
        let mut not_larger = Tile::BLOCKS.into_iter().skip_while(|tile| *tile != largest);
        not_larger.find(fits).unwrap_or(Tile::SMALL)
    }

    /// For few rows. Neighbouring invocations read contiguous elements: columns of a row of the
    /// right side, or terms of a column.
    const fn thin(m: usize, right: Layout) -> Tile {
        let rows = if m <= 1 { 1 } else { Tile::FEW_ROWS };
        let share = match right {
            Layout::RowMajor => 4,
            Layout::Transposed => 16,
        };
        Tile::Thin { rows, share }
    }

    /// Rows and columns a workgroup computes.
    pub(super) fn size(self) -> [usize; 2] {
        match self {
            Tile::Block { tx, ty, rm, rn, .. } => [(ty * rm * 4) as usize, (tx * rn * 4) as usize],
            Tile::Thin { rows, share } => [rows as usize, (64 / share * 4) as usize],
        }
    }

    /// Whether subgroups of this size lie within a row of invocations, and have enough lanes to
    /// load all rows of its blocks.
    pub(super) fn fits_subgroups(self, size: u32) -> bool {
        matches!(self, Tile::Block { tx, rm, .. } if tx % size == 0 && size >= 4 * rm.max(2))
    }
}

impl Variant {
    /// Whether the tiles hold nothing but f16.
    pub(super) fn can_stage_f16(&self) -> bool {
        matches!(self.tile, Tile::Block { .. })
            && self.derivative.is_none()
            && [self.left.0, self.right.0] == [DType::F16; 2]
    }

    pub(super) fn program(self) -> Program {
        const RESULT: &str = "\
            @group(0) @binding(3) var<storage, read_write> y: array<Out>;\n\
            fn matrix_at(at: u32) -> f32 {\n    return f32(aux[at]);\n}\n";
        const MATRIX_AND_RESULT: &str = "\
            @group(0) @binding(3) var<storage, read> matrix: array<Aux>;\n\
            @group(0) @binding(4) var<storage, read_write> y: array<Out>;\n\
            fn matrix_at(at: u32) -> f32 {\n    return f32(matrix[at]);\n}\n";
        const NONE: &str = "fn put_second(at: u32, x: f32) {}\n";
        const SOME: &str = "\
            @group(0) @binding(4) var<storage, read_write> second: array<Second>;\n\
            fn put_second(at: u32, x: f32) {\n    second[at] = Second(x);\n}\n";
        let (kernel, sizes): (_, &[_]) = match self.tile {
            Tile::Block { tx, ty, rm, rn, bk } => {
                (wgsl!("gemm.wgsl"), &[("TX", tx), ("TY", ty), ("RM", rm), ("RN", rn), ("BK", bk)])
            }
            Tile::Thin { rows, share } => (wgsl!("thin.wgsl"), &[("ROWS", rows), ("SHARE", share)]),
        };
        let fetch: &[_] = match self.subgroups {
            false => &[wgsl!("fetch.wgsl"), GROUPS],
            true => &[wgsl!("fetch_subgroups.wgsl")],
        };
        let staged = match self.staged_f16 {
            false => wgsl!("staged_f32.wgsl"),
            true => wgsl!("staged_f16.wgsl"),
        };
        let (left, right) = match self.vec4 {
            false => (wgsl!("left.wgsl"), wgsl!("right.wgsl")),
            true => (wgsl!("left_vec4.wgsl"), wgsl!("right_vec4.wgsl")),
        };
        let (staging, fetch): (&[_], _) = match (self.tile, self.vec4) {
            (Tile::Thin { .. }, _) => (&[], &[GROUPS][..]),
            (_, false) => (&[staged, wgsl!("elements.wgsl")], fetch),
            (_, true) => (&[staged], fetch),
        };
        let (second, pre, sums, second_type) = match self.second {
            None => (NONE, 0, 0, None),
            Some(Second::Pre(dtype)) => (SOME, 1, 0, Some(dtype)),
            Some(Second::Sums(side, dtype)) => (SOME, 0, side as u32, Some(dtype)),
        };
        let result = match self.adds {
            Adds::BiasAndMatrix => MATRIX_AND_RESULT,
            _ => RESULT,
        };
        let mut types = vec![
            ("Left", self.left.0),
            ("Right", self.right.0),
            ("Aux", self.aux),
            ("Out", self.out),
        ];
        types.extend(second_type.map(|dtype| ("Second", dtype)));
        let consts = [
            ("WHOLE", self.whole as u32),
            ("VEC4", self.vec4 as u32),
            ("TA", (self.left.1 == Layout::Transposed) as u32),
            ("TB", (self.right.1 == Layout::Transposed) as u32),
            ("ADDS", self.adds as u32),
            ("DERIVATIVE", self.derivative.map_or(0, |side| side as u32)),
            ("SAVE_PRE", pre),
            ("SUMS", sums),
        ];
        self.function.program::<ProductParams>(
            &[&[second, wgsl!("operands.wgsl"), result, left, right, kernel], staging, fetch]
                .concat(),
            &types,
            &[&consts[..], sizes].concat(),
        )
    }
}

/// Every program of this file.
#[cfg(test)]
pub(crate) fn programs(elem: DType) -> Vec<Program> {
    use crate::function::Saves;
    const PLAIN: Function = Function::Activation(Activation::None);
    let mut all = Vec::new();
    let both = [Layout::RowMajor, Layout::Transposed];
    let yes_no = [false, true].into_iter();
    let ways =
        yes_no.clone().flat_map(|subgroups| yes_no.clone().map(move |whole| (subgroups, whole)));
    for (tile, (subgroups, whole)) in
        Tile::ALL.into_iter().flat_map(|s| ways.clone().map(move |w| (s, w)))
    {
        if subgroups && !tile.fits_subgroups(8) {
            continue;
        }
        let base = Variant {
            tile,
            subgroups,
            staged_f16: false,
            vec4: false,
            whole,
            left: (elem, Layout::RowMajor),
            right: (elem, Layout::RowMajor),
            aux: elem,
            out: elem,
            function: PLAIN,
            adds: Adds::Nothing,
            derivative: None,
            second: None,
        };
        // Logits and their gradients: in f32 whatever the other operand is.
        for layout in both {
            let (right, out) = ((elem, layout), DType::F32);
            all.push(Variant { right, out, ..base });
            all.push(Variant { left: (out, Layout::RowMajor), right, aux: out, out, ..base });
        }
        // The text of a function is the same in all of them: one tile has all functions.
        let functions = match tile {
            Tile::WIDE => Activation::ALL,
            _ => &[Activation::None, Activation::Gelu, Activation::Tanh],
        };
        for function in functions.iter().copied().map(Function::from) {
            let pres: &[_] = match function.saves() {
                Saves::Input => &[None, Some(Second::Pre(elem))],
                _ => &[None],
            };
            for (layout, adds, &second) in both.iter().flat_map(|&layout| {
                let biases = [Adds::Nothing, Adds::Bias].into_iter();
                biases.flat_map(move |adds| pres.iter().map(move |second| (layout, adds, second)))
            }) {
                all.push(Variant { right: (elem, layout), function, adds, second, ..base });
            }
            if function == PLAIN {
                for adds in [Adds::Matrix, Adds::BiasAndMatrix] {
                    all.extend(both.map(|layout| Variant { right: (elem, layout), adds, ..base }));
                }
            }
            // Backward: `grad_pre` is computed here, or bound in f32 or, if φ' is 1, as `dy`.
            let (differentiates, types) = match function {
                PLAIN => (false, [elem, DType::F32]),
                _ => (true, [elem; 2]),
            };
            let derivative = |side| differentiates.then_some(side);
            for grad_pre in types {
                all.extend(both.map(|layout| Variant {
                    left: (grad_pre, Layout::RowMajor),
                    right: (elem, layout),
                    aux: if differentiates { elem } else { grad_pre },
                    function,
                    derivative: derivative(Side::Left),
                    ..base
                }));
                if !differentiates {
                    all.extend(both.map(|layout| Variant {
                        left: (grad_pre, Layout::RowMajor),
                        right: (elem, layout),
                        adds: Adds::Matrix,
                        ..base
                    }));
                }
                for (out, sums) in [
                    (elem, None),
                    (elem, Some(elem)),
                    (elem, Some(DType::F32)),
                    (DType::F32, None),
                    (DType::F32, Some(DType::F32)),
                ] {
                    let split = out != elem || sums.is_some_and(|sums| sums != elem);
                    if whole && split && elem != DType::F32
                        || sums.is_some() && matches!(tile, Tile::Thin { .. })
                    {
                        continue;
                    }
                    all.push(Variant {
                        left: (elem, Layout::Transposed),
                        right: (grad_pre, Layout::RowMajor),
                        out,
                        function,
                        derivative: derivative(Side::Right),
                        second: sums.map(|sums| Second::Sums(Side::Right, sums)),
                        ..base
                    });
                    all.push(Variant {
                        left: (grad_pre, Layout::Transposed),
                        right: (elem, Layout::RowMajor),
                        aux: if differentiates { elem } else { grad_pre },
                        out,
                        function,
                        derivative: derivative(Side::Left),
                        second: sums.map(|sums| Second::Sums(Side::Left, sums)),
                        ..base
                    });
                }
            }
        }
    }
    let loads = |variant: &&Variant| {
        variant.derivative.is_none() && matches!(variant.tile, Tile::Block { .. })
    };
    let vec4: Vec<_> =
        all.iter().filter(loads).map(|&variant| Variant { vec4: true, ..variant }).collect();
    all.extend(vec4);
    // How tiles are staged does not depend on the epilogue: one is enough.
    let is_plain =
        |variant: &&Variant| matches!(variant.adds, Adds::Nothing) && variant.function == PLAIN;
    let f16: Vec<_> = all
        .iter()
        .filter(|variant| variant.can_stage_f16())
        .filter(is_plain)
        .map(|&variant| Variant { staged_f16: true, ..variant })
        .collect();
    all.into_iter().chain(f16).map(Variant::program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_enough_tiles_if_it_can() {
        let (left, right) = (Layout::RowMajor, Layout::Transposed);
        let of = |m, n| Tile::of(Product { entries: 1, m, n, k: 512, left, right }, 128);
        assert_eq!(of(4096, 4096), Tile::WIDE);
        assert_eq!(of(1024, 1024), Tile::WIDE);
        assert_eq!(of(512, 1024), Tile::SQUARE);
        assert_eq!(of(512, 512), Tile::NARROW);
        assert_eq!(of(256, 512), Tile::SMALL);
        assert_eq!(of(33, 100), Tile::SMALL);
        assert_eq!(of(8, 4096), Tile::Thin { rows: 8, share: 16 });
    }
}
