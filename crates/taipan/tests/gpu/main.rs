//! The GPU runtime: how adapters are chosen, what becomes of memory, how much work is made of an
//! op, and what happens when something goes wrong. What ops compute is tested in `ops`.

mod adapters;
mod binding_windows;
mod buffers;
mod cache;
mod faults;
mod index_errors;
mod interop;
mod launches;
mod places;
mod profile;
mod repeat;

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use taipan::check::devices;
use taipan::gpu::{Capabilities, Gpu};
use taipan::{DType, Device, Tensor, wgpu};

/// The GPU under test, shared with other tests; none if `TAIPAN_TEST_GPU=skip`.
fn shared() -> Option<Gpu> {
    if std::env::var("TAIPAN_TEST_GPU").as_deref() == Ok("skip") {
        eprintln!("skipped: TAIPAN_TEST_GPU=skip");
        return None;
    }
    match devices().pop() {
        Some(Device::Gpu(gpu)) => Some(gpu),
        other => panic!("{other:?} is no GPU"),
    }
}

/// The same adapter, opened for one test: what is counted and broken there is its own.
fn fresh() -> Option<Gpu> {
    let capabilities = match std::env::var("TAIPAN_LIMITS").as_deref() {
        Ok("default") => Capabilities::WebGpu,
        _ => Capabilities::Full,
    };
    open(capabilities)
}

/// The same adapter, opened in a given way.
fn open(capabilities: Capabilities) -> Option<Gpu> {
    let shared = shared()?;
    Some(pollster::block_on(Gpu::open(&adapter(&shared), capabilities)).unwrap())
}

/// The same adapter, with bindings and buffers of at most so many bytes.
fn limited(binding: u64, buffer: u64) -> Option<Gpu> {
    let shared = shared()?;
    let descriptor = wgpu::DeviceDescriptor {
        required_features: shared.device().features() & wgpu::Features::SHADER_F16,
        required_limits: wgpu::Limits {
            max_storage_buffer_binding_size: binding,
            max_buffer_size: buffer,
            ..Default::default()
        },
        ..Default::default()
    };
    let opened = pollster::block_on(adapter(&shared).request_device(&descriptor));
    let (device, queue) = opened.unwrap();
    Some(Gpu::on(&device, &queue).unwrap())
}

/// The adapter of a GPU.
fn adapter(gpu: &Gpu) -> wgpu::Adapter {
    let same = |adapter: &wgpu::Adapter| adapter.get_info() == *gpu.info();
    pollster::block_on(taipan::gpu::adapters()).into_iter().find(same).expect("it was found before")
}

/// The floats that a GPU has.
fn floats(gpu: &Gpu) -> Vec<DType> {
    let device = Device::Gpu(gpu.clone());
    [DType::F32, DType::F16].into_iter().filter(|&dtype| device.supports(dtype)).collect()
}

/// The values of an f32 tensor.
fn read(x: &Tensor) -> Vec<f32> {
    x.read_blocking().unwrap()
}

const CHILD: &str = "TAIPAN_TEST_CHILD";

/// Whether this is the process that [`child`] started.
fn in_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Run a test in a new process, with its own environment, and return its output.
fn child(test: &str, environment: impl FnOnce(&mut Command)) -> String {
    let out = child_of(&std::env::current_exe().unwrap(), test, environment);
    assert_ne!(out, CRASHED, "{test}");
    out
}

/// The same by way of another program, to which `prepare` says what to run.
fn child_of(program: &Path, test: &str, prepare: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(program);
    prepare(&mut command);
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
    let output = command.output().unwrap();
    #[cfg(unix)]
    if std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(SIGSEGV) {
        return CRASHED.into();
    }
    let [out, err] =
        [output.stdout, output.stderr].map(|s| String::from_utf8_lossy(&s).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{command:?} ran another number of tests\n{out}");
    out
}

/// What [`child_of`] returns if the process was ended by a wrong access to memory.
const CRASHED: &str = "crashed";
#[cfg(unix)]
const SIGSEGV: i32 = 11;

/// What `f` returns. A test that would wait for ever fails instead.
fn without_hanging<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let thread = thread::spawn(move || send.send(f()));
    match receive.recv_timeout(Duration::from_secs(120)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still waiting"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("it sends before it ends"),
        },
    }
}
