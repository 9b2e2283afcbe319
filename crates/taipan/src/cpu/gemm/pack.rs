//! Packing of operands into the order in which the inner kernel reads them.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use half::bf16;

use super::Operand;
#[cfg(target_arch = "x86_64")]
use super::Source;
use super::micro::LANES_MAX;
use crate::cpu::CpuBuffer;
use crate::cpu::isa::vectorized;
#[cfg(target_arch = "x86_64")]
use crate::dtype::HalfBits;
use crate::dtype::Real;
use crate::error::Result;

/// Steps of the depth that are transposed together.
const STRIP: usize = 256;

/// Pack `lanes × depth` of an operand into panels `[depth, W]`; the last panel is padded with
/// zeros.
pub(super) fn pack<A: Real, const W: usize>(
    operand: Operand<A>,
    lanes: Range<usize>,
    depth: Range<usize>,
    packed: &mut [A],
) -> Result<()> {
    let panel_len = W * depth.len();
    if operand.lines_are_lanes() {
        // In strips that stay in the first-level cache until they are transposed.
        let mut buffer = CpuBuffer::scratch("gemm", W * STRIP * size_of::<A>())?;
        let zeros = [A::ZERO; STRIP]; // of lanes that do not exist
        for (panel, first) in packed.chunks_mut(panel_len).zip(lanes.clone().step_by(W)) {
            for (strip, start) in panel.chunks_mut(W * STRIP).zip(depth.clone().step_by(STRIP)) {
                let mut lines = [&zeros[..strip.len() / W]; W];
                let buffers = buffer.as_mut_slice::<A>().chunks_mut(strip.len() / W);
                for ((to, buffer), line) in lines.iter_mut().zip(buffers).zip(first..lanes.end) {
                    *to = operand.read(line, start, buffer);
                }
                transpose(lines, strip.as_chunks_mut().0);
            }
        }
        return Ok(());
    }
    let mut buffer = CpuBuffer::scratch("gemm", lanes.len() * size_of::<A>())?;
    for (step, line) in depth.enumerate() {
        let line = operand.read(line, lanes.start, buffer.as_mut_slice());
        let (whole, rest) = line.as_chunks::<W>();
        let mut panels = packed.chunks_mut(panel_len);
        for (from, panel) in whole.iter().zip(&mut panels) {
            panel.as_chunks_mut::<W>().0[step] = *from;
        }
        if let (false, Some(panel)) = (rest.is_empty(), panels.next()) {
            let to = &mut panel.as_chunks_mut::<W>().0[step];
            to[..rest.len()].copy_from_slice(rest);
            to[rest.len()..].fill(A::ZERO);
        }
    }
    Ok(())
}

/// [`pack`] of pairs: an element is two steps of the depth as bf16, the first in its lower half. If
/// their number is odd, the last is zero.
#[cfg(target_arch = "x86_64")]
pub(super) fn pack_pairs<const W: usize>(
    operand: Operand<f32>,
    lanes: Range<usize>,
    depth: Range<usize>,
    packed: &mut [f32],
) -> Result<()> {
    pack::<f32, W>(
        Operand { source: &PairsOf { operand, depth: depth.clone() }, first_line: 0, ..operand },
        lanes,
        0..depth.len().div_ceil(2),
        packed,
    )
}

/// An operand whose depth is in pairs.
#[cfg(target_arch = "x86_64")]
struct PairsOf<'a> {
    operand: Operand<'a, f32>,
    depth: Range<usize>,
}

