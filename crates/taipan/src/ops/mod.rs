//! The operations, one idea per file: public function, shape checks, gradient, kernels.

pub(crate) mod binary;
pub(crate) mod cast;
pub(crate) mod concat;
pub(crate) mod function;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod reduce;
pub(crate) mod reshape;
pub(crate) mod slice;
pub(crate) mod softmax;
pub(crate) mod transpose;
pub(crate) mod unary;
