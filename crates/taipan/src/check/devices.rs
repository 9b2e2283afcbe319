//! Where tests run.

use std::sync::OnceLock;

use crate::Device;

/// Where everything is tested: the CPU and the machine's GPU, or else Mesa's in software, which the
/// environment variable `TAIPAN_ADAPTER` can choose, as for [`Device::gpu`]. `TAIPAN_TEST_GPU=skip`
/// leaves the GPU out, `TAIPAN_TEST_GPU=only` the CPU.
///
/// # Panics
///
/// If there is no GPU and it is not left out.
pub fn devices() -> Vec<Device> {
    match std::env::var("TAIPAN_TEST_GPU").as_deref() {
        Err(_) | Ok("") => vec![Device::Cpu, gpu()],
        Ok("skip") => vec![Device::Cpu],
        Ok("only") => vec![gpu()],
        Ok(other) => panic!("TAIPAN_TEST_GPU is {other:?}, expected skip or only"),
    }
}

fn gpu() -> Device {
    static GPU: OnceLock<Device> = OnceLock::new();
    let gpu = GPU.get_or_init(|| {
        let found = match std::env::var_os("TAIPAN_ADAPTER") {
            Some(_) => Device::gpu(),
            None => Device::gpu().or_else(|_| Device::gpu_named("llvmpipe")),
        };
        found.unwrap_or_else(|e| {
            panic!("{e}; install a Vulkan driver (mesa-vulkan-drivers) or set TAIPAN_TEST_GPU=skip")
        })
    });
    gpu.clone()
}
