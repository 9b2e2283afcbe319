//! Work split among rayon's threads, in chunks whose bounds do not depend on the number of threads.

use rayon::prelude::*;

use crate::{profile, recording};

/// Elements below which a second thread costs more than it brings.
pub(crate) const GRAIN: usize = 1 << 14;

/// Run `f`, which waits for rayon's threads. Meanwhile this one may be given other tasks, which are none of a
/// `no_grad` or a profile here.
pub(crate) fn open_to_others<R>(f: impl FnOnce() -> R) -> R {
    recording::set_for(true, || profile::paused(f))
}

/// Call `f(start, chunk)` for each `len`-long chunk of `out`, in parallel; `start` is the index
/// of the chunk's first element.
pub(crate) fn for_chunks<T: Send>(out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let len = len.max(1);
    if out.len() <= len || rayon::current_num_threads() == 1 {
        out.chunks_mut(len).enumerate().for_each(|(i, chunk)| f(i * len, chunk));
    } else {
        open_to_others(|| {
            out.par_chunks_mut(len).enumerate().for_each(|(i, chunk)| f(i * len, chunk));
        });
    }
}

/// Call `f` for each task, in parallel if all of them together are at least [`GRAIN`] elements of
/// `work`. What the tasks are must not depend on the number of threads, either.
pub(crate) fn for_tasks<T: Send>(tasks: Vec<T>, work: usize, f: impl Fn(T) + Send + Sync) {
    if work < GRAIN || tasks.len() == 1 || rayon::current_num_threads() == 1 {
        tasks.into_iter().for_each(f);
    } else {
        open_to_others(|| tasks.into_par_iter().for_each(f));
    }
}
