//! Packing of operands into the order in which the inner kernel reads them.

use std::ops::Range;

use super::Operand;
use crate::cpu::CpuBuffer;
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
        for (panel, first) in packed.chunks_mut(panel_len).zip(lanes.clone().step_by(W)) {
            for (strip, start) in panel.chunks_mut(W * STRIP).zip(depth.clone().step_by(STRIP)) {
                let mut lines = [&[][..]; W];
                let buffers = buffer.as_mut_slice::<A>().chunks_mut(strip.len() / W);
                for ((to, buffer), line) in lines.iter_mut().zip(buffers).zip(first..lanes.end) {
                    *to = operand.read(line, start, buffer);
                }
                let strip = strip.as_chunks_mut::<W>().0;
                match W.min(lanes.end - first) {
                    width if width == W => transpose(lines, strip),
                    width => transpose_some(&lines[..width], strip),
                }
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

/// [`transpose`] of fewer than `W` lanes, padded with zeros.
fn transpose_some<A: Real, const W: usize>(lines: &[&[A]], panel: &mut [[A; W]]) {
    for (i, step) in panel.iter_mut().enumerate() {
        step[lines.len()..].fill(A::ZERO);
        for (to, line) in step.iter_mut().zip(lines) {
            *to = line[i];
        }
    }
}
