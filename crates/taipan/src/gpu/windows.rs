//! Tensors larger than a binding may be: each launch binds a window of them.

use std::ops::Range;

use super::{Binding, GROUP, Gpu, Launch, Params, Program};
use crate::DType;
use crate::error::Result;

/// Windows begin at multiples of this many items, which keeps the alignment of bindings.
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
    /// Launch a kernel over elements, once for each window.
    pub(crate) fn launch_elements<P: Params>(&self, elements: Elements<P>) -> Result<()> {
        let Elements { name, program, params, inputs, output, len } = elements;
        let all = || inputs.iter().copied().chain([output]);
        let size = all().map(|(_, dtype)| dtype.size()).max().unwrap_or(1);
        for window in self.windows(len, size) {
            let inputs: Vec<_> = inputs.iter().map(|&input| bind_window(input, &window)).collect();
            self.launch(Launch {
                name,
                program: program.clone(),
                params: params(window.len() as u32),
                inputs: &inputs,
                outputs: &[bind_window(output, &window)],
                groups: window.len().div_ceil(GROUP),
                work: window.len() as u64,
            })?;
        }
        Ok(())
    }

    /// Split `count` items of `bytes` each into windows that a binding can hold. A single item that
    /// is too large is an error of the launch.
    pub(crate) fn windows(
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

fn bind_window<'a>((binding, dtype): (Binding<'a>, DType), window: &Range<usize>) -> Binding<'a> {
    binding.window(window.clone(), dtype.size())
}
