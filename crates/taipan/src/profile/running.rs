//! The profile that the current thread makes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Clock, Part, Profile};
use crate::gpu::Gpu;

/// An op, and which of its kernels; empty if it has one.
type Name = (&'static str, &'static str);

/// Times that a device reports, maybe to another thread.
type Ledger = Arc<Mutex<Vec<(Name, Duration)>>>;

#[derive(Default)]
struct Running {
    parts: HashMap<Name, (usize, Duration)>,
    /// The parts being measured, the innermost last.
    open: Vec<Open>,
    gpus: Vec<Gpu>,
    ledger: Ledger,
    /// Spent on waiting for what GPUs had to do before.
    excluded: Duration,
}

struct Open {
    name: Name,
    since: Instant,
    /// What of its time belongs to others.
    others: Duration,
}

thread_local! {
    static RUNNING: RefCell<Option<Box<Running>>> = const { RefCell::new(None) };
}

fn with<R>(f: impl FnOnce(&mut Running) -> R) -> Option<R> {
    RUNNING.with_borrow_mut(|running| running.as_deref_mut().map(f))
}

/// Whether this thread makes one.
pub(crate) fn is_on() -> bool {
    RUNNING.with_borrow(Option::is_some)
}

/// Run `f` and measure every kernel that it runs on this thread, those of backward passes included, on the
/// CPU and on GPUs, for which it waits at the end. [The module](mod@crate::profile) says what the parts are.
///
/// Work that `f` hands to other threads is not seen, nor is that of others in the same pool; but others that use
/// the same processor or GPU meanwhile make everything longer. A profile within a profile is part of both.
///
/// Absent in browsers, where nobody may wait for a GPU.
pub fn profile<R>(f: impl FnOnce() -> R) -> (R, Profile) {
    let ((result, total), running) = replaced(Some(Box::default()), || {
        let start = Instant::now();
        let result = f();
        with(|running| running.gpus.clone()).into_iter().flatten().for_each(|gpu| gpu.settle());
        (result, start.elapsed())
    });
    let mut running = running.expect("what was put in place at the start");
    running.balance();
    let total = total.saturating_sub(running.excluded);
    with(|outer| {
        for (name, (calls, time)) in &running.parts {
            outer.add(*name, *calls, *time);
            outer.belongs_to_another(*time);
        }
        for gpu in &running.gpus {
            if !outer.gpus.contains(gpu) {
                outer.gpus.push(gpu.clone());
            }
        }
    });
    (result, running.finished(total))
}

/// Run `f` with another profile, or none, and get back what became of it.
fn replaced<R>(running: Option<Box<Running>>, f: impl FnOnce() -> R) -> (R, Option<Box<Running>>) {
    struct Restore(Option<Box<Running>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RUNNING.set(self.0.take());
        }
    }
    let _restore = Restore(RUNNING.replace(running));
    let result = f();
    (result, RUNNING.take())
}

/// Run `f` unseen.
pub(crate) fn paused<R>(f: impl FnOnce() -> R) -> R {
    replaced(None, f).0
}

/// `f`, measured as [`Device::part`](crate::Device::part) says, by the host's clock.
pub(crate) fn part<R>(op: &'static str, role: &'static str, f: impl FnOnce() -> R) -> R {
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

/// Make sure that what a GPU had to do before this profile is done, and not counted.
pub(crate) fn meet(gpu: &Gpu) {
    let known = with(|running| running.gpus.contains(gpu));
    if known == Some(false) {
        let start = Instant::now();
        paused(|| gpu.settle());
        with(|running| {
            running.gpus.push(gpu.clone());
            running.excluded += start.elapsed();
            running.belongs_to_another(start.elapsed());
        });
    }
}

/// Where to report the time of what is launched now.
pub(crate) struct Entry {
    name: Name,
    ledger: Ledger,
}

/// None if nobody wants to know.
pub(crate) fn entry() -> Option<Entry> {
    let entry = |running: &mut Running| {
        let name = running.open.last()?.name;
        Some(Entry { name, ledger: running.ledger.clone() })
    };
    with(entry).flatten()
}

impl Entry {
    pub(crate) fn report(self, time: Duration) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.push((self.name, time));
    }
}

impl Running {
    fn add(&mut self, name: Name, calls: usize, time: Duration) {
        let part = self.parts.entry(name).or_default();
        *part = (part.0 + calls, part.1 + time);
    }

    /// So much of the time of the innermost part is not its own.
    fn belongs_to_another(&mut self, time: Duration) {
        if let Some(open) = self.open.last_mut() {
            open.others += time;
        }
    }

    /// Take over what devices reported. Whoever waited for them did not work.
    fn balance(&mut self) {
        let reported = {
            let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *ledger)
        };
        for (name, time) in reported {
            self.add(name, 0, time);
            self.belongs_to_another(time);
        }
    }

    /// The innermost part is at its end.
    fn close(&mut self) {
        self.balance();
        if let Some(Open { name, since, others }) = self.open.pop() {
            let time = since.elapsed();
            self.add(name, 1, time.saturating_sub(others));
            self.belongs_to_another(time);
        }
    }

    fn finished(self, total: Duration) -> Profile {
        let clocks = self.gpus.iter().map(Gpu::clock);
        let gpu_clock = clocks.reduce(|a, b| if a == Clock::Device { b } else { a });
        let part = |((op, role), (calls, time)): (Name, (usize, Duration))| {
            let name = if role.is_empty() { op.into() } else { format!("{op}: {role}") };
            Part { name, calls, time }
        };
        let mut parts: Vec<Part> = self.parts.into_iter().map(part).collect();
        parts.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        Profile { total, parts, gpu_clock }
    }
}
