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
        let Some(&index) = fitting(&adapters, name)?.first() else { return Ok(None) };
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

/// The numbers of the adapters that a name fits: all with it in their name, or the one with this
/// number; without a name, those of `TAIPAN_ADAPTER`, or else the best that are not software, of
/// which there may be none. All are of one type and backend.
///
/// [`Device::gpu_named`](crate::Device::gpu_named) opens the first of them. Processes that share a
/// machine can take one each.
#[cfg(not(target_family = "wasm"))]
pub fn fitting_adapters(name: Option<&str>) -> Result<Vec<usize>> {
    fitting(&pollster::block_on(adapters()), name)
}

#[cfg(not(target_family = "wasm"))]
fn fitting(adapters: &[wgpu::Adapter], name: Option<&str>) -> Result<Vec<usize>> {
    let variable = std::env::var("TAIPAN_ADAPTER").ok().filter(|name| !name.is_empty());
    let (name, from) = match (name, &variable) {
        (Some(name), _) => (Some(name), ""),
        (None, variable) => (variable.as_deref(), "TAIPAN_ADAPTER: "),
    };
    let kinds: Vec<Kind> = adapters.iter().map(Kind::of).collect();
    let found = Kind::fitting(&kinds, name);
    match name.filter(|_| found.is_empty()) {
        None => Ok(found),
        Some(name) => {
            let why = format!("{from}no adapter is {name:?}; {}", list(adapters));
            Err(Error::Device { op: OP, why })
        }
    }
}

/// What an adapter is chosen by.
#[cfg(not(target_family = "wasm"))]
struct Kind {
    name: String,
    device_type: DeviceType,
    backend: wgpu::Backend,
}

#[cfg(not(target_family = "wasm"))]
impl Kind {
    fn of(adapter: &wgpu::Adapter) -> Kind {
        let wgpu::AdapterInfo { name, device_type, backend, .. } = adapter.get_info();
        Kind { name, device_type, backend }
    }

    /// The best first.
    fn rank(&self) -> u32 {
        match self.device_type {
            DeviceType::DiscreteGpu => 0,
            DeviceType::IntegratedGpu => 1,
            DeviceType::VirtualGpu | DeviceType::Other => 2,
            DeviceType::Cpu => 3,
        }
    }

    /// Those that the name fits, or the best, of one type and backend: a GPU that two backends
    /// show is one of each.
    fn fitting(all: &[Kind], name: Option<&str>) -> Vec<usize> {
        let is_named = |i: usize, name: &str| match name.parse::<usize>() {
            Ok(number) => i == number,
            Err(_) => all[i].name.to_lowercase().contains(&name.to_lowercase()),
        };
        let fits = |i: &usize| match name {
            Some(name) => is_named(*i, name),
            None => all[*i].device_type != DeviceType::Cpu,
        };
        let mut fitting: Vec<usize> = (0..all.len()).filter(fits).collect();
        let first = match name {
            Some(_) => fitting.first(),
            None => fitting.iter().min_by_key(|i| all[**i].rank()),
        };
        let Some(&first) = first else { return fitting };
        let key = |i: usize| (all[i].device_type, all[i].backend);
        fitting.retain(|i| key(*i) == key(first));
        fitting
    }
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

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use wgpu::Backend::{Dx12, Vulkan};

    use super::*;

    #[test]
    fn adapters_that_fit_are_of_one_type_and_backend() {
        let kind = |(name, device_type, backend): (&str, _, _)| Kind {
            name: name.into(),
            device_type,
            backend,
        };
        let all = [
            ("llvmpipe", DeviceType::Cpu, Vulkan),
            ("Intel UHD", DeviceType::IntegratedGpu, Vulkan),
            ("NVIDIA A10", DeviceType::DiscreteGpu, Vulkan),
            ("NVIDIA A10", DeviceType::DiscreteGpu, Vulkan),
            ("NVIDIA A10", DeviceType::DiscreteGpu, Dx12),
            ("NVIDIA A10", DeviceType::DiscreteGpu, Dx12),
            ("llvmpipe", DeviceType::Cpu, Vulkan),
        ]
        .map(kind);
        assert_eq!(Kind::fitting(&all, None), [2, 3]);
        assert_eq!(Kind::fitting(&all, Some("nvidia")), [2, 3]);
        assert_eq!(Kind::fitting(&all, Some("LLVM")), [0, 6]);
        assert_eq!(Kind::fitting(&all, Some("i")), [0, 6], "as the first that is named so");
        assert_eq!(Kind::fitting(&all, Some("3")), [3]);
        assert!(Kind::fitting(&all, Some("7")).is_empty());
        assert_eq!(Kind::fitting(&all[..2], None), [1]);
        assert!(Kind::fitting(&all[..1], None).is_empty(), "software only when named");
        assert!(Kind::fitting(&[], None).is_empty());
    }
}
