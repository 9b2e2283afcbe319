//! Tensors larger than a binding: they are worked on in pieces, each in a launch of its own.

use std::ops::Range;

use super::{Binding, GROUP, Gpu, Launch, Params, Program};
use crate::DType;
use crate::error::Result;

/// Pieces begin at multiples of this many items, so that they begin where a binding may.
const UNIT: usize = 256;

/// A kernel whose `element(i)` reads and writes nothing but element `i` of each buffer.
pub(crate) struct Elements<'a, P> {
    /// Names the operation in errors.
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// The parameters for so many elements.
    pub(crate) params: &'a dyn Fn(u32) -> P,
    pub(crate) inputs: &'a [(Binding<'a>, DType)],
    pub(crate) output: (Binding<'a>, DType),
    pub(crate) len: usize,
}

impl Gpu {
    /// Launch a kernel over elements, in as many pieces as it takes.
    pub(crate) fn launch_elements<P: Params>(&self, elements: Elements<P>) -> Result<()> {
        let Elements { name, program, params, inputs, output, len } = elements;
        let all = || inputs.iter().copied().chain([output]);
        let size = all().map(|(_, dtype)| dtype.size()).max().unwrap_or(1);
        for piece in self.pieces(len, size) {
            let inputs: Vec<_> = inputs.iter().map(|&input| part(input, &piece)).collect();
            self.launch(Launch {
                name,
                program: program.clone(),
                params: params(piece.len() as u32),
                inputs: &inputs,
                outputs: &[part(output, &piece)],
                groups: piece.len().div_ceil(GROUP),
                work: piece.len() as u64,
            })?;
        }
        Ok(())
    }

    /// `count` items of so many bytes in pieces that a binding can hold. Of items so large that this
    /// is impossible, a launch will say so.
    pub(crate) fn pieces(
        &self,
        count: usize,
        bytes: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let limit = usize::try_from(self.0.limits.max_storage_buffer_binding_size);
        let most = limit.unwrap_or(usize::MAX) / bytes.max(1);
        let step = if count <= most { count } else { most / UNIT * UNIT }.max(UNIT);
        (0..count).step_by(step).map(move |start| start..(start + step).min(count))
    }
}

fn part<'a>((binding, dtype): (Binding<'a>, DType), piece: &Range<usize>) -> Binding<'a> {
    binding.part(piece.clone(), dtype.size())
}
