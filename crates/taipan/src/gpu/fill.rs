//! Filling a buffer with one value.

use super::{ELEMENTS, Elements, Gpu, GpuBuffer, Program, params};
use crate::DType;
use crate::error::Result;

params! { struct FillParams { len: u32, word: u32 } }

pub(crate) fn program() -> Program {
    Program::new::<FillParams>(&[wgsl!("wgsl/fill.wgsl"), ELEMENTS], &[], &[])
}

impl Gpu {
    /// Set every word of a buffer.
    pub(crate) fn fill(&self, op: &'static str, buffer: &GpuBuffer, word: u32) -> Result<()> {
        self.map(Elements {
            name: op,
            program: program(),
            params: &|len| FillParams { len, word },
            inputs: &[],
            output: (buffer.all(), DType::U32),
            len: buffer.all().bytes / 4,
        })
    }
}
