//! Tensors larger than a binding may be: each launch binds a window of them.

use std::ops::Range;

use super::Gpu;

/// Windows begin at multiples of this many items, which keeps the alignment of bindings.
const UNIT: usize = 256;

impl Gpu {
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
