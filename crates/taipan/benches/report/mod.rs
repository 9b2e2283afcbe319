//! What every benchmark shares: arguments, interleaved timing, the machine's peak, the report.
//!
//! Contenders run in turn, round after round, and each keeps its best time: on a shared machine
//! the minimum is what the code costs, and the rest is the neighbours.

use std::time::{Duration, Instant};

use taipan::gpu::Gpu;
use taipan::{Device, Result};

/// Run a benchmark on the device that the command line asks for.
pub fn run(
    cpu: impl FnOnce(&Options) -> Result<()> + Send,
    gpu: impl FnOnce(&Options, &Gpu) -> Result<()>,
) -> Result<()> {
    let options = Options::parse();
    match options.device()? {
        Device::Gpu(device) => gpu(&options, &device),
        _ => options.with_threads(|| cpu(&options)),
    }
}

/// What the command line asks for.
pub struct Options {
    json: bool,
    gpu: bool,
    pub threads: usize,
}

impl Options {
    /// `[--json] [--device cpu|gpu] [--threads N]`; anything else ends the program with code 2.
    fn parse() -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Options { json: false, gpu: false, threads: cores };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--bench" => {} // cargo's own
                "--json" => options.json = true,
                "--device" => match args.next().as_deref() {
                    Some("cpu") => options.gpu = false,
                    Some("gpu") => options.gpu = true,
                    other => refuse(&format!(
                        "--device is {}, expected cpu or gpu",
                        other.unwrap_or("missing")
                    )),
                },
                "--threads" => match args.next().and_then(|n| n.parse().ok()) {
                    Some(n) if n > 0 => options.threads = n,
                    _ => refuse("--threads takes a number from 1"),
                },
                other => refuse(&format!("{other} is unknown; --json, --device, --threads")),
            }
        }
        options
    }

    /// The device that was asked for. A GPU in software counts, if there is no other: its ratios
    /// tell something, too.
    fn device(&self) -> Result<Device> {
        match self.gpu {
            false => Ok(Device::Cpu),
            true => Device::gpu().or_else(|error| match std::env::var_os("TAIPAN_ADAPTER") {
                None => Device::gpu_named("llvmpipe").map_err(|_| error),
                Some(_) => Err(error),
            }),
        }
    }

    /// Run `f` with the number of threads that was asked for.
    fn with_threads<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        pool.expect("a thread pool").install(f)
    }

    /// Measure the machine's peak and print it.
    pub fn peak(&self) -> f64 {
        let (threads, peak) = (self.threads, fma_peak(self.threads));
        match self.json {
            true => println!("{{\"op\":\"fma.peak\",\"threads\":{threads},\"gflops\":{peak:.1}}}"),
            false => println!("{}; FMA peak {peak:.0} GF/s", Device::Cpu.describe()),
        }
        peak
    }

    /// Print one result.
    pub fn report(&self, row: &Row) {
        let Row { op, shape, dtype, ms, baseline, baseline_ms } = row;
        let (threads, ratio) = (self.threads, ms / baseline_ms);
        let device = if self.gpu { "gpu" } else { "cpu" };
        if self.json {
            println!(
                "{{\"op\":\"{op}\",\"shape\":\"{shape}\",\"dtype\":\"{dtype}\",\"device\":\"{device}\",\
                 \"threads\":{threads},\"ms\":{ms:.4},\"baseline\":\"{baseline}\",\
                 \"baseline_ms\":{baseline_ms:.4},\"ratio\":{ratio:.4}}}"
            );
        } else {
            println!(
                "{op:<25} {shape:<14} {dtype:<4} {ms:>9.3} ms  {ratio:>6.3} × {baseline} ({baseline_ms:.3} ms)"
            );
        }
    }

    /// Print a line for people.
    pub fn say(&self, line: &str) {
        if !self.json {
            println!("{line}");
        }
    }
}

fn refuse(why: &str) -> ! {
    eprintln!("bench: {why}");
    std::process::exit(2)
}

/// One line of the report: a time and the one it is measured by.
pub struct Row {
    pub op: &'static str,
    pub shape: String,
    pub dtype: String,
    pub ms: f64,
    pub baseline: &'static str,
    pub baseline_ms: f64,
}

/// A contender: prepares a run, and returns it for timing.
pub type Contender<'a> = Box<dyn FnMut() -> Box<dyn FnOnce() + 'a> + 'a>;

/// The best time of each contender in milliseconds.
pub fn race(contenders: &mut [Contender]) -> Vec<f64> {
    race_by(wall_ms, contenders)
}

/// The same by another clock, as [`cpu_ms`] for what one thread does.
pub fn race_by(clock: fn() -> f64, contenders: &mut [Contender]) -> Vec<f64> {
    const ROUNDS: usize = 12;
    const BUDGET: Duration = Duration::from_secs(12);
    let mut best = vec![f64::INFINITY; contenders.len()];
    let start = Instant::now();
    for round in 0..ROUNDS {
        for (best, contender) in best.iter_mut().zip(&mut *contenders) {
            let run = contender();
            let start = clock();
            run();
            *best = best.min(clock() - start);
        }
        if round >= 2 && start.elapsed() > BUDGET {
            break;
        }
    }
    best
}

/// The time this thread has spent computing, in milliseconds; where the system does not say, the
/// time that has passed.
pub fn cpu_ms() -> f64 {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for the call to write to.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } == 0 {
            return time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6;
        }
    }
    wall_ms()
}

/// The time that has passed since the first call, in milliseconds.
pub fn wall_ms() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e3
}

/// The machine's peak in GFLOP/s, f32 multiply-adds in registers, on all threads together.
fn fma_peak(threads: usize) -> f64 {
    use rayon::prelude::*;
    const STEPS: usize = 4_000_000;
    // By each thread's own time, which does not count what other programs take.
    let speed = || {
        let start = cpu_ms();
        fma_loop(STEPS) as f64 / (cpu_ms() - start) / 1e6
    };
    (0..5)
        .map(|_| (0..threads).into_par_iter().with_max_len(1).map(|_| speed()).sum())
        .fold(0.0, f64::max)
}

/// Do multiply-adds, and say how many operations they were.
fn fma_loop(steps: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        use std::hint::black_box;
        const CHAINS: usize = 12;

        #[target_feature(enable = "avx2,fma")]
        fn run(steps: usize) -> usize {
            let (a, b) = (black_box(_mm256_set1_ps(0.999)), black_box(_mm256_set1_ps(0.001)));
            let mut x = [_mm256_set1_ps(1.0); CHAINS];
            for _ in 0..steps {
                for x in &mut x {
                    *x = _mm256_fmadd_ps(*x, a, b);
                }
            }
            black_box(x);
            steps * CHAINS * 8 * 2
        }

        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { run(steps) };
        }
    }
    let mut x = [1f32; 32];
    for _ in 0..steps {
        x = std::hint::black_box(x.map(|x| x * 0.999 + 0.001));
    }
    steps * 32 * 2
}

/// Until the device has done all it was given.
pub fn wait(device: &Device) {
    if let Device::Gpu(gpu) = device {
        gpu.flush().expect("no fault");
        gpu.device().poll(taipan::wgpu::PollType::wait_indefinitely()).expect("the device");
    }
}
