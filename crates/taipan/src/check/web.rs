//! Tests in a browser: what they wait with, and on which device they run. Whoever calls a test lets
//! the browser suspend WebAssembly (JavaScript Promise Integration), and provides `./tests.js`.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::gpu::{Capabilities, Gpu, adapters};
use crate::{Device, Result};

#[link(wasm_import_module = "./tests.js")]
unsafe extern "C" {
    /// Suspend this stack until the browser has gone on with other tasks.
    safe fn suspend();
    /// 1 to test on WebGPU, 0 on the CPU.
    safe fn on_webgpu() -> u32;
}

/// The result of a future.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => suspend(),
        }
    }
}

/// Where everything is tested: the CPU or the browser's WebGPU, as the page says.
///
/// # Panics
///
/// If there is no WebGPU.
pub fn devices() -> Vec<Device> {
    match on_webgpu() {
        0 => vec![Device::Cpu],
        _ => vec![gpu().unwrap_or_else(|e| panic!("{e}"))],
    }
}

fn gpu() -> Result<Device> {
    thread_local! {
        static GPU: std::cell::OnceCell<Device> = const { std::cell::OnceCell::new() };
    }
    if let Some(gpu) = GPU.with(|gpu| gpu.get().cloned()) {
        return Ok(gpu);
    }
    let adapters = block_on(adapters());
    let adapter = adapters.first().expect("the browser gives no adapter");
    let gpu = Device::Gpu(block_on(Gpu::open(adapter, Capabilities::Full))?);
    Ok(GPU.with(|opened| opened.get_or_init(|| gpu).clone()))
}
