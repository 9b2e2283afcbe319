//! Where tensors live.

use crate::DType;

/// A device, chosen at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The host's processor: threads by rayon, vector instructions chosen at run time.
    Cpu,
}

impl Device {
    /// `"cpu"`.
    pub fn name(&self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
        }
    }

    /// Whether tensors of this type can live here.
    pub fn supports(&self, dtype: DType) -> bool {
        match (self, dtype) {
            (Device::Cpu, _) => true,
        }
    }

    /// What the device is, for people: for the CPU, its vector instructions and threads.
    ///
    /// ```
    /// println!("{}", taipan::Device::Cpu.describe()); // cpu, avx2, threads: 8
    /// ```
    pub fn describe(&self) -> String {
        match self {
            Device::Cpu => format!(
                "cpu, {}, threads: {}",
                crate::cpu::isa::Level::current().name(),
                rayon::current_num_threads()
            ),
        }
    }
}
