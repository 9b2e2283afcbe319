//! RADV, opened to compile and nothing else.

use std::ffi::CStr;

use ash::vk;
use wgpu::naga;

/// No kernel binds more.
const MAX_BUFFERS: u32 = 64;

/// An open device of RADV, which can compile and nothing else.
pub(super) struct Compiler {
    device: ash::Device,
    statistics: ash::khr::pipeline_executable_properties::Device,
    layout: vk::PipelineLayout,
    pub(super) f16: bool,
    /// What the driver says of itself.
    pub(super) version: String,
    // Unloads the driver when it is dropped: after the device.
    _instance: ash::Instance,
    _entry: ash::Entry,
}

impl Compiler {
    pub(super) fn new() -> Compiler {
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
            let mut driver = vk::PhysicalDeviceDriverProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
            instance.get_physical_device_properties2(adapter, &mut properties);
            let version = driver.driver_info_as_c_str().expect("a name").to_string_lossy();

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
            let buffers = bindings(vk::DescriptorType::STORAGE_BUFFER, MAX_BUFFERS);
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
            Compiler {
                device,
                statistics,
                layout,
                f16,
                version: version.into_owned(),
                _instance,
                _entry,
            }
        }
    }

    /// RADV's figures about a kernel.
    pub(super) fn figures(&self, source: &str) -> Figures {
        self.compile(source, vk::PipelineCreateFlags::empty(), |_| ()).0
    }

    /// The same, and the machine code as text. These kernels are not in the driver's cache.
    pub(super) fn figures_and_assembly(&self, source: &str) -> (Figures, String) {
        let flag = vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
        // SAFETY: `compile` destroys the pipeline after this call.
        self.compile(source, flag, |info| unsafe { self.assembly(info) })
    }

    fn compile<T>(
        &self,
        source: &str,
        flags: vk::PipelineCreateFlags,
        inspect: impl Fn(&vk::PipelineExecutableInfoKHR) -> T,
    ) -> (Figures, T) {
        let code = spirv(source);
        // SAFETY: as in `new`. The module and the pipeline are destroyed once, after their last
        // use; RADV's figures all are 64-bit integers.
        unsafe {
            let info = vk::ShaderModuleCreateInfo::default().code(&code);
            let module = self.device.create_shader_module(&info, None).expect("a module");
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = vk::ComputePipelineCreateInfo::default()
                .flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR | flags)
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
            let inspected = inspect(&info);
            self.device.destroy_pipeline(pipeline, None);
            self.device.destroy_shader_module(module, None);
            (Figures(figures), inspected)
        }
    }

    /// The machine code of a pipeline as text.
    ///
    /// # Safety
    ///
    /// `info` names a pipeline of this device that exists.
    unsafe fn assembly(&self, info: &vk::PipelineExecutableInfoKHR) -> String {
        // SAFETY: `info` by the caller's promise. The first call says how long each text is, and
        // the second writes as much, to memory that outlives it.
        unsafe {
            let found = self.statistics.get_pipeline_executable_internal_representations(info);
            let mut found = found.expect("internal representations");
            let mut texts: Vec<Vec<u8>> = found.iter().map(|rep| vec![0; rep.data_size]).collect();
            for (rep, text) in found.iter_mut().zip(&mut texts) {
                rep.p_data = text.as_mut_ptr().cast();
            }
            let mut count = found.len() as u32;
            let fill = self.statistics.fp().get_pipeline_executable_internal_representations_khr;
            let status = fill(self.device.handle(), info, &mut count, found.as_mut_ptr());
            assert_eq!(status, vk::Result::SUCCESS);
            let is_assembly = |rep: &vk::PipelineExecutableInternalRepresentationKHR| {
                CStr::from_ptr(rep.name.as_ptr()) == c"Assembly"
            };
            let at = found.iter().position(is_assembly).expect("the machine code");
            CStr::from_bytes_until_nul(&texts[at]).expect("a text").to_string_lossy().into_owned()
        }
    }
}

/// What RADV says of a kernel.
pub(super) struct Figures(Vec<(String, u64)>);

impl Figures {
    pub(super) fn get(&self, name: &str) -> u64 {
        let figure = self.0.iter().find(|(found, _)| found == name);
        figure.unwrap_or_else(|| panic!("RADV says nothing of {name:?}")).1
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
