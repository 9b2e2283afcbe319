//! Copies between tensors with different strides.

use super::{Dims, ELEMENTS, Gpu, GpuView, Grid, Launch, Program, kernel_sizes, params};
use crate::DType;
use crate::error::Result;

/// `y[to + Σ i·stride of y] = x[from + Σ i·stride of x]` for all indices within `dims`.
pub(crate) struct Strided {
    /// Size, stride in `x`, stride in `y`; outermost first.
    pub(crate) dims: Vec<[usize; 3]>,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

params! { struct StridedParams { dims: Dims, rank: u32, len: u32, from_x: u32, to_y: u32 } }

pub(crate) fn program(elem: DType) -> Program {
    Program::new::<StridedParams>(&[wgsl!("wgsl/strided.wgsl"), ELEMENTS], &[("Elem", elem)], &[])
}

impl Gpu {
    pub(crate) fn copy(
        &self,
        op: &'static str,
        x: &GpuView,
        y: &GpuView,
        copy: Strided,
    ) -> Result<()> {
        let len: usize = copy.dims.iter().map(|dim| dim[0]).product();
        if len == 0 {
            return Ok(()); // the other sizes may be anything
        }
        let size = y.spec.dtype().size();
        let [at_x, at_y, bytes] = [copy.from, copy.to, len].map(|n| n * size);
        if is_dense(&copy.dims) && (at_x | at_y | bytes) % 4 == 0 {
            // A plain buffer copy: no kernel, and no limit of bindings.
            self.check(op)?;
            self.copy_bytes((x.data, at_x), (y.data, at_y), bytes);
            return Ok(());
        }
        let (dims, rank) = dims_of(op, &copy.dims)?;
        let [len, from_x, to_y] = kernel_sizes(op, [len, copy.from, copy.to])?;
        self.launch(Launch {
            name: op,
            program: program(y.spec.dtype()),
            params: StridedParams { dims, rank, len, from_x, to_y },
            inputs: &[x.all()],
            outputs: &[y.all()],
            grid: Grid::elements(len as usize),
        })
    }
}

/// Whether the elements are contiguous on both sides.
fn is_dense(outermost_first: &[[usize; 3]]) -> bool {
    let mut stride = 1;
    outermost_first.iter().rev().filter(|dim| dim[0] != 1).all(|&[size, a, b]| {
        let dense = a == stride && b == stride;
        stride *= size;
        dense
    })
}

/// Sizes with two or three strides each, outermost first, in the form of kernels: innermost first,
/// without sizes of 1, and with dimensions merged where possible.
pub(crate) fn dims_of<const N: usize>(
    op: &'static str,
    outermost_first: &[[usize; N]],
) -> Result<(Dims, u32)> {
    // A saturated size is refused.
    let len = outermost_first.iter().fold(1, |len: usize, dim| len.saturating_mul(dim[0]));
    kernel_sizes(op, [len])?;
    let mut dims = Dims::default();
    let mut rank = 0;
    for &dim in outermost_first.iter().rev().filter(|dim| dim[0] != 1) {
        let [size, strides @ ..] = &kernel_sizes(op, dim)?[..] else { unreachable!("a size") };
        if rank > 0 {
            let [inner, inner_strides @ ..] = &mut dims[rank - 1];
            // Both are less than 2³², but not their product.
            let follows = |stride: u32| stride as u64 * *inner as u64;
            if inner_strides.iter().zip(strides).all(|(&i, &stride)| follows(i) == stride as u64) {
                *inner *= size;
                continue;
            }
        }
        dims[rank][..N].copy_from_slice(&kernel_sizes(op, dim)?);
        rank += 1;
    }
    Ok((dims, rank as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_merged() {
        let ranks = |dims: &[[usize; 3]]| dims_of("test", dims).unwrap().1;
        assert_eq!(ranks(&[]), 0);
        assert_eq!(ranks(&[[4, 6, 6], [2, 3, 3], [3, 1, 1]]), 1, "a plain copy");
        assert_eq!(ranks(&[[4, 6, 0], [2, 3, 0], [3, 1, 1]]), 2, "repeated outside");
        assert_eq!(ranks(&[[2, 1, 3], [1, 9, 9], [3, 2, 1]]), 2, "transposed");
    }

    /// Sizes whose product is 2⁴⁰, a stride of 2³², and a size and a stride whose product is that.
    #[test]
    fn sizes_beyond_32_bits_are_refused() {
        const MANY: usize = 1 << 20;
        let refused = |dims: &[[usize; 3]], found: u64| {
            let error = dims_of("transpose", dims).map(|_| ()).unwrap_err().to_string();
            let expected = "expected at most 4294967295 on a GPU";
            assert_eq!(error, format!("transpose: a size is {found}, {expected}"));
        };
        refused(&[[MANY, 1, MANY], [MANY, MANY, 1]], 1 << 40);
        refused(&[[2, 1 << 32, 1], [3, 1, 2]], 1 << 32);
        let (_, rank) = dims_of("slice", &[[2, 0, 1 << 17], [1 << 16, 1 << 16, 2]]).unwrap();
        assert_eq!(rank, 2, "2³² is not 0");
    }

    #[test]
    fn dense_copies_are_recognised() {
        assert!(is_dense(&[]));
        assert!(is_dense(&[[4, 6, 6], [2, 3, 3], [3, 1, 1]]));
        assert!(is_dense(&[[1, 100, 6], [2, 3, 3], [1, 9, 9], [3, 1, 1]]), "sizes of 1");
        assert!(!is_dense(&[[4, 6, 0], [2, 3, 0], [3, 1, 1]]), "repeated outside");
        assert!(!is_dense(&[[4, 7, 6], [6, 1, 1]]), "some columns");
        assert!(!is_dense(&[[6, 0, 1]]), "repeated");
    }
}
