//! Finding an adapter and opening it.

use std::sync::OnceLock;
#[cfg(not(target_family = "wasm"))]
use std::sync::{Mutex, Weak};

#[cfg(not(target_family = "wasm"))]
use wgpu::DeviceType;
use wgpu::{Backends, Features, Limits};

use super::Gpu;
use super::fault::Faults;
use crate::error::{Error, Result};

const OP: &str = "gpu";

/// Which limits and features of an adapter are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capabilities {
    /// Its own limits, and the optional features that kernels benefit from.
    #[default]
    Full,
    /// WebGPU's default limits and no optional feature: what every browser grants.
    WebGpu,
}

/// The adapters of this machine, in the order of their numbers. A browser shows one at most.
pub async fn adapters() -> Vec<wgpu::Adapter> {
    // A single instance: objects of one instance cannot be used with another.
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    let instance = INSTANCE.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = Backends::PRIMARY;
        // No validation layers: they are for driver development.
        descriptor.flags = wgpu::InstanceFlags::empty();
        wgpu::Instance::new(descriptor)
    });
    instance.enumerate_adapters(Backends::PRIMARY).await
}

impl Gpu {
    /// Open an adapter.
    pub async fn open(adapter: &wgpu::Adapter, capabilities: Capabilities) -> Result<Gpu> {
        let (features, limits) = match capabilities {
            Capabilities::Full => {
                let gainful = Features::SHADER_F16 | Features::SUBGROUP | Features::PIPELINE_CACHE;
                // For profiles.
                #[cfg(not(target_family = "wasm"))]
                let gainful = gainful | super::clock::FEATURES;
                (adapter.features() & gainful, adapter.limits())
            }
            Capabilities::WebGpu => (Features::empty(), Limits::default()),
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("taipan"),
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        let (device, queue) =
            adapter.request_device(&descriptor).await.map_err(|error| Error::Device {
                op: OP,
                why: format!("{} could not be opened: {error}", adapter.get_info().name),
            })?;
        let faults = Faults::of(&device);
        let gpu = Gpu::new(device, queue, faults)?;
        gpu.measure_exp2().await?;
        Ok(gpu)
    }

    /// The adapter `name`, or else the one that `TAIPAN_ADAPTER` names, or else the best that is
    /// not software; with `TAIPAN_LIMITS=default` as a browser would offer it. The same adapter is
    /// the same `Gpu` while a clone of it lives.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn find(name: Option<&str>) -> Result<Option<Gpu>> {
        static OPEN: Mutex<Vec<(String, Weak<super::Inner>)>> = Mutex::new(Vec::new());
        let adapters = pollster::block_on(adapters());
        let Some(index) = choose(&adapters, name)? else { return Ok(None) };
        let capabilities = match std::env::var("TAIPAN_LIMITS").as_deref() {
            Err(_) | Ok("") => Capabilities::Full,
            Ok("default") => Capabilities::WebGpu,
            Ok(other) => {
                let why = format!("TAIPAN_LIMITS is {other:?}, expected \"default\" or nothing");
                return Err(Error::Device { op: OP, why });
            }
        };
        let key = format!("{index} {:?} {capabilities:?}", adapters[index].get_info());
        let mut open = super::lock(&OPEN);
        open.retain(|(_, gpu)| gpu.strong_count() > 0);
        let found = open.iter().find(|(k, _)| *k == key).and_then(|(_, gpu)| gpu.upgrade());
        if let Some(gpu) = found.map(Gpu).filter(|gpu| !gpu.is_lost()) {
            return Ok(Some(gpu));
        }
        open.retain(|(k, _)| *k != key);
        let gpu = pollster::block_on(Gpu::open(&adapters[index], capabilities))?;
        open.push((key, std::sync::Arc::downgrade(&gpu.0)));
        Ok(Some(gpu))
    }
}

/// The number of the adapter to use; none if there are only software adapters.
#[cfg(not(target_family = "wasm"))]
fn choose(adapters: &[wgpu::Adapter], name: Option<&str>) -> Result<Option<usize>> {
    let variable = std::env::var("TAIPAN_ADAPTER").ok().filter(|name| !name.is_empty());
    let (name, from) = match (name, &variable) {
        (Some(name), _) => (name, ""),
        (None, Some(name)) => (name.as_str(), "TAIPAN_ADAPTER: "),
        (None, None) => {
            let rank = |adapter: &wgpu::Adapter| match adapter.get_info().device_type {
                DeviceType::DiscreteGpu => 0,
                DeviceType::IntegratedGpu => 1,
                DeviceType::VirtualGpu | DeviceType::Other => 2,
                DeviceType::Cpu => 3,
            };
            let best = (0..adapters.len()).min_by_key(|&i| rank(&adapters[i]));
            return Ok(best.filter(|&i| rank(&adapters[i]) < 3));
        }
    };
    let found = match name.parse::<usize>() {
        Ok(index) => (index < adapters.len()).then_some(index),
        Err(_) => adapters.iter().position(|adapter| {
            adapter.get_info().name.to_lowercase().contains(&name.to_lowercase())
        }),
    };
    found.map(Some).ok_or_else(|| {
        let why = format!("{from}no adapter is {name:?}; {}", list(adapters));
        Error::Device { op: OP, why }
    })
}

/// `found 0: llvmpipe (vulkan)`
#[cfg(not(target_family = "wasm"))]
pub(crate) fn list(adapters: &[wgpu::Adapter]) -> String {
    if adapters.is_empty() {
        return "found none".into();
    }
    let line = |(i, adapter): (usize, &wgpu::Adapter)| {
        let info = adapter.get_info();
        format!("{i}: {} ({})", info.name, info.backend)
    };
    format!("found {}", adapters.iter().enumerate().map(line).collect::<Vec<_>>().join(", "))
}
