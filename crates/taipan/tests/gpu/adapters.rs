//! Which adapter is used, and how.

use taipan::gpu::adapters;
use taipan::wgpu::{DeviceType, Features, Limits};
use taipan::{DType, Device, Result, Tensor};

use crate::{child, fresh, in_child, read, shared};

/// As errors show them: `found 0: llvmpipe (vulkan)`.
fn found() -> String {
    let line = |(i, adapter): (usize, &taipan::wgpu::Adapter)| {
        format!("{i}: {} ({})", adapter.get_info().name, adapter.get_info().backend)
    };
    let adapters = pollster::block_on(adapters());
    format!("found {}", adapters.iter().enumerate().map(line).collect::<Vec<_>>().join(", "))
}

/// Expect an error with this message.
#[track_caller]
fn refuses(device: Result<Device>, message: &str) {
    match device {
        Ok(device) => panic!("{device:?} was found, expected: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

#[test]
fn an_adapter_is_named_by_its_number_or_a_part_of_its_name() {
    let Some(gpu) = shared() else { return };
    let all = pollster::block_on(adapters());
    let number = all.iter().position(|a| a.get_info() == *gpu.info()).unwrap();
    let by_number = Device::gpu_named(&number.to_string()).unwrap();
    assert_eq!(by_number, Device::Gpu(gpu.clone()));
    let word = gpu.name().split(' ').next().unwrap();
    let first = all.iter().position(|a| a.get_info().name.contains(word)).unwrap();
    for part in [word.to_uppercase(), word.to_lowercase(), word[1..].to_string()] {
        let Device::Gpu(found) = Device::gpu_named(&part).unwrap() else { panic!("no GPU") };
        assert_eq!(*found.info(), all[first].get_info(), "{part:?}");
    }
}

#[test]
fn an_unknown_adapter_is_an_error_that_lists_the_others() {
    let Some(_) = shared() else { return };
    for name in ["no such thing", "99", "-1"] {
        let message = format!("gpu: no adapter is {name:?}; {}", found());
        refuses(Device::gpu_named(name), &message);
    }
}

/// Neither another adapter nor the CPU stands in for one that was named.
#[test]
fn the_variable_chooses_the_adapter() {
    const NAME: &str = "adapters::the_variable_chooses_the_adapter";
    if !in_child() {
        let Some(_) = shared() else { return };
        for name in ["0", "no such thing"] {
            child(NAME, |command| {
                command.env("TAIPAN_ADAPTER", name);
            });
        }
        return;
    }
    let all = pollster::block_on(adapters());
    match std::env::var("TAIPAN_ADAPTER").unwrap().as_str() {
        "0" => {
            let Device::Gpu(gpu) = Device::gpu().unwrap() else { panic!("no GPU") };
            assert_eq!(*gpu.info(), all[0].get_info());
            assert_eq!(Device::best(), Ok(Device::Gpu(gpu)));
        }
        name => {
            let message = format!("gpu: TAIPAN_ADAPTER: no adapter is {name:?}; {}", found());
            refuses(Device::gpu(), &message);
            refuses(Device::best(), &message);
            // A name in the program comes first.
            assert!(Device::gpu_named("0").is_ok());
        }
    }
}

#[test]
fn software_is_used_only_when_named() {
    if !in_child() {
        if shared().is_some() {
            child("adapters::software_is_used_only_when_named", |command| {
                command.env_remove("TAIPAN_ADAPTER");
            });
        }
        return;
    }
    let software =
        |adapter: &taipan::wgpu::Adapter| adapter.get_info().device_type == DeviceType::Cpu;
    let all = pollster::block_on(adapters());
    if !all.iter().all(software) {
        let Device::Gpu(gpu) = Device::gpu().unwrap() else { panic!("no GPU") };
        assert_ne!(gpu.info().device_type, DeviceType::Cpu);
        assert_eq!(Device::best(), Ok(Device::Gpu(gpu)));
        return;
    }
    assert_eq!(Device::best(), Ok(Device::Cpu));
    let why = format!("gpu: there is no GPU; {}, and software is used only when named", found());
    refuses(Device::gpu(), &why);
    assert!(Device::gpu_named("0").is_ok());
}

#[cfg(target_os = "linux")]
#[test]
fn a_machine_without_adapters() {
    if !in_child() {
        if shared().is_some() {
            for name in ["", "0"] {
                child("adapters::a_machine_without_adapters", |command| {
                    let none = "/no/such/driver.json";
                    command.env("VK_ICD_FILENAMES", none).env("VK_DRIVER_FILES", none);
                    command.env("TAIPAN_ADAPTER", name).env("TAIPAN_TEST_GPU", "");
                });
            }
        }
        return;
    }
    assert!(pollster::block_on(adapters()).is_empty());
    refuses(Device::gpu_named("llvmpipe"), "gpu: no adapter is \"llvmpipe\"; found none");
    match std::env::var("TAIPAN_ADAPTER").as_deref() {
        Ok("") => {
            assert_eq!(Device::best(), Ok(Device::Cpu));
            let why = "gpu: there is no GPU; found none, and software is used only when named";
            refuses(Device::gpu(), why);
        }
        _ => {
            let why = "gpu: TAIPAN_ADAPTER: no adapter is \"0\"; found none";
            refuses(Device::gpu(), why);
            refuses(Device::best(), why);
        }
    }
}

#[test]
fn limits_are_those_of_a_browser_on_request() {
    const NAME: &str = "adapters::limits_are_those_of_a_browser_on_request";
    if !in_child() {
        let Some(gpu) = shared() else { return };
        for limits in ["default", "", "tiny"] {
            child(NAME, |command| {
                command.env("TAIPAN_LIMITS", limits).env("TAIPAN_ADAPTER", gpu.name());
            });
        }
        return;
    }
    let limits = std::env::var("TAIPAN_LIMITS").unwrap();
    if limits == "tiny" {
        let why = "gpu: TAIPAN_LIMITS is \"tiny\", expected \"default\" or nothing";
        refuses(Device::gpu(), why);
        refuses(Device::best(), why);
        return;
    }
    let device = Device::gpu().unwrap();
    let Device::Gpu(gpu) = &device else { panic!("no GPU") };
    if limits == "default" {
        assert_eq!(*gpu.limits(), Limits::default());
        assert_eq!(gpu.device().features(), Features::empty());
        assert!(!device.supports(DType::F16));
    } else {
        let adapter = crate::adapter(gpu);
        let own = adapter.limits();
        assert_eq!(gpu.limits().max_buffer_size, own.max_buffer_size);
        assert_eq!(
            gpu.limits().max_compute_workgroup_storage_size,
            own.max_compute_workgroup_storage_size
        );
        let f16 = adapter.features().contains(Features::SHADER_F16);
        assert_eq!(device.supports(DType::F16), f16);
    }
}

#[test]
fn the_same_adapter_is_the_same_device() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let (a, b) = (Device::gpu_named(gpu.name())?, Device::gpu_named(gpu.name())?);
    assert_eq!(a, b);
    let x = Tensor::full(&[3], 2.0, DType::F32, &a)?;
    let y = Tensor::full(&[3], 3.0, DType::F32, &b)?;
    assert_eq!(read(&x.add(&y)?), [5.0; 3]);
    let other = Device::Gpu(fresh().expect("not skipped"));
    assert_ne!(a, other, "what was opened is another one");
    assert_eq!(a.name(), "gpu");
    assert!(a.describe().starts_with(&format!("gpu, {}, ", gpu.name())), "{}", a.describe());
    Ok(())
}
