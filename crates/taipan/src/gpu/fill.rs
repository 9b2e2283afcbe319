//! Buffers of one value.

use super::{ELEMENTS, GROUP, Gpu, GpuBuffer, Launch, Program, params};
use crate::error::Result;

params! { struct FillParams { len: u32, word: u32 } }

pub(crate) fn program() -> Program {
    Program::new::<FillParams>(&[include_str!("fill.wgsl"), ELEMENTS], &[], &[])
}

impl Gpu {
    /// Set every word of a buffer.
    pub(crate) fn fill(&self, op: &'static str, buffer: &GpuBuffer, word: u32) -> Result<()> {
        let words = buffer.all().bytes / 4;
        self.launch(Launch {
            name: op,
            program: program(),
            params: FillParams { len: words as u32, word },
            inputs: &[],
            outputs: &[buffer.all()],
            groups: words.div_ceil(GROUP),
            work: words as u64,
        })
    }
}
