//! The programs that products are made of, and which one is best for a shape.

use super::gpu::{Side, Stored};
use crate::DType;
use crate::gpu::{Program, params};
#[cfg(test)]
use crate::ops::function::Activation;
use crate::ops::function::Function;

params! {
    pub(super) struct ProductParams {
        m: u32, n: u32, k: u32, entries: u32, parts: u32, depth: u32,
    }
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
    /// A workgroup for `rows` rows, `share` invocations for a column.
    Rows { rows: u32, share: u32 },
}

impl Shape {
    pub(super) const WIDE: Shape = Shape::Tiles { tx: 16, ty: 8, rm: 2, rn: 2, bk: 16 }; // 64×128
    const SQUARE: Shape = Shape::Tiles { tx: 8, ty: 8, rm: 2, rn: 2, bk: 16 }; // 64×64
    const NARROW: Shape = Shape::Tiles { tx: 8, ty: 8, rm: 2, rn: 1, bk: 16 }; // 64×32
    /// The most rows that a workgroup computes in one.
    const FEW_ROWS: u32 = 8;

    /// Parts of a product begin at multiples of this: of every `bk`.
    pub(super) const STEP: usize = 64;

    /// All there are.
    #[cfg(test)]
    const ALL: [Shape; 7] = [
        Shape::WIDE,
        Shape::SQUARE,
        Shape::NARROW,
        Shape::flat(1, Stored::AsIs),
        Shape::flat(1, Stored::Transposed),
        Shape::flat(2, Stored::AsIs),
        Shape::flat(2, Stored::Transposed),
    ];

    /// The fastest for `m` rows and `n` columns, of a right side stored like this. A wide tile makes the most of what it reads, unless
    /// much of it is outside.
    pub(super) fn of(m: usize, n: usize, right: Stored) -> Shape {
        match (m, n) {
            (0..=8, _) => Shape::flat(m, right),
            (_, 0..=32) => Shape::NARROW,
            (_, 33..=64 | 129..=192) => Shape::SQUARE,
            _ => Shape::WIDE,
        }
    }

    /// For few rows. Neighbouring invocations read neighbours: many columns of a row of the right side,
    /// or many terms of a column.
    const fn flat(m: usize, right: Stored) -> Shape {
        let rows = if m <= 1 { 1 } else { Shape::FEW_ROWS };
        let share = match right {
            Stored::AsIs => 4,
            Stored::Transposed => 16,
        };
        Shape::Rows { rows, share }
    }

    /// Rows and columns a workgroup computes.
    pub(super) fn tile(self) -> [usize; 2] {
        match self {
            Shape::Tiles { tx, ty, rm, rn, .. } => [(ty * rm * 4) as usize, (tx * rn * 4) as usize],
            Shape::Rows { rows, share } => [rows as usize, (64 / share * 4) as usize],
        }
    }

    /// Whether subgroups of this size lie within a row of invocations, and are enough to read all
    /// rows of its blocks.
    pub(super) fn fits_subgroups(self, size: u32) -> bool {
        matches!(self, Shape::Tiles { tx, rm, .. } if tx % size == 0 && size >= 4 * rm)
    }
}

impl Variant {
    pub(super) fn program(self) -> Program {
        const NONE: &str = "fn put_second(at: u32, x: f32) {}\n";
        const SOME: &str = "\
            @group(0) @binding(4) var<storage, read_write> second: array<Second>;\n\
            fn put_second(at: u32, x: f32) {\n    second[at] = Second(x);\n}\n";
        let (kernel, shape): (_, &[_]) = match self.shape {
            Shape::Tiles { tx, ty, rm, rn, bk } => (
                include_str!("gemm.wgsl"),
                &[("TX", tx), ("TY", ty), ("RM", rm), ("RN", rn), ("BK", bk)],
            ),
            Shape::Rows { rows, share } => {
                (include_str!("thin.wgsl"), &[("ROWS", rows), ("SHARE", share)])
            }
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
            ("BIAS", self.bias as u32),
            ("SLOPE", self.slope.map_or(0, |side| side as u32)),
            ("SAVE_PRE", pre),
            ("SUMS", sums),
        ];
        self.function.program::<ProductParams>(
            &[second, include_str!("operands.wgsl"), kernel, fetch],
            &types,
            &[&consts[..], shape].concat(),
        )
    }
}

/// Every program of this file.
#[cfg(test)]
pub(crate) fn programs(elem: DType) -> Vec<Program> {
    use crate::ops::function::Saves;
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
        // Logits and their gradients: in f32 whatever the other operand is.
        for stored in both {
            let (b, out) = ((elem, stored), DType::F32);
            all.push(Variant { b, out, ..base });
            all.push(Variant { a: (out, Stored::AsIs), b, extra: out, out, ..base });
        }
        for function in Activation::ALL.iter().copied().map(Function::from) {
            let pres: &[_] = match function.saves() {
                Saves::Input => &[None, Some(Second::Pre(elem))],
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
