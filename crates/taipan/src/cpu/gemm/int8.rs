//! Weights in 8 bits: each block of 32 elements of a line has a scale, and an element is its code
//! times the scale.
//!
//! With few rows, these are quantised in the same way, and the products of codes are summed
//! exactly, in i32, before a block's sum is multiplied by both scales.

use std::ops::Range;

use super::{Rows, Source, Strip};
use crate::cpu::CpuBuffer;
use crate::cpu::isa::{Level, vectorized};
use crate::cpu::reduce::larger;
use crate::error::Result;

/// Elements of a block.
pub(crate) const BLOCK: usize = 32;

/// The largest code: the range is symmetric.
const MAX: f32 = 127.0;

/// Lines of codes, `[lines, blocks·32]`, and their scales, `[lines, blocks]`.
pub(crate) struct Int8<'a> {
    pub(crate) codes: &'a [i8],
    pub(crate) scales: &'a [f32],
    pub(crate) blocks: usize,
}

/// The rows of the left side, quantised: `[m, steps·64]` codes and `[m, steps·16]` scales, each 8
/// times. A step is two blocks.
pub(super) struct Int8Rows {
    codes: CpuBuffer,
    scales: CpuBuffer,
    /// `[m, steps·16]`: −128 times the sum of four codes.
    offsets: CpuBuffer,
    steps: usize,
}

/// Codes of a step.
const STEP: usize = 2 * BLOCK;
/// Scales of a step.
const LANES: usize = 16;

impl Source<f32> for Int8<'_> {
    fn read<'a>(&'a self, line: usize, from: usize, buffer: &'a mut [f32]) -> &'a [f32] {
        let codes = &self.codes[line * self.blocks * BLOCK..][..self.blocks * BLOCK];
        let scales = &self.scales[line * self.blocks..][..self.blocks];
        dequantize(codes, scales, from, buffer);
        buffer
    }

    fn prepare(&self, rows: &mut Rows<f32>) -> Result<()> {
        rows.int8 = Some(Int8Rows::new(rows)?);
        Ok(())
    }

    fn dots(&self, lines: Range<usize>, rows: &Rows<f32>, strip: Strip<f32>) -> Result<()> {
        if self.blocks == 0 {
            strip.sums.fill(0.0);
            return Ok(());
        }
        let m = rows.m;
        let rows = rows.int8.as_ref().expect("made by `prepare`");
        let lines = Int8 {
            codes: &self.codes[lines.start * self.blocks * BLOCK..lines.end * self.blocks * BLOCK],
            scales: &self.scales[lines.start * self.blocks..lines.end * self.blocks],
            blocks: self.blocks,
        };
        match Kernel::current() {
            Kernel::Portable => portable(&lines, rows, m, strip),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => x86::avx2(&lines, rows, m, strip),
            #[cfg(target_arch = "x86_64")]
            Kernel::Vnni => x86::vnni(&lines, rows, m, strip),
        }
        Ok(())
    }
}

/// How dot products are computed.
#[derive(Clone, Copy, PartialEq)]
enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Kernel {
    fn current() -> Kernel {
        match Level::current() {
            Level::Baseline => Kernel::Portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Kernel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_x86_feature_detected!("avx512vnni") => Kernel::Vnni,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Kernel::Avx2,
        }
    }
}

