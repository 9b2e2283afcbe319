//! Work split among rayon's threads, in chunks whose bounds do not depend on the number of threads.
//! A browser has one thread, and nothing of rayon.
//!
//! Rayon's own functions are called with `dyn` closures: compiled for the closure of every caller,
//! they would be a third of the library.

#[cfg(not(target_family = "wasm"))]
use std::{
    hint::spin_loop,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

#[cfg(not(target_family = "wasm"))]
use rayon::prelude::*;
#[cfg(not(target_family = "wasm"))]
use smallvec::SmallVec;

use crate::error::Result;
#[cfg(not(target_family = "wasm"))]
use crate::{
    grad_mode::{self, GradMode, ModeGuard},
    profile::{self, ProfileGuard},
};

/// The number of elements below which a second thread is not worth it.
pub(crate) const GRAIN: usize = 1 << 14;

/// The number of threads.
pub(crate) fn count() -> usize {
    #[cfg(not(target_family = "wasm"))]
    return rayon::current_num_threads();
    #[cfg(target_family = "wasm")]
    1
}

/// Run `f`, which waits for rayon's threads. While it waits, this thread may run tasks of other
/// callers: a `no_grad` or a profile of this one must not apply to them.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn isolated<R>(f: impl FnOnce() -> R) -> R {
    let _mode = ModeGuard::set(GradMode::Enabled);
    let _profile = ProfileGuard::paused();
    f()
}

#[cfg(target_family = "wasm")]
pub(crate) fn isolated<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Run `f`, and until it ends let the other threads of rayon's current pool wait for its work
/// without sleeping. A sleeping thread takes longer to wake than an op on a few thousand elements,
/// so use this around many small ops that follow one another, such as the decoding of a token.
/// The other threads do the work of other callers, too, but are busy meanwhile.
///
/// ```
/// use taipan::{Activation, DType, Device, Tensor, Weight, linear, with_threads_awake};
///
/// let w = Tensor::randn(&[512, 512], 1, DType::F32, &Device::Cpu)?;
/// let x = Tensor::randn(&[1, 512], 2, DType::F32, &Device::Cpu)?;
/// let layer = |x: &Tensor| linear(x, Weight::nk(&w), None, Activation::Tanh);
/// let y = with_threads_awake(|| layer(&layer(&layer(&x)?)?))?;
/// assert_eq!(y.shape(), [1, 512]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn with_threads_awake<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    #[cfg(not(target_family = "wasm"))]
    if count() > 1 {
        let mode = grad_mode::current();
        return match rayon::current_thread_index() {
            Some(_) => beside_waiting_threads(f),
            // `f` would move to a thread of the pool, where a profile does not follow.
            None if profile::is_on() => f(),
            None => rayon::scope(|_| grad_mode::with(mode, || beside_waiting_threads(f))),
        };
    }
    f()
}

#[cfg(not(target_family = "wasm"))]
fn beside_waiting_threads<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    /// Also set if `f` panics, or the others would wait for ever.
    struct SetOnDrop<'a>(&'a AtomicBool);
    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let is_done = AtomicBool::new(false);
    // As in `isolated`, but only while this thread waits for the others after `f`.
    let mut guards = None;
    let (result, ()) = rayon::join(
        || {
            let _done = SetOnDrop(&is_done);
            let result = f();
            guards = Some((ModeGuard::set(GradMode::Enabled), ProfileGuard::paused()));
            result
        },
        || wait_by_working(count() - 1, &is_done),
    );
    drop(guards);
    result
}

/// On some threads, until it is done.
#[cfg(not(target_family = "wasm"))]
fn wait_by_working(threads: usize, is_done: &AtomicBool) {
    let wait = || {
        while !is_done.load(Ordering::Acquire) {
            if rayon::yield_now() != Some(rayon::Yield::Executed) {
                spin_loop();
            }
        }
    };
    match threads {
        1 => wait(),
        _ => _ = rayon::join(wait, || wait_by_working(threads - 1, is_done)),
    }
}

/// Call `f(start, chunk)` for each `len`-long chunk of `out`, in parallel; `start` is the index
/// of the chunk's first element.
pub(crate) fn for_chunks<T: Send>(out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let len = len.max(1);
    #[cfg(not(target_family = "wasm"))]
    if out.len() > len && count() > 1 {
        return parallel_chunks(out, len, &f);
    }
    out.chunks_mut(len).enumerate().for_each(|(i, chunk)| f(i * len, chunk));
}

