//! The spec of a tensor: shape and element type; and arithmetic of shapes.

use smallvec::SmallVec;

use crate::DType;
use crate::error::{Result, ensure};

/// The most dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// The sizes of dimensions, in place up to four: a decoded token makes some hundreds of tensors.
pub(crate) type Shape = SmallVec<[usize; 4]>;

/// A shape whose size does not overflow, and the type of the elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    shape: Shape,
    dtype: DType,
    len: usize,
}

impl Spec {
    /// An error if the size in bytes overflows.
    pub(crate) fn new(op: &'static str, shape: &[usize], dtype: DType) -> Result<Self> {
        let rank = shape.len();
        ensure!(op, rank <= MAX_RANK, "{rank} dimensions found, expected at most {MAX_RANK}");
        // Zeros count as ones, so that [0, 2^40, 2^40] is refused whatever the order.
        let bytes = shape
            .iter()
            .try_fold(dtype.size(), |n, &d| n.checked_mul(d.max(1)))
            .filter(|&n| n <= isize::MAX as usize);
        ensure!(op, bytes.is_some(), "the size of {shape:?} in {dtype} overflows");
        Ok(Self { shape: shape.into(), dtype, len: shape.iter().product() })
    }

    /// The same shape with another element type.
    pub(crate) fn with_dtype(&self, op: &'static str, dtype: DType) -> Result<Self> {
        Self::new(op, &self.shape, dtype)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }
}

/// A buffer and the spec of its contents.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, B> {
    pub(crate) spec: &'a Spec,
    pub(crate) data: B,
}

/// Check a dimension's index.
pub(crate) fn ensure_dim(op: &'static str, dim: usize, shape: &[usize]) -> Result<()> {
    ensure!(op, dim < shape.len(), "dimension {dim} of {shape:?} does not exist");
    Ok(())
}

/// The shape both broadcast to: sizes are aligned at the end and must be equal or 1.
pub(crate) fn broadcast(op: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], i: usize| {
        let missing = rank - shape.len();
        if i < missing { 1 } else { shape[i - missing] }
    };
    (0..rank)
        .map(|i| {
            let (x, y) = (size(a, i), size(b, i));
            ensure!(op, x == y || x == 1 || y == 1, "{a:?} and {b:?} do not broadcast");
            Ok(if x == 1 { y } else { x })
        })
        .collect()
}

/// The dimensions of several shapes, one after the other.
pub(crate) fn joined(shapes: &[&[usize]]) -> Shape {
    shapes.iter().flat_map(|shape| shape.iter().copied()).collect()
}

/// Row-major strides in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}