impl Int8Rows {
    fn new(rows: &Rows<f32>) -> Result<Int8Rows> {
        let (m, steps) = (rows.m, rows.k.div_ceil(STEP));
        let mut codes = CpuBuffer::scratch("gemm", m * steps * STEP)?;
        let mut scales = CpuBuffer::scratch("gemm", m * steps * LANES * size_of::<f32>())?;
        let mut offsets = CpuBuffer::scratch("gemm", m * steps * LANES * size_of::<i32>())?;
        codes.bytes_mut().fill(0);
        scales.as_mut_slice::<f32>().fill(0.0);
        for row in 0..m {
            let codes = &mut codes.bytes_mut()[row * steps * STEP..][..steps * STEP];
            let scales = &mut scales.as_mut_slice::<f32>()[row * steps * LANES..];
            let blocks = rows.row(row).chunks(BLOCK).zip(codes.chunks_mut(BLOCK));
            for ((x, codes), scales) in blocks.zip(scales.chunks_mut(LANES / 2)) {
                let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
                scales.fill(quantize(x, &mut codes[..x.len()]));
            }
        }
        let fours = bytemuck::cast_slice::<u8, [i8; 4]>(codes.bytes());
        let offset_of: &mut [i32] = bytemuck::cast_slice_mut(offsets.bytes_mut());
        for (offset, four) in offset_of.iter_mut().zip(fours) {
            *offset = -128 * four.iter().map(|code| *code as i32).sum::<i32>();
        }
        Ok(Int8Rows { codes, scales, offsets, steps })
    }

    fn codes(&self, row: usize) -> &[u8] {
        &self.codes.bytes()[row * self.steps * STEP..][..self.steps * STEP]
    }

    fn scales(&self, row: usize) -> &[f32] {
        &self.scales.as_slice()[row * self.steps * LANES..][..self.steps * LANES]
    }

    // Only some instruction sets need them.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn offsets(&self, row: usize) -> &[i32] {
        &bytemuck::cast_slice(self.offsets.bytes())[row * self.steps * LANES..]
            [..self.steps * LANES]
    }
}

