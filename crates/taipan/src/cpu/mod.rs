//! The CPU: memory, threads, instruction sets, vector math, and what ops are made of: the matrix
//! product, reductions and maps. Independent of the ops.

pub(crate) mod buffer;
pub(crate) mod gemm;
#[cfg(target_os = "linux")]
mod huge_pages;
pub(crate) mod isa;
pub(crate) mod map;
pub(crate) mod math;
pub(crate) mod prefetch;
pub(crate) mod reduce;
pub(crate) mod threads;
pub(crate) mod threefry;

pub(crate) use buffer::{CpuArena, CpuBuffer, CpuView, CpuViewMut, SharedBuffer};
