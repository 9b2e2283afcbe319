//! The description of a matrix product, the same on every device.

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layout {
    /// Row by row.
    RowMajor,
    /// Column by column: the rows of its transpose.
    Transposed,
}

impl Layout {
    /// The number of contiguous elements of a matrix of these sizes.
    pub(crate) fn columns(self, rows: usize, columns: usize) -> usize {
        match self {
            Layout::RowMajor => columns,
            Layout::Transposed => rows,
        }
    }

    /// The layout of the transposed matrix, stored as it is.
    fn transposed(self) -> Layout {
        match self {
            Layout::RowMajor => Layout::Transposed,
            Layout::Transposed => Layout::RowMajor,
        }
    }
}

/// An operand of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Left = 1,
    Right = 2,
}

/// `left·right`, `[m, k]·[k, n]`, for each of `entries` pairs of matrices. The matrices of a side
/// follow each other in memory; the results, `[entries, m, n]`, are stored row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Product {
    pub(crate) entries: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) left: Layout,
    pub(crate) right: Layout,
}

impl Product {
    /// The product that gives the gradient of an operand, in the layout of the operand, and the
    /// side on which it has `dy`, the gradient of the result. On its other side is the other
    /// operand.
    pub(crate) fn gradient(self, operand: Side) -> (Product, Side) {
        let Product { m, n, k, left, right, .. } = self;
        let (m, n, k, left, right, dy) = match (operand, left, right) {
            // dleft = dy·rightᵀ
            (Side::Left, Layout::RowMajor, _) => {
                (m, k, n, Layout::RowMajor, right.transposed(), Side::Left)
            }
            // dleftᵀ = right·dyᵀ
            (Side::Left, Layout::Transposed, _) => {
                (k, m, n, right, Layout::Transposed, Side::Right)
            }
            // dright = leftᵀ·dy
            (Side::Right, _, Layout::RowMajor) => {
                (k, n, m, left.transposed(), Layout::RowMajor, Side::Right)
            }
            // drightᵀ = dyᵀ·left
            (Side::Right, _, Layout::Transposed) => (n, k, m, Layout::Transposed, left, Side::Left),
        };
        (Product { m, n, k, left, right, ..self }, dy)
    }
}