vectorized! {
    /// Round the elements of a block to codes, and return its scale. A block with an infinity or
    /// NaN has such a scale.
    pub(crate) fn quantize<I: Isa>(x: &[f32], codes: &mut [i8]) -> f32 {
        let most = x.iter().fold(0f32, |most, x| larger(most, x.abs()));
        let scale = most / MAX;
        // Adding it rounds to a whole number, which is then in the lowest bits.
        const ROUND: f32 = (3 << 22) as f32;
        for (code, x) in codes.iter_mut().zip(x) {
            let ratio = if scale > 0.0 { *x / scale } else { 0.0 };
            // A scale that is no normal number can be too small.
            let ratio = ratio.clamp(-MAX, MAX);
            *code = (ratio + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i8;
        }
        scale
    }

    /// The elements of a line from `from` on.
    fn dequantize<I: Isa>(codes: &[i8], scales: &[f32], from: usize, x: &mut [f32]) {
        let mut at = from;
        let mut rest = x;
        while !rest.is_empty() {
            let len = rest.len().min(BLOCK - at % BLOCK);
            let (block, after) = rest.split_at_mut(len);
            let scale = scales[at / BLOCK];
            for (x, code) in block.iter_mut().zip(&codes[at..at + len]) {
                *x = *code as f32 * scale;
            }
            at += len;
            rest = after;
        }
    }

    fn dot<I: Isa>(line: &[[i8; BLOCK]], line_scales: &[f32], row: &[[i8; BLOCK]], scales: &[f32]) -> f32 {
        let scales = scales.iter().step_by(LANES / 2);
        let mut sum = 0.0;
        for ((line, row), (a, b)) in line.iter().zip(row).zip(line_scales.iter().zip(scales)) {
            let products = line.iter().zip(row).map(|(a, b)| *a as i32 * *b as i32);
            sum += products.sum::<i32>() as f32 * (a * b);
        }
        sum
    }
}

fn portable(lines: &Int8, rows: &Int8Rows, m: usize, strip: Strip<f32>) {
    let blocks = lines.codes.as_chunks::<BLOCK>().0.chunks(lines.blocks);
    for (j, (line, line_scales)) in blocks.zip(lines.scales.chunks(lines.blocks)).enumerate() {
        for i in 0..m {
            let row: &[i8] = bytemuck::cast_slice(rows.codes(i));
            let row = row.as_chunks().0;
            strip.sums[i * strip.stride + j] = dot(line, line_scales, row, rows.scales(i));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::cpu::gemm::vector::Vector;
    use crate::cpu::prefetch::prefetch_at;

    /// How far ahead of the loads memory is fetched, in bytes: measured.
    const AHEAD: usize = 6144;

    /// The kernel for `m` rows, compiled for an instruction set. Only for processors that have it.
    macro_rules! strip_for {
        ($name:ident, $kernel:ident, $features:literal) => {
            pub(super) fn $name(lines: &Int8, rows: &Int8Rows, m: usize, strip: Strip<f32>) {
                #[target_feature(enable = $features)]
                fn run(lines: &Int8, rows: &Int8Rows, m: usize, strip: Strip<f32>) {
                    for first in (0..m).step_by(4) {
                        let rows = (rows, first);
                        let strip =
                            Strip { sums: &mut strip.sums[first * strip.stride..], ..strip };
                        // SAFETY: this function has the instruction set.
                        unsafe {
                            match m - first {
                                1 => $kernel::<1>(lines, rows, strip),
                                2 => $kernel::<2>(lines, rows, strip),
                                3 => $kernel::<3>(lines, rows, strip),
                                _ => $kernel::<4>(lines, rows, strip),
                            }
                        }
                    }
                }
                // SAFETY: chosen for a `Kernel` that the processor was asked for.
                unsafe { run(lines, rows, m, strip) }
            }
        };
    }
    strip_for!(avx2, blocks, "avx2,fma");
    strip_for!(vnni, steps, "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma");

    /// Of the lines, and of `M` rows from `first` on.
    ///
    /// SAFETY: the caller is compiled for AVX-512 with VNNI.
    #[inline(always)]
    unsafe fn steps<const M: usize>(
        lines: &Int8,
        (rows, first): (&Int8Rows, usize),
        strip: Strip<f32>,
    ) {
        let rows: [VnniRow; M] = std::array::from_fn(|i| VnniRow {
            codes: rows.codes(first + i).as_chunks().0,
            scales: rows.scales(first + i).as_chunks().0,
            offsets: rows.offsets(first + i).as_chunks().0,
        });
        let count = lines.scales.len() / lines.blocks;
        let mut j = 0;
        while j < count {
            let strip = Strip { sums: &mut strip.sums[j..], ..strip };
            // One line at a time would not keep memory busy.
            // SAFETY: the caller's instruction set.
            unsafe {
                if M == 1 && j + 4 <= count {
                    together::<M, 4>(lines, j, &rows, strip);
                    j += 4;
                } else if j + 2 <= count {
                    together::<M, 2>(lines, j, &rows, strip);
                    j += 2;
                } else {
                    together::<M, 1>(lines, j, &rows, strip);
                    j += 1;
                }
            }
        }
    }

    /// A row, by steps.
    struct VnniRow<'a> {
        codes: &'a [[u8; STEP]],
        scales: &'a [[f32; LANES]],
        offsets: &'a [[i32; LANES]],
    }

    /// Of `R` lines from `j` on: two blocks at a time. Without closures around vectors, which would
    /// be compiled without the instruction set.
    ///
    /// SAFETY: the caller is compiled for AVX-512 with VNNI.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn together<const M: usize, const R: usize>(
        lines: &Int8,
        j: usize,
        rows: &[VnniRow; M],
        strip: Strip<f32>,
    ) {
        let (bytes, blocks) = (lines.blocks * BLOCK, lines.blocks);
        let codes: [&[i8]; R] = std::array::from_fn(|r| &lines.codes[(j + r) * bytes..][..bytes]);
        let scales: [&[f32]; R] =
            std::array::from_fn(|r| &lines.scales[(j + r) * blocks..][..blocks]);
        // SAFETY: the caller's instruction set. Loads are from arrays of the length of a vector,
        // or, of the last block of a line, of half a vector and one scale.
        unsafe {
            // VNNI multiplies unsigned by signed numbers: this adds 128 to codes of weights.
            let bias = _mm512_set1_epi8(-128);
            // The first scale for 8 lanes, the second for the others.
            let twice = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
            let mut sums = [[_mm512_setzero_ps(); M]; R];
            for step in 0..blocks.div_ceil(2) {
                // In the order of memory, though the lines are read side by side.
                for line in 0..R {
                    let ahead = AHEAD + (step * R + line) * STEP;
                    prefetch_at(codes[0].as_ptr().cast::<u8>().wrapping_add(ahead));
                }
                for r in 0..R {
                    let (w, scale) = match codes[r][step * STEP..].first_chunk::<STEP>() {
                        Some(w) => {
                            let scale = scales[r][2 * step..][..2].as_ptr();
                            let scale = _mm512_castsi128_si512(_mm_loadl_epi64(scale.cast()));
                            let w = _mm512_loadu_si512(w.as_ptr().cast());
                            (w, _mm512_permutexvar_ps(twice, _mm512_castsi512_ps(scale)))
                        }
                        None => {
                            let w = codes[r][step * STEP..][..BLOCK].as_ptr();
                            let w = _mm512_zextsi256_si512(_mm256_loadu_si256(w.cast()));
                            (w, _mm512_set1_ps(scales[r][2 * step]))
                        }
                    };
                    let w = _mm512_xor_si512(w, bias);
                    for i in 0..M {
                        let x = _mm512_loadu_si512(rows[i].codes[step].as_ptr().cast());
                        // What the 128 of the weights' codes add is subtracted by this.
                        let offset = _mm512_loadu_si512(rows[i].offsets[step].as_ptr().cast());
                        let dots = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(offset, w, x));
                        let row_scale = _mm512_loadu_ps(rows[i].scales[step].as_ptr());
                        let both = _mm512_mul_ps(scale, row_scale);
                        sums[r][i] = _mm512_fmadd_ps(dots, both, sums[r][i]);
                    }
                }
            }
            for r in 0..R {
                for i in 0..M {
                    strip.sums[i * strip.stride + r] = sums[r][i].sum();
                }
            }
        }
    }

    /// The same, one block at a time.
    ///
    /// SAFETY: the caller is compiled for AVX2 and FMA.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn blocks<const M: usize>(
        lines: &Int8,
        (rows, first): (&Int8Rows, usize),
        strip: Strip<f32>,
    ) {
        let codes: [&[[u8; BLOCK]]; M] =
            std::array::from_fn(|i| rows.codes(first + i).as_chunks().0);
        let scales: [&[[f32; LANES / 2]]; M] =
            std::array::from_fn(|i| rows.scales(first + i).as_chunks().0);
        // SAFETY: the caller's instruction set. Loads are from arrays of the length of a vector.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let line_scales = lines.scales.chunks_exact(lines.blocks);
            let line_codes = lines.codes.as_chunks::<BLOCK>().0.chunks_exact(lines.blocks);
            for (j, (line, line_scales)) in line_codes.zip(line_scales).enumerate() {
                let mut sums = [_mm256_setzero_ps(); M];
                for (block, (w, scale)) in line.iter().zip(line_scales).enumerate() {
                    prefetch_at(w.as_ptr().cast::<u8>().wrapping_add(AHEAD));
                    let w = _mm256_loadu_si256(w.as_ptr().cast());
                    let magnitude = _mm256_abs_epi8(w);
                    for i in 0..M {
                        let x = _mm256_loadu_si256(codes[i][block].as_ptr().cast());
                        // Unsigned by signed numbers; sums of two products stay below 2¹⁵.
                        let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
                        let dots = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                        let row_scale = _mm256_loadu_ps(scales[i][block].as_ptr());
                        let both = _mm256_mul_ps(_mm256_set1_ps(*scale), row_scale);
                        sums[i] = _mm256_fmadd_ps(dots, both, sums[i]);
                    }
                }
                for i in 0..M {
                    strip.sums[i * strip.stride + j] = sums[i].sum();
                }
            }
        }
    }
}
