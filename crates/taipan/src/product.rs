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

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of an element of a matrix of `[rows, columns]`.
    fn index(layout: Layout, [rows, columns]: [usize; 2], row: usize, column: usize) -> usize {
        match layout {
            Layout::RowMajor => row * columns + column,
            Layout::Transposed => column * rows + row,
        }
    }

    fn multiply(product: Product, left: &[i64], right: &[i64]) -> Vec<i64> {
        let Product { m, n, k, .. } = product;
        let term = |i, j, p| {
            left[index(product.left, [m, k], i, p)] * right[index(product.right, [k, n], p, j)]
        };
        let sum = |i, j| (0..k).map(|p| term(i, j, p)).sum();
        (0..m * n).map(|e| sum(e / n, e % n)).collect()
    }

    /// Each element of a gradient is what the loss `Σ dy ⊙ (left·right)` changes by when that element
    /// of the operand grows by 1.
    #[test]
    fn the_gradient_of_an_operand_has_its_layout() {
        let numbers =
            |len: i64, seed| -> Vec<i64> { (0..len).map(|i| (i * i + seed) % 11 - 5).collect() };
        let both = [Layout::RowMajor, Layout::Transposed];
        for (left, right) in both.map(|left| both.map(|right| (left, right))).concat() {
            let product = Product { entries: 1, m: 2, n: 3, k: 5, left, right };
            let (a, b, dy) = (numbers(10, 1), numbers(15, 2), numbers(6, 3));
            for (of, operand, other) in [(Side::Left, &a, &b), (Side::Right, &b, &a)] {
                let (gradient, side) = product.gradient(of);
                let grad = match side {
                    Side::Left => multiply(gradient, &dy, other),
                    Side::Right => multiply(gradient, other, &dy),
                };
                for (i, &derivative) in grad.iter().enumerate() {
                    let mut moved = operand.clone();
                    moved[i] += 1;
                    let loss = |operand: &[i64]| -> i64 {
                        let y = match of {
                            Side::Left => multiply(product, operand, other),
                            Side::Right => multiply(product, other, operand),
                        };
                        y.iter().zip(&dy).map(|(y, dy)| y * dy).sum()
                    };
                    assert_eq!(loss(&moved) - loss(operand), derivative, "{product:?} {of:?} {i}");
                }
            }
        }
    }
}
