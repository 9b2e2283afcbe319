//! The profile of the current thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Clock, Profile, Span};
use crate::gpu::Gpu;

/// An op, and the role of its kernel.
type Name = (&'static str, &'static str);

/// Times that a device reports, possibly from another thread.
type Reports = Arc<Mutex<Vec<(Name, Duration)>>>;

#[derive(Default)]
struct Running {
    spans: HashMap<Name, Totals>,
    /// The open spans, the innermost last.
    open: Vec<Open>,
    gpus: Vec<Gpu>,
    reports: Reports,
    /// Time spent waiting for work that GPUs had before the profile.
    excluded: Duration,
}

/// What a span adds up to.
#[derive(Clone, Copy, Default)]
struct Totals {
    calls: usize,
    dispatches: usize,
    time: Duration,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.calls += other.calls;
        self.dispatches += other.dispatches;
        self.time += other.time;
    }
}

struct Open {
    name: Name,
    since: Instant,
    /// Time within it that belongs to other spans.
    others: Duration,
}

thread_local! {
    static RUNNING: RefCell<Option<Box<Running>>> = const { RefCell::new(None) };
}

fn with<R>(f: impl FnOnce(&mut Running) -> R) -> Option<R> {
    RUNNING.with_borrow_mut(|running| running.as_deref_mut().map(f))
}

/// Whether this thread has a profile.
pub(crate) fn is_on() -> bool {
    RUNNING.with_borrow(Option::is_some)
}

/// Run `f` and measure every kernel that it runs on this thread, including backward passes, on the
/// CPU and on GPUs, for which it waits at the end. [The module](mod@crate::profile) describes the
/// spans.
///
/// Work that `f` hands to other threads is not measured, nor is other work in the same thread pool;
/// but anything else that uses the processor or the GPU at the same time makes the times longer. A
/// profile within a profile counts in both.
///
/// Absent in browsers, where the host may not wait for a GPU.
pub fn profile<R>(f: impl FnOnce() -> R) -> (R, Profile) {
    let guard = ProfileGuard::replaced();
    let start = Instant::now();
    let result = f();
    with(|running| running.gpus.clone())
        .into_iter()
        .flatten()
        .for_each(|gpu| gpu.wait_until_idle());
    let total = start.elapsed();
    let mut running = RUNNING.take().expect("set at the start");
    drop(guard);
    running.collect_reports();
    let total = total.saturating_sub(running.excluded);
    with(|outer| {
        for (name, totals) in &running.spans {
            outer.add(*name, *totals);
            outer.exclude(totals.time);
        }
        for gpu in &running.gpus {
            if !outer.gpus.contains(gpu) {
                outer.gpus.push(gpu.clone());
            }
        }
    });
    (result, running.finished(total))
}

/// Restores the profile of this thread when it is dropped.
pub(crate) struct ProfileGuard(Option<Box<Running>>);

impl ProfileGuard {
    /// Have no profile until then.
    pub(crate) fn paused() -> ProfileGuard {
        ProfileGuard(RUNNING.take())
    }

    fn replaced() -> ProfileGuard {
        ProfileGuard(RUNNING.replace(Some(Box::default())))
    }
}

impl Drop for ProfileGuard {
    fn drop(&mut self) {
        RUNNING.set(self.0.take());
    }
}

/// [`Device::span`](crate::Device::span), by the host's clock.
pub(crate) fn span<R>(op: &'static str, role: &'static str, f: impl FnOnce() -> R) -> R {
    struct Close;
    impl Drop for Close {
        fn drop(&mut self) {
            with(Running::close);
        }
    }
    let open = |running: &mut Running| {
        let (name, others) = ((op, role), Duration::ZERO);
        running.open.push(Open { name, since: Instant::now(), others });
        Close
    };
    let _close = with(open);
    f()
}

/// Add a GPU to the profile. Waits for the work that it had before, which is not counted.
pub(crate) fn attach(gpu: &Gpu) {
    let known = with(|running| running.gpus.contains(gpu));
    if known == Some(false) {
        let start = Instant::now();
        let paused = ProfileGuard::paused();
        gpu.wait_until_idle();
        drop(paused);
        with(|running| {
            running.gpus.push(gpu.clone());
            running.excluded += start.elapsed();
            running.exclude(start.elapsed());
        });
    }
}

/// Count a dispatch of the innermost span.
pub(crate) fn count_dispatch() {
    with(|running| {
        if let Some(name) = running.open.last().map(|open| open.name) {
            running.add(name, Totals { dispatches: 1, ..Totals::default() });
        }
    });
}

/// Where to report the time of the next launch.
pub(crate) struct Entry {
    name: Name,
    reports: Reports,
}

/// None without a profile.
pub(crate) fn entry() -> Option<Entry> {
    let entry = |running: &mut Running| {
        let name = running.open.last()?.name;
        Some(Entry { name, reports: running.reports.clone() })
    };
    with(entry).flatten()
}

impl Entry {
    pub(crate) fn report(self, time: Duration) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.push((self.name, time));
    }
}

impl Running {
    fn add(&mut self, name: Name, totals: Totals) {
        *self.spans.entry(name).or_default() += totals;
    }

    /// Exclude time from the innermost span.
    fn exclude(&mut self, time: Duration) {
        if let Some(open) = self.open.last_mut() {
            open.others += time;
        }
    }

    /// Add the times that devices reported, and exclude them from the span that waited.
    fn collect_reports(&mut self) {
        let reported = {
            let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *reports)
        };
        for (name, time) in reported {
            self.add(name, Totals { time, ..Totals::default() });
            self.exclude(time);
        }
    }

    /// Close the innermost span.
    fn close(&mut self) {
        self.collect_reports();
        if let Some(Open { name, since, others }) = self.open.pop() {
            let time = since.elapsed();
            let time_of_own = time.saturating_sub(others);
            self.add(name, Totals { calls: 1, time: time_of_own, ..Totals::default() });
            self.exclude(time);
        }
    }

    fn finished(self, total: Duration) -> Profile {
        let clocks = self.gpus.iter().map(Gpu::clock);
        let gpu_clock = clocks.reduce(|a, b| if a == Clock::Device { b } else { a });
        let span = |((op, role), Totals { calls, dispatches, time }): (Name, Totals)| {
            let name = if role.is_empty() { op.into() } else { format!("{op}: {role}") };
            Span { name, calls, dispatches, time }
        };
        let mut spans: Vec<Span> = self.spans.into_iter().map(span).collect();
        spans.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        Profile { total, spans, gpu_clock }
    }
}
