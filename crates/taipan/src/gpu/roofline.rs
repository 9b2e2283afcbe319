//! The two bounds of the roofline model (Williams, Waterman & Patterson 2009), measured on the
//! adapter: how fast it copies memory, and how fast it multiplies and adds.

use std::time::Instant;

use super::{ELEMENTS, MapParams, Program, params};
use super::{Gpu, Grid, Launch};
use crate::error::Result;

const OP: &str = "roofline";

/// How often each is measured; the fastest counts.
const ROUNDS: usize = 5;

/// The time in seconds that a measurement takes at least, so that submitting it does not count.
const SECONDS: f64 = 0.02;

params! {
    struct ChainParams { len: u32, steps: u32 }
}

impl Gpu {
    /// Bytes per second that a kernel reads and writes which copies memory beyond the caches: what
    /// no kernel that is bound by memory can exceed.
    pub fn copy_bandwidth(&self) -> Result<f64> {
        const BYTES: usize = 64 << 20;
        let (x, y) = (self.scratch(OP, BYTES)?, self.scratch(OP, BYTES)?);
        let len = BYTES / 16;
        self.fastest(2.0 * BYTES as f64, || {
            self.launch(Launch {
                name: OP,
                program: copy_program(),
                params: MapParams { len: len as u32 },
                inputs: &[x.all()],
                outputs: &[y.all()],
                grid: Grid::elements(len),
            })
        })
    }

    /// Floating-point operations per second of multiply-adds of f32 in registers, two for each:
    /// what no product can exceed.
    pub fn multiply_add_rate(&self) -> Result<f64> {
        const LEN: usize = 1 << 16;
        const STEPS: usize = 256;
        let numbers = [0.5f32, 1.0];
        let x = self.upload(OP, bytemuck::cast_slice(&numbers))?;
        let y = self.scratch(OP, LEN * size_of::<f32>())?;
        // 8 chains of 4 numbers.
        let multiply_adds = LEN * STEPS * 8 * 4;
        self.fastest(2.0 * multiply_adds as f64, || {
            self.launch(Launch {
                name: OP,
                program: chain_program(),
                params: ChainParams { len: LEN as u32, steps: STEPS as u32 },
                inputs: &[x.all()],
                outputs: &[y.all()],
                grid: Grid { work: multiply_adds as u64, ..Grid::elements(LEN) },
            })
        })
    }

    /// The highest rate, per second, of launches that do so much each.
    fn fastest(&self, amount: f64, launch: impl Fn() -> Result<()>) -> Result<f64> {
        let seconds = |launches: usize| -> Result<f64> {
            let began = Instant::now();
            (0..launches).try_for_each(|_| launch())?;
            self.synchronize()?;
            Ok(began.elapsed().as_secs_f64())
        };
        // The first compiles the kernel.
        seconds(1)?;
        let launches = (SECONDS / seconds(1)?).ceil().clamp(1.0, 1000.0) as usize;
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            best = best.min(seconds(launches)?);
        }
        Ok(amount * launches as f64 / best)
    }
}

fn copy_program() -> Program {
    Program::new::<MapParams>(&[wgsl!("wgsl/copy.wgsl"), ELEMENTS], &[], &[])
}

fn chain_program() -> Program {
    Program::new::<ChainParams>(&[wgsl!("wgsl/multiply_add.wgsl"), ELEMENTS], &[], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs() -> [Program; 2] {
    [copy_program(), chain_program()]
}
