//! AMD's compiler, Mesa's RADV, compiles for any of its GPU families without the hardware, and says
//! what it made. No kernel may spill registers to memory: that is slow on every GPU.

use std::ffi::CStr;
use std::path::PathBuf;
use std::process::Command;

use ash::vk;
use rayon::prelude::*;
use wgpu::naga;

use super::sources;
use crate::DType;

/// One of each generation: GCN 3, GCN 5 and RDNA 2.
const FAMILIES: [&str; 3] = ["polaris10", "vega10", "navi21"];

/// Waves of 32 invocations that a SIMD of navi21 has room for: fewer do not hide the latency of
/// memory.
const MIN_WAVES: u64 = 8;
/// The same for the matrix product, which reads most of its operands from workgroup memory.
const MIN_GEMM_WAVES: u64 = 6;

/// Where the driver reads for which GPU it compiles, when it is loaded.
const FAMILY: &str = "RADV_FORCE_FAMILY";

/// Runs itself in a process for each family.
#[test]
fn no_kernel_spills_on_amd() {
    if std::env::var_os(FAMILY).is_some() {
        return compile_every_kernel();
    }
    let Some(driver) = driver() else {
        eprintln!("RADV, Mesa's driver for AMD, is not installed: its check is skipped");
        return;
    };
    for family in FAMILIES {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "shaders::amd::no_kernel_spills_on_amd"])
            .env(FAMILY, family)
            .env("VK_ICD_FILENAMES", &driver)
            .env_remove("VK_DRIVER_FILES")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && said.contains("1 passed"),
            "{family}: {said}{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

/// The file that names RADV to the Vulkan loader.
fn driver() -> Option<PathBuf> {
    let directory = std::fs::read_dir("/usr/share/vulkan/icd.d").ok()?;
    directory.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("radeon_icd") && name.contains(std::env::consts::ARCH)
    })
}

fn compile_every_kernel() {
    let compiler = Compiler::new();
    // RADV has subgroups of 32 and of 64: kernels that need one size are for other adapters.
    let mut types = vec![DType::F32, DType::U32];
    types.extend(compiler.f16.then_some(DType::F16));
    let sources: Vec<String> =
        sources(&types).into_iter().filter(|source| !source.contains("subgroup")).collect();
    let faults: Vec<String> =
        sources.par_iter().filter_map(|source| compiler.fault(source)).collect();
    assert!(faults.is_empty(), "{} of {} kernels\n{}", faults.len(), sources.len(), faults[0]);
}

/// An open device of RADV, which can compile and nothing else.
struct Compiler {
    device: ash::Device,
    statistics: ash::khr::pipeline_executable_properties::Device,
    layout: vk::PipelineLayout,
    f16: bool,
    navi21: bool,
    // Unloads the driver when it is dropped: after the device.
    _instance: ash::Instance,
    _entry: ash::Entry,
}

