//! The two bounds of the roofline model (Williams, Waterman & Patterson 2009), measured: how fast
//! the threads of rayon's current pool read memory, and how fast they multiply and add.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use crate::cpu::gemm::multiply_adds;
use crate::cpu::isa::vectorized;
#[cfg(not(target_family = "wasm"))]
use crate::error::Result;
use crate::tensor::{Storage, Tensor};
#[cfg(not(target_family = "wasm"))]
use crate::{DType, Device};

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
            let tensor = Tensor::full(&[64 << 20], 1.0, DType::F32, device)?;
            Ok(Bounds { memory: highest(&|| read_rate(&[&tensor])), flops: highest(&flops) })
        }
        Device::Gpu(gpu) => {
            Ok(Bounds { memory: gpu.copy_bandwidth()?, flops: gpu.multiply_add_rate()? })
        }
    }
}

/// Read tensors on the CPU once, in order: the bytes per second. To measure memory, they must be
/// larger than the caches.
///
/// ```
/// use taipan::{DType, Device, Tensor, roofline};
///
/// let x = Tensor::zeros(&[1 << 20], DType::F32, &Device::Cpu)?;
/// println!("{:.0} GB/s", roofline::read_rate(&[&x]) / 1e9);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn read_rate(tensors: &[&Tensor]) -> f64 {
    /// Words that a thread reads at a time.
    const CHUNK: usize = 1 << 18;
    let buffers = tensors.iter().filter_map(|tensor| match &tensor.storage {
        Storage::Cpu(buffer) => Some(buffer.bytes()),
        Storage::Gpu(_) => None,
    });
    let buffers: Vec<&[u8]> = buffers.collect();
    let bytes: usize = buffers.iter().map(|bytes| bytes.len()).sum();
    let began = Instant::now();
    buffers.par_iter().flat_map(|bytes| bytes.par_chunks(4 * CHUNK)).for_each(|bytes| {
        let (words, _) = bytes.split_at(bytes.len() / 4 * 4);
        black_box(sum(bytemuck::cast_slice(words)));
    });
    bytes as f64 / began.elapsed().as_secs_f64()
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
