//! The CPU: memory, threads, instruction sets, vector math and the matrix product. Independent of
//! the ops.

pub(crate) mod buffer;
pub(crate) mod fold;
pub(crate) mod gemm;
pub(crate) mod isa;
pub(crate) mod math;
pub(crate) mod prefetch;
pub(crate) mod threads;
pub(crate) mod threefry;

pub(crate) use buffer::CpuBuffer;
