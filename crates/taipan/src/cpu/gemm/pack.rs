//! Operands put into the order in which the inner kernel reads them.

use std::ops::Range;

use super::{Lines, Operand};
use crate::cpu::CpuBuffer;
use crate::dtype::Real;
use crate::error::Result;

/// Pack `lanes × depth` of an operand into panels of `width` lanes, each panel step by step along
/// the depth; the last panel is filled up with zeros.
pub(super) fn pack<A: Real>(
    operand: Operand<A>,
    width: usize,
    lanes: Range<usize>,
    depth: Range<usize>,
    packed: &mut [A],
) -> Result<()> {
    let panel_len = width * depth.len();
    match operand.lines {
        Lines::Depth => {
            let mut buffer = CpuBuffer::scratch("gemm", lanes.len() * size_of::<A>())?;
            for (step, line) in depth.enumerate() {
                let line = operand.source.read(line, lanes.start, buffer.of_mut());
                let steps = packed.chunks_mut(panel_len).map(|panel| &mut panel[step * width..]);
                for (to, from) in steps.zip(line.chunks(width)) {
                    to[..from.len()].copy_from_slice(from);
                    to[..width][from.len()..].fill(A::ZERO);
                }
            }
        }
        Lines::Lanes => {
            let mut buffer = CpuBuffer::scratch("gemm", panel_len * size_of::<A>())?;
            for (panel, first) in packed.chunks_mut(panel_len).zip(lanes.clone().step_by(width)) {
                let lines: Vec<&[A]> = buffer
                    .of_mut::<A>()
                    .chunks_mut(depth.len())
                    .zip(first..lanes.end)
                    .map(|(buffer, line)| operand.source.read(line, depth.start, buffer))
                    .collect();
                transpose(&lines, width, panel);
            }
        }
    }
    Ok(())
}

/// `panel[step][lane] = lines[lane][step]`, zero where there is no such lane.
fn transpose<A: Real>(lines: &[&[A]], width: usize, panel: &mut [A]) {
    for (lane, line) in lines.iter().enumerate() {
        for (to, from) in panel.chunks_mut(width).zip(*line) {
            to[lane] = *from;
        }
    }
    for to in panel.chunks_mut(width) {
        to[lines.len()..].fill(A::ZERO);
    }
}