#[cfg(target_arch = "x86_64")]
impl Source<f32> for PairsOf<'_> {
    fn read<'a>(&'a self, line: usize, from: usize, buffer: &'a mut [f32]) -> &'a [f32] {
        const BLOCK: usize = 128;
        let mut first = [0.0; BLOCK];
        if self.operand.lines_are_lanes() {
            for (i, pairs) in buffer.chunks_mut(BLOCK / 2).enumerate() {
                let from = self.depth.start + 2 * from + i * BLOCK;
                let len = (2 * pairs.len()).min(self.depth.end - from);
                pairs_of_line(self.operand.read(line, from, &mut first[..len]), pairs);
            }
            return buffer;
        }
        let mut second = [0.0; BLOCK];
        let step = self.depth.start + 2 * line;
        for (i, pairs) in buffer.chunks_mut(BLOCK).enumerate() {
            let (from, len) = (from + i * BLOCK, pairs.len());
            let first = self.operand.read(step, from, &mut first[..len]);
            let second = match step + 1 < self.depth.end {
                true => self.operand.read(step + 1, from, &mut second[..len]),
                false => &second[..len],
            };
            pairs_of_lines(first, second, pairs);
        }
        buffer
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn pair(first: f32, second: f32) -> f32 {
    let [first, second] = [first, second].map(|x| u32::from(bf16::bits_from_f32(x)));
    f32::from_bits(first | second << 16)
}

#[cfg(target_arch = "x86_64")]
vectorized! {
    fn pairs_of_line<I: Isa>(line: &[f32], pairs: &mut [f32]) {
        let (whole, last) = line.as_chunks::<2>();
        for (to, [first, second]) in pairs.iter_mut().zip(whole) {
            *to = pair(*first, *second);
        }
        if let ([last], Some(to)) = (last, pairs.last_mut()) {
            *to = pair(*last, 0.0);
        }
    }

    fn pairs_of_lines<I: Isa>(first: &[f32], second: &[f32], pairs: &mut [f32]) {
        for ((to, first), second) in pairs.iter_mut().zip(first).zip(second) {
            *to = pair(*first, *second);
        }
    }

    /// [`add_panel`] of pairs.
    pub(super) fn add_panel_of_pairs<I: Isa>(panel: &[f32], width: usize, sums: &mut [f32]) {
        let mut block = [0.0; LANES_MAX];
        let block = &mut block[..width];
        for step in panel.chunks_exact(width) {
            for (sum, pair) in block.iter_mut().zip(step) {
                let bits = pair.to_bits();
                *sum += f32::from_bits(bits << 16) + f32::from_bits(bits & 0xffff_0000);
            }
        }
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += *x;
        }
    }
}

/// `panel[step][lane] = lines[lane][step]`, in squares that fit the registers: whole squares are
/// read before anything is written, so that they are turned by vector instructions.
fn transpose<A: Real, const W: usize>(lines: [&[A]; W], panel: &mut [[A; W]]) {
    const SIDE: usize = 4;
    let (blocks, rest) = panel.as_chunks_mut::<SIDE>();
    for lane in (0..W / SIDE * SIDE).step_by(SIDE) {
        let [a, b, c, d]: [&[[A; SIDE]]; SIDE] =
            std::array::from_fn(|i| lines[lane + i].as_chunks().0);
        for ((((block, a), b), c), d) in blocks.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let columns = [
                [a[0], b[0], c[0], d[0]],
                [a[1], b[1], c[1], d[1]],
                [a[2], b[2], c[2], d[2]],
                [a[3], b[3], c[3], d[3]],
            ];
            for (step, column) in block.iter_mut().zip(columns) {
                step[lane..lane + SIDE].copy_from_slice(&column);
            }
        }
    }
    let done = blocks.len() * SIDE;
    for lane in W / SIDE * SIDE..W {
        for (step, from) in blocks.as_flattened_mut().iter_mut().zip(lines[lane]) {
            step[lane] = *from;
        }
    }
    for (i, step) in rest.iter_mut().enumerate() {
        *step = lines.map(|line| line[done + i]);
    }
}

vectorized! {
    /// Add each lane of a panel, summed over the depth, to `sums`, which may be fewer.
    pub(super) fn add_panel<I: Isa, A: Real>(panel: &[A], width: usize, sums: &mut [A]) {
        // Sums in two levels, so that the error does not grow with the depth.
        let mut block = [A::ZERO; LANES_MAX];
        let block = &mut block[..width];
        for step in panel.chunks_exact(width) {
            for (sum, x) in block.iter_mut().zip(step) {
                *sum += *x;
            }
        }
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += *x;
        }
    }
}