/// Call `f(i, chunk)` for each `len`-long chunk of `out`, the last of which may be shorter, by several
/// threads if `threads` is not 1, until one fails. Takes no memory, unlike a list of tasks.
#[cfg_attr(target_family = "wasm", allow(unused_variables))]
pub(crate) fn try_for_chunks<T: Send>(
    out: &mut [T],
    len: usize,
    threads: usize,
    f: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    #[cfg(not(target_family = "wasm"))]
    if threads != 1 {
        return try_parallel_chunks(out, len, &f);
    }
    out.chunks_mut(len).enumerate().try_for_each(|(i, chunk)| f(i, chunk))
}

/// Call `f` for each task, in parallel if the `work` of all is at least [`GRAIN`] elements. The
/// tasks must not depend on the number of threads.
#[cfg_attr(target_family = "wasm", allow(unused_variables))]
pub(crate) fn for_tasks<T: Send>(
    tasks: impl IntoIterator<Item = T>,
    work: usize,
    f: impl Fn(T) + Send + Sync,
) {
    #[cfg(not(target_family = "wasm"))]
    if work >= GRAIN && count() > 1 {
        let tasks = Tasks::new(tasks);
        return parallel(tasks.0.len(), &|i| f(tasks.take(i)));
    }
    tasks.into_iter().for_each(f);
}

/// Call `f(i, task)` for each task, by several threads if `threads` is not 1, until one fails.
#[cfg_attr(target_family = "wasm", allow(unused_variables))]
pub(crate) fn try_for_tasks<T: Send>(
    tasks: impl IntoIterator<Item = T>,
    threads: usize,
    f: impl Fn(usize, T) -> Result<()> + Send + Sync,
) -> Result<()> {
    // For a single thread, rayon must not split the work.
    #[cfg(not(target_family = "wasm"))]
    if threads != 1 {
        let tasks = Tasks::new(tasks);
        return try_parallel(tasks.0.len(), &|i| f(i, tasks.take(i)));
    }
    tasks.into_iter().enumerate().try_for_each(|(i, task)| f(i, task))
}

/// Tasks that are taken by their number. A few, as in decoding, take nothing from the allocator.
#[cfg(not(target_family = "wasm"))]
struct Tasks<T>(SmallVec<[Mutex<Option<T>>; 4]>);

#[cfg(not(target_family = "wasm"))]
impl<T> Tasks<T> {
    fn new(tasks: impl IntoIterator<Item = T>) -> Tasks<T> {
        Tasks(tasks.into_iter().map(|task| Mutex::new(Some(task))).collect())
    }

    fn take(&self, i: usize) -> T {
        let task = self.0[i].lock().unwrap_or_else(PoisonError::into_inner).take();
        task.expect("every number occurs once")
    }
}

#[cfg(not(target_family = "wasm"))]
fn parallel_chunks<T: Send>(out: &mut [T], len: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    isolated(|| out.par_chunks_mut(len).enumerate().for_each(|(i, chunk)| f(i * len, chunk)));
}

#[cfg(not(target_family = "wasm"))]
fn try_parallel_chunks<T: Send>(
    out: &mut [T],
    len: usize,
    f: &(dyn Fn(usize, &mut [T]) -> Result<()> + Sync),
) -> Result<()> {
    out.par_chunks_mut(len).enumerate().try_for_each(|(i, chunk)| f(i, chunk))
}

#[cfg(not(target_family = "wasm"))]
fn parallel(count: usize, f: &(dyn Fn(usize) + Sync)) {
    if count == 1 {
        return f(0);
    }
    isolated(|| (0..count).into_par_iter().for_each(f));
}

#[cfg(not(target_family = "wasm"))]
fn try_parallel(count: usize, f: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    if count == 1 {
        return f(0);
    }
    (0..count).into_par_iter().try_for_each(f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::no_grad;

    #[test]
    fn grad_mode_is_the_same_with_threads_awake() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let check = || {
            let inner = || with_threads_awake(grad_mode::is_enabled);
            assert!(inner());
            assert!(!no_grad(|| inner() || grad_mode::is_enabled()));
            assert!(grad_mode::is_enabled());
        };
        check();
        pool.install(check);
    }

    #[test]
    fn threads_that_are_awake_work() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let barrier = std::sync::Barrier::new(3);
        // Ends only if each of the three threads takes a chunk.
        let meet = || for_chunks(&mut [0; 3], 1, |_, _| _ = barrier.wait());
        pool.install(|| with_threads_awake(|| (0..100).for_each(|_| meet())));
    }

    #[test]
    fn a_panic_ends_the_waiting() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let run = || pool.install(|| with_threads_awake(|| panic!("expected")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
        assert_eq!(pool.install(|| with_threads_awake(|| 1)), 1);
    }
}
