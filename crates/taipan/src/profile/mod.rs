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
//! // part              calls          ms   share
//! // linear                1       0.009   36.1%
//! // linear: dw            1       0.005   18.2%
//! // mul                   3       0.002    8.0%
//! // …
//! // between the ops               0.007   28.2%
//! let product = profile.parts.iter().find(|part| part.name == "linear").unwrap();
//! assert_eq!(product.calls, 1);
//! # Ok::<(), taipan::Error>(())
//! ```
//!
//! A kernel is named after its op, and behind that what it is for if the op has several: `linear`,
//! `linear: dx`, `linear: dw`. Backward passes that are made of other ops appear under the names of those.
//!
//! On a GPU, ops are launched first and run later, in batches. To tell whose time is whose, the host waits
//! for each batch while it is measured: what otherwise happens at the same time happens one after the other, and the total
//! is longer than without a profile. An op's time is what the host took to launch it plus what the device took to run it.
//! Three more parts are `upload`, `read`, and `submit`: what handing over batches and waiting for them took beyond the
//! kernels in them. How the device's time was taken, [`Profile::gpu_clock`] says.

#[cfg(not(target_family = "wasm"))]
mod running;

use std::fmt;
use std::time::Duration;

#[cfg(not(target_family = "wasm"))]
pub use self::running::profile;
#[cfg(not(target_family = "wasm"))]
pub(crate) use self::running::{Entry, entry, is_on, meet, part, paused};
use crate::Device;
use crate::gpu::Gpu;

/// What [`profile`](crate::profile()) measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The time of all of it, until the last result was there.
    pub total: Duration,
    /// What it was made of, the longest first. Together at most `total`.
    pub parts: Vec<Part>,
    /// How the time of kernels on a GPU was taken; none if none was used.
    pub gpu_clock: Option<Clock>,
}

/// The kernels of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `linear`, `linear: dw`
    pub name: String,
    /// How often it ran.
    pub calls: usize,
    /// How long all of them took.
    pub time: Duration,
}

/// How the time of kernels on a GPU is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// By the device's own clock, while kernels run in batches as they always do.
    Device,
    /// By the host's, which waits for the device after every op: what the GPU's device offers lacks
    /// `TIMESTAMP_QUERY_INSIDE_ENCODERS`. An op's time then includes the way to the device and back.
    Host,
}

impl Profile {
    /// What is in no part: the program's own time, and what lies between ops.
    pub fn rest(&self) -> Duration {
        self.total.saturating_sub(self.parts.iter().map(|part| part.time).sum())
    }
}

/// A table, the longest part first, the rest in the last line.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = match self.gpu_clock {
            None => "",
            Some(Clock::Device) => "; kernels by the GPU's clock",
            Some(Clock::Host) => "; the GPU waited for after every op",
        };
        let numbers = |time: Duration| {
            let share =
                100.0 * time.as_secs_f64() / self.total.as_secs_f64().max(f64::MIN_POSITIVE);
            format!("{:>11.3} {share:>6.1}%", 1e3 * time.as_secs_f64())
        };
        let width = self.parts.iter().map(|part| part.name.chars().count()).max();
        let width = width.unwrap_or(0).max("between the ops".len());
        writeln!(f, "total: {:.3} ms{clock}", 1e3 * self.total.as_secs_f64())?;
        writeln!(f, "{:<width$} {:>7} {:>11} {:>7}", "part", "calls", "ms", "share")?;
        for Part { name, calls, time } in &self.parts {
            writeln!(f, "{name:<width$} {calls:>7} {}", numbers(*time))?;
        }
        write!(f, "{:<width$} {:>7} {}", "between the ops", "", numbers(self.rest()))
    }
}

impl Device {
    /// `f`, measured as a part of the profile that this thread makes, if it does: the kernel `role` of
    /// `op`, or its only one if that is empty.
    pub(crate) fn part<R>(&self, op: &'static str, role: &'static str, f: impl FnOnce() -> R) -> R {
        match self {
            Device::Cpu => part(op, role, f),
            Device::Gpu(gpu) => gpu.part(op, role, f),
        }
    }
}

impl Gpu {
    /// [`Device::part`]
    pub(crate) fn part<R>(&self, op: &'static str, role: &'static str, f: impl FnOnce() -> R) -> R {
        #[cfg(not(target_family = "wasm"))]
        if is_on() {
            meet(self);
            return part(op, role, || {
                let result = f();
                if self.clock() == Clock::Host {
                    self.settle();
                }
                result
            });
        }
        part(op, role, f)
    }
}

/// Nothing is measured in a browser, where nobody may wait for a device.
#[cfg(target_family = "wasm")]
pub(crate) fn part<R>(_: &'static str, _: &'static str, f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_family = "wasm")]
pub(crate) fn paused<R>(f: impl FnOnce() -> R) -> R {
    f()
}
