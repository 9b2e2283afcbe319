//! Wall time, and the CPU time of all threads.

use std::time::Instant;

/// Sums of seconds.
#[derive(Default)]
pub struct Clock {
    pub wall: f64,
    pub cpu: f64,
}

impl Clock {
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        let result = work();
        self.wall += wall.elapsed().as_secs_f64();
        self.cpu += cpu_seconds() - cpu;
        result
    }
}

/// Of the whole process.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "every Linux has a clock of the process");
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}
