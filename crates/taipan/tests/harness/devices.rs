//! Where tests run.

use std::sync::OnceLock;

use taipan::Device;

/// Where everything is tested: the CPU and a GPU, which fails the suite when it is missing.
/// `TAIPAN_TEST_GPU=skip` leaves it out, `TAIPAN_TEST_GPU=only` the CPU.
pub fn devices() -> Vec<Device> {
    match std::env::var("TAIPAN_TEST_GPU").as_deref() {
        Err(_) | Ok("") => vec![Device::Cpu, gpu().clone()],
        Ok("skip") => vec![Device::Cpu],
        Ok("only") => vec![gpu().clone()],
        Ok(other) => panic!("TAIPAN_TEST_GPU is {other:?}, expected skip or only"),
    }
}

/// The machine's GPU, or else Mesa's in software. `TAIPAN_ADAPTER` names another.
pub fn gpu() -> &'static Device {
    static GPU: OnceLock<Device> = OnceLock::new();
    GPU.get_or_init(|| {
        let found = match std::env::var_os("TAIPAN_ADAPTER") {
            Some(_) => Device::gpu(),
            None => Device::gpu().or_else(|_| Device::gpu_named("llvmpipe")),
        };
        found.unwrap_or_else(|e| {
            panic!("{e}; install a Vulkan driver (mesa-vulkan-drivers) or set TAIPAN_TEST_GPU=skip")
        })
    })
}
