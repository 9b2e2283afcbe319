//! Where the time of a computation goes, op by op.
//!
//! ```
//! use taipan::{Activation, DType, Device, Tensor, linear, profile};
//!
//! let x = Tensor::randn(&[64, 32], 1, DType::F32, &Device::Cpu)?;
//! let w = Tensor::randn(&[32, 8], 2, DType::F32, &Device::Cpu)?.tracked();
//! let (grads, profile) = profile(|| {
//!     let y = linear(&x, &w, None, Activation::None)?;
//!     y.mul(&y)?.mean()?.backward()
//! });
//! assert_eq!(grads?.of(&w)?.shape(), [32, 8]);
//! println!("{profile}");
//! // total: 0.026 ms
//! // span              calls          ms   share
//! // linear                1       0.009   36.1%
//! // linear: dw            1       0.005   18.2%
//! // mul                   3       0.002    8.0%
//! // …
//! // between the ops               0.007   28.2%
//! let product = profile.spans.iter().find(|span| span.name == "linear").unwrap();
//! assert_eq!(product.calls, 1);
//! # Ok::<(), taipan::Error>(())
//! ```
//!
//! A span is named after its op and, if the op has several kernels, the role of the kernel:
//! `linear`, `linear: dx`, `linear: dw`. Backward passes that consist of other ops appear under
//! their names.
//!
//! On a GPU, ops are launched first and run later, in batches. To attribute the time, the host
//! waits for each batch while a profile is made: host and device no longer overlap, and the total
//! is longer than without a profile. The time of an op is that of its launch on the host plus that
//! of its kernels on the device. Three more spans are `upload`, `read`, and `submit`: the time to
//! submit batches and wait for them, without that of their kernels. [`Profile::gpu_clock`] says
//! which clock measured the device. An op may launch several kernels, or none: its dispatches are
//! counted, too.

#[cfg(not(target_family = "wasm"))]
mod running;

use std::fmt;
use std::time::Duration;

#[cfg(not(target_family = "wasm"))]
pub use self::running::profile;
#[cfg(not(target_family = "wasm"))]
pub(crate) use self::running::{Entry, ProfileGuard, attach, count_dispatch, entry, is_on, span};
use crate::Device;
use crate::gpu::Gpu;

/// What [`profile`](crate::profile()) measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The total time, until the last result was complete.
    pub total: Duration,
    /// The spans, the longest first. Their sum is at most `total`.
    pub spans: Vec<Span>,
    /// The clock that measured kernels on a GPU; none if no GPU was used.
    pub gpu_clock: Option<Clock>,
}

/// All kernels of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// `linear`, `linear: dw`
    pub name: String,
    /// The number of calls.
    pub calls: usize,
    /// The number of kernels that they launched on GPUs; 0 on the CPU.
    pub dispatches: usize,
    /// The time of all calls.
    pub time: Duration,
}

/// The clock that measures kernels on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The device's own clock; kernels run in batches as usual.
    Device,
    /// The host's clock; the host waits for the device after every op, because the device lacks the
    /// feature `TIMESTAMP_QUERY_INSIDE_ENCODERS`. The time of an op then includes the round trip.
    Host,
}

impl Profile {
    /// The number of kernels launched on GPUs. On most, a launch takes some microseconds however
    /// small the kernel is.
    pub fn dispatches(&self) -> usize {
        self.spans.iter().map(|span| span.dispatches).sum()
    }

    /// The time outside all spans: that of the program itself, and between ops.
    pub fn rest(&self) -> Duration {
        self.total.saturating_sub(self.spans.iter().map(|span| span.time).sum())
    }
}

/// A table, the longest span first, the rest in the last line. Dispatches are a column of it if a
/// GPU was used.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = match self.gpu_clock {
            None => "",
            Some(Clock::Device) => "; kernels by the GPU's clock",
            Some(Clock::Host) => "; the GPU waited for after every op",
        };
        let used_gpu = self.gpu_clock.is_some();
        let launches =
            if used_gpu { format!(", {} dispatches", self.dispatches()) } else { "".into() };
        let column = |dispatches: &dyn fmt::Display| match used_gpu {
            true => format!(" {dispatches:>10}"),
            false => String::new(),
        };
        let numbers = |time: Duration| {
            let share =
                100.0 * time.as_secs_f64() / self.total.as_secs_f64().max(f64::MIN_POSITIVE);
            format!("{:>11.3} {share:>6.1}%", 1e3 * time.as_secs_f64())
        };
        let width = self.spans.iter().map(|span| span.name.chars().count()).max();
        let width = width.unwrap_or(0).max("between the ops".len());
        writeln!(f, "total: {:.3} ms{launches}{clock}", 1e3 * self.total.as_secs_f64())?;
        let dispatches = column(&"dispatches");
        writeln!(f, "{:<width$} {:>7}{dispatches} {:>11} {:>7}", "span", "calls", "ms", "share")?;
        for Span { name, calls, dispatches, time } in &self.spans {
            let dispatches = column(dispatches);
            writeln!(f, "{name:<width$} {calls:>7}{dispatches} {}", numbers(*time))?;
        }
        let rest = numbers(self.rest());
        write!(f, "{:<width$} {:>7}{} {rest}", "between the ops", "", column(&""))
    }
}

impl Device {
    /// Run `f` as a span of this thread's profile, if there is one: the kernel `role` of `op`, or
    /// its only kernel if `role` is empty.
    pub(crate) fn span<R>(&self, op: &'static str, role: &'static str, f: impl FnOnce() -> R) -> R {
        match self {
            Device::Cpu => span(op, role, f),
            Device::Gpu(gpu) => gpu.span(op, role, f),
        }
    }
}

impl Gpu {
    /// [`Device::span`]
    pub(crate) fn span<R>(&self, op: &'static str, role: &'static str, f: impl FnOnce() -> R) -> R {
        #[cfg(not(target_family = "wasm"))]
        if is_on() {
            attach(self);
            return span(op, role, || {
                let result = f();
                if self.clock() == Clock::Host {
                    self.wait_until_idle();
                }
                result
            });
        }
        span(op, role, f)
    }
}

/// Nothing is measured in a browser, where the host may not wait for a device.
#[cfg(target_family = "wasm")]
pub(crate) fn span<R>(_: &'static str, _: &'static str, f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_family = "wasm")]
pub(crate) fn count_dispatch() {}
