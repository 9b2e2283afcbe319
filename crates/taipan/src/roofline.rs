//! The two bounds of the roofline model (Williams, Waterman & Patterson 2009), measured: how fast
//! the threads of rayon's current pool read memory, and how fast they multiply and add.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

#[cfg(not(target_family = "wasm"))]
use crate::Device;
use crate::cpu::CpuBuffer;
use crate::cpu::gemm::multiply_adds;
use crate::cpu::isa::vectorized;
use crate::error::Result;

/// What no computation can exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Bytes per second: what the threads read, or what a GPU reads and writes when it copies.
    pub memory: f64,
    /// Floating-point operations per second of multiply-adds in registers, two for each.
    pub flops: f64,
}

/// Measure a device, for about half a second.
///
/// ```
/// use taipan::{Device, roofline};
///
/// let bounds = roofline::bounds(&Device::Cpu)?;
/// println!("{:.0} GB/s, {:.0} GF/s", bounds.memory / 1e9, bounds.flops / 1e9);
/// # Ok::<(), taipan::Error>(())
/// ```
#[cfg(not(target_family = "wasm"))]
pub fn bounds(device: &Device) -> Result<Bounds> {
    const ROUNDS: usize = 5;
    let highest = |rate: &dyn Fn() -> f64| (0..ROUNDS).map(|_| rate()).fold(0.0, f64::max);
    match device {
        Device::Cpu => {
            let memory = Memory::new()?;
            Ok(Bounds { memory: highest(&|| memory.read()), flops: highest(&flops) })
        }
        Device::Gpu(gpu) => {
            Ok(Bounds { memory: gpu.copy_bandwidth()?, flops: gpu.multiply_add_rate()? })
        }
    }
}

/// Memory to be read, larger than any cache.
pub struct Memory(CpuBuffer);

impl Memory {
    /// 256 MiB.
    const BYTES: usize = 256 << 20;

    /// Allocate it.
    pub fn new() -> Result<Memory> {
        let mut buffer = CpuBuffer::scratch("roofline", Self::BYTES)?;
        buffer.as_mut_slice::<u32>().fill(1);
        Ok(Memory(buffer))
    }

    /// Read all of it once, each thread its own contiguous share: the bytes per second.
    pub fn read(&self) -> f64 {
        let words = self.0.as_slice::<u32>();
        let share = words.len().div_ceil(rayon::current_num_threads());
        let began = Instant::now();
        words.par_chunks(share).for_each(|words| {
            black_box(sum(words));
        });
        Self::BYTES as f64 / began.elapsed().as_secs_f64()
    }
}

/// The floating-point operations per second of fused multiply-adds of f32 in registers, two for
/// each multiply-add: what no product can exceed. Takes some milliseconds.
pub fn flops() -> f64 {
    const STEPS: usize = 1 << 20;
    let began = Instant::now();
    let threads = (0..rayon::current_num_threads()).into_par_iter().with_max_len(1);
    let operations: usize = threads.map(|_| multiply_adds(STEPS)).sum();
    operations as f64 / began.elapsed().as_secs_f64()
}

vectorized! {
    fn sum<I: Isa>(words: &[u32]) -> u32 {
        let mut lanes = [0u32; 128];
        for words in words.as_chunks::<128>().0 {
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = lane.wrapping_add(*word);
            }
        }
        lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
    }
}
