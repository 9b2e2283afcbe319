//! Work split among rayon's threads, in chunks whose bounds do not depend on the number of threads.

use rayon::prelude::*;

use crate::{grad_mode, profile};

/// The number of elements below which a second thread is not worth it.
pub(crate) const GRAIN: usize = 1 << 14;

/// Run `f`, which waits for rayon's threads. While it waits, this thread may run tasks of other
/// callers: a `no_grad` or a profile of this one must not apply to them.
pub(crate) fn isolated<R>(f: impl FnOnce() -> R) -> R {
    grad_mode::with(true, || profile::paused(f))
}

/// Call `f(start, chunk)` for each `len`-long chunk of `out`, in parallel; `start` is the index
/// of the chunk's first element.
pub(crate) fn for_chunks<T: Send>(out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let len = len.max(1);
    if out.len() <= len || rayon::current_num_threads() == 1 {
        out.chunks_mut(len).enumerate().for_each(|(i, chunk)| f(i * len, chunk));
    } else {
        isolated(|| {
            out.par_chunks_mut(len).enumerate().for_each(|(i, chunk)| f(i * len, chunk));
        });
    }
}

/// Call `f` for each task, in parallel if the `work` of all is at least [`GRAIN`] elements. The
/// tasks must not depend on the number of threads.
pub(crate) fn for_tasks<T: Send>(tasks: Vec<T>, work: usize, f: impl Fn(T) + Send + Sync) {
    if work < GRAIN || tasks.len() == 1 || rayon::current_num_threads() == 1 {
        tasks.into_iter().for_each(f);
    } else {
        isolated(|| tasks.into_par_iter().for_each(f));
    }
}
