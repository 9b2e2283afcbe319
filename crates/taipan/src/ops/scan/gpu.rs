//! The scan on a GPU.

use super::SelectiveScan;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, GpuBuffer};
use crate::kernel::View;

pub(super) fn forward(
    _: &SelectiveScan,
    _: &Gpu,
    _: &[View<&GpuBuffer>],
    _: &[View<&GpuBuffer>],
) -> Result<()> {
    Err(Error::Device { op: super::OP, why: "not yet".into() })
}

pub(super) fn backward(
    _: &SelectiveScan,
    _: &Gpu,
    _: &[View<&GpuBuffer>],
    _: &[View<&GpuBuffer>],
) -> Result<()> {
    Err(Error::Device { op: super::OP, why: "not yet".into() })
}
