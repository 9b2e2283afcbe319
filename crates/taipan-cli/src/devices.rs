//! `taipan devices`: what tensors can live on.

use std::fmt;

use serde::Serialize;
use taipan::Device;
use taipan::wgpu::{Adapter, DeviceType, Features};

use crate::{Failure, bytes};

/// Print every device; fails after that if [`Device::best`] does.
pub fn devices(json: bool) -> Result<(), Failure> {
    let adapters = pollster::block_on(taipan::gpu::adapters());
    let best = best(&adapters);
    let list = List::new(&adapters, &best);
    crate::print_report(&list, json)?;
    Ok(best.map(drop)?)
}

/// The adapter that [`Device::best`] chooses; none for the CPU.
fn best(adapters: &[Adapter]) -> Result<Option<usize>, String> {
    let best = Device::best().map_err(|error| error.to_string())?;
    let Device::Gpu(gpu) = &best else { return Ok(None) };
    // Two cards of one model may tell the same of themselves; a number opens the same one again.
    let is_best = |i: &usize| {
        adapters[*i].get_info() == *gpu.info()
            && Device::gpu_named(&i.to_string()).is_ok_and(|named| named == best)
    };
    (0..adapters.len()).find(is_best).map(Some).ok_or_else(|| {
        let found = adapters.len();
        format!("devices: the best is {}, expected one of the {found} adapters", gpu.name())
    })
}

/// The keys of `--json` are these fields; what is in bytes there has units in the text.
#[derive(Serialize)]
struct List {
    devices: Vec<Entry>,
    /// Why there is no best device.
    error: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    kind: &'static str,
    /// The number that `TAIPAN_ADAPTER` and [`Device::gpu_named`] take.
    index: Option<usize>,
    name: String,
    best: bool,
    #[serde(flatten)]
    gpu: Option<Gpu>,
}

/// What an adapter says of itself.
#[derive(Serialize)]
pub struct Gpu {
    backend: &'static str,
    driver: String,
    driver_info: String,
    r#type: &'static str,
    f16: bool,
    subgroups: bool,
    subgroup_min_size: Option<u32>,
    subgroup_max_size: Option<u32>,
    timestamps: bool,
    limits: Limits,
}

/// Under WebGPU's names.
#[derive(Serialize)]
struct Limits {
    max_buffer_size: u64,
    max_storage_buffer_binding_size: u64,
    max_compute_workgroup_storage_size: u32,
    max_compute_invocations_per_workgroup: u32,
    max_storage_buffers_per_shader_stage: u32,
}

const SOFTWARE: &str = "software";

impl List {
    fn new(adapters: &[Adapter], best: &Result<Option<usize>, String>) -> List {
        let entry =
            |kind, index, name, gpu| Entry { kind, index, name, best: *best == Ok(index), gpu };
        let cpu = entry(Device::Cpu.name(), None, Device::Cpu.describe(), None);
        let gpus = adapters.iter().enumerate().map(|(i, adapter)| {
            entry("gpu", Some(i), adapter.get_info().name, Some(Gpu::new(adapter)))
        });
        let devices = std::iter::once(cpu).chain(gpus).collect();
        List { devices, error: best.as_ref().err().cloned() }
    }
}

impl Gpu {
    pub fn new(adapter: &Adapter) -> Gpu {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let has = |feature| adapter.features().contains(feature);
        let subgroups = has(Features::SUBGROUP);
        Gpu {
            backend: info.backend.to_str(),
            driver: info.driver,
            driver_info: info.driver_info,
            r#type: match info.device_type {
                DeviceType::DiscreteGpu => "discrete",
                DeviceType::IntegratedGpu => "integrated",
                DeviceType::VirtualGpu => "virtual",
                DeviceType::Cpu => SOFTWARE,
                DeviceType::Other => "other",
            },
            f16: has(Features::SHADER_F16),
            subgroups,
            subgroup_min_size: subgroups.then_some(info.subgroup_min_size),
            subgroup_max_size: subgroups.then_some(info.subgroup_max_size),
            timestamps: has(Features::TIMESTAMP_QUERY),
            limits: Limits {
                max_buffer_size: limits.max_buffer_size,
                max_storage_buffer_binding_size: limits.max_storage_buffer_binding_size,
                max_compute_workgroup_storage_size: limits.max_compute_workgroup_storage_size,
                max_compute_invocations_per_workgroup: limits.max_compute_invocations_per_workgroup,
                max_storage_buffers_per_shader_stage: limits.max_storage_buffers_per_shader_stage,
            },
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.iter().try_for_each(|device| device.fmt(f))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.best { "  [best]" } else { "" };
        let (Some(index), Some(gpu)) = (self.index, &self.gpu) else {
            return writeln!(f, "{}{mark}", self.name);
        };
        let name = if self.name.is_empty() { "unnamed" } else { &self.name };
        writeln!(f, "\ngpu {index}: {name}{mark}")?;
        let software = format!("software, used only when named: TAIPAN_ADAPTER={index}");
        let r#type = if gpu.r#type == SOFTWARE { &software } else { gpu.r#type };
        let lines = [("type", r#type.to_owned())].into_iter().chain(gpu.lines());
        lines.into_iter().try_for_each(|(what, value)| writeln!(f, "  {what:<10}  {value}"))
    }
}

impl Gpu {
    /// What there is to know besides its name and type.
    pub fn lines(&self) -> [(&'static str, String); 8] {
        let limits = &self.limits;
        let [buffer, binding, memory] = [
            limits.max_buffer_size,
            limits.max_storage_buffer_binding_size,
            limits.max_compute_workgroup_storage_size.into(),
        ]
        .map(bytes);
        let invocations = limits.max_compute_invocations_per_workgroup;
        [
            ("backend", self.backend.to_owned()),
            ("driver", self.full_driver()),
            ("f16", yes_or_no(self.f16).to_owned()),
            ("subgroups", self.subgroup_sizes()),
            ("timestamps", yes_or_no(self.timestamps).to_owned()),
            ("memory", format!("buffers up to {buffer}, bindings up to {binding}")),
            ("workgroup", format!("{invocations} invocations, {memory} of memory")),
            ("kernel", format!("{} storage buffers", limits.max_storage_buffers_per_shader_stage)),
        ]
    }

    /// `llvmpipe, Mesa 22.3.6`; drivers leave out either part.
    fn full_driver(&self) -> String {
        match (self.driver.as_str(), self.driver_info.as_str()) {
            ("", "") => "unknown".into(),
            (one, "") | ("", one) => one.into(),
            (driver, info) => format!("{driver}, {info}"),
        }
    }

    fn subgroup_sizes(&self) -> String {
        match (self.subgroup_min_size, self.subgroup_max_size) {
            (Some(least), Some(most)) if least == most => format!("yes, of {least}"),
            (Some(least), Some(most)) => format!("yes, of {least} to {most}"),
            _ => "no".into(),
        }
    }
}

fn yes_or_no(has: bool) -> &'static str {
    if has { "yes" } else { "no" }
}