impl Compiler {
    fn new() -> Compiler {
        // SAFETY: Vulkan's functions, called in the order and with the structures that it asks for.
        // Every structure outlives the call it is passed to, and what is made here is never
        // destroyed.
        unsafe {
            let entry = ash::Entry::load().expect("the Vulkan loader");
            let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&info, None).expect("an instance");
            let adapter = instance.enumerate_physical_devices().expect("RADV's device")[0];
            let mut features12 = vk::PhysicalDeviceVulkan12Features::default();
            let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut features12);
            instance.get_physical_device_features2(adapter, &mut features);
            let f16 = features12.shader_float16 == vk::TRUE;
            let name = instance.get_physical_device_properties(adapter).device_name;
            let navi21 = CStr::from_ptr(name.as_ptr()).to_string_lossy().contains("NAVI21");

            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let extensions = [ash::khr::pipeline_executable_properties::NAME.as_ptr()];
            let mut executables =
                vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
                    .pipeline_executable_info(true);
            let mut features11 =
                vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(f16);
            let mut features12 = vk::PhysicalDeviceVulkan12Features::default()
                .shader_float16(f16)
                .vulkan_memory_model(true);
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&extensions)
                .push_next(&mut executables)
                .push_next(&mut features11)
                .push_next(&mut features12);
            let device = instance.create_device(adapter, &info, None).expect("a device");
            let bindings = |kind, count| -> Vec<_> {
                let binding = |i| {
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(i)
                        .descriptor_type(kind)
                        .descriptor_count(1)
                        .stage_flags(vk::ShaderStageFlags::COMPUTE)
                };
                (0..count).map(binding).collect()
            };
            let buffers = bindings(vk::DescriptorType::STORAGE_BUFFER, 8);
            let params = bindings(vk::DescriptorType::UNIFORM_BUFFER, 1);
            let sets = [&buffers, &params].map(|bindings| {
                let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(bindings);
                device.create_descriptor_set_layout(&info, None).expect("a layout")
            });
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = device.create_pipeline_layout(&info, None).expect("a layout");
            let statistics =
                ash::khr::pipeline_executable_properties::Device::new(&instance, &device);
            let (_instance, _entry) = (instance, entry);
            Compiler { device, statistics, layout, f16, navi21, _instance, _entry }
        }
    }

    /// What is wrong with a kernel, if anything is.
    fn fault(&self, source: &str) -> Option<String> {
        let found = self.compile(&spirv(source));
        let figure = |name: &str| {
            let figure = found.iter().find(|(found, _)| found == name);
            figure.unwrap_or_else(|| panic!("RADV says nothing of {name:?}")).1
        };
        let (spilled, scratch) = (figure("Spilled VGPRs"), figure("Scratch size"));
        let waves = figure("Subgroups per SIMD");
        let least = match source.contains("struct LeftBlocks") {
            _ if !self.navi21 => 0,
            true => MIN_GEMM_WAVES,
            false => MIN_WAVES,
        };
        (spilled > 0 || scratch > 0 || waves < least).then(|| {
            format!(
                "{spilled} registers are spilled, {scratch} bytes of scratch memory used, and \
                 there is room for {waves} waves, expected 0, 0 and {least} or more:\n{source}"
            )
        })
    }

    /// Compile a kernel: RADV's figures about it, by their names.
    fn compile(&self, code: &[u32]) -> Vec<(String, u64)> {
        // SAFETY: as in `new`. The module and the pipeline are destroyed once, after their last
        // use; RADV's figures all are 64-bit integers.
        unsafe {
            let info = vk::ShaderModuleCreateInfo::default().code(code);
            let module = self.device.create_shader_module(&info, None).expect("a module");
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = vk::ComputePipelineCreateInfo::default()
                .flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR)
                .stage(stage)
                .layout(self.layout);
            let cache = vk::PipelineCache::null();
            let made = self.device.create_compute_pipelines(cache, &[info], None);
            let pipeline = made.expect("a pipeline")[0];
            let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            let figures = self.statistics.get_pipeline_executable_statistics(&info);
            let figures = figures.expect("statistics").into_iter().map(|figure| {
                let name = CStr::from_ptr(figure.name.as_ptr()).to_string_lossy().into_owned();
                (name, figure.value.u64)
            });
            let figures = figures.collect();
            self.device.destroy_pipeline(pipeline, None);
            self.device.destroy_shader_module(module, None);
            figures
        }
    }
}

/// As wgpu compiles the crate's own kernels for Vulkan.
fn spirv(source: &str) -> Vec<u32> {
    use naga::back::spv;
    use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    let module = naga::front::wgsl::parse_str(source).unwrap();
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).unwrap();
    let options = spv::Options {
        lang_version: (1, 4),
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Unchecked,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        ..Default::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".into(),
    };
    spv::write_vec(&module, &info, &options, Some(&entry)).unwrap()
}
