//! Errors of a device, stored until the next call that can return them.

use std::sync::{Arc, Mutex};

use super::lock;
use crate::error::{Error, Result};

/// Errors arrive by callbacks, from other threads and possibly late.
#[derive(Default)]
pub(super) struct Faults {
    /// The first since the last check.
    first: Mutex<Option<Fault>>,
    /// Why the device was lost. It does not come back.
    lost: Mutex<Option<String>>,
}

enum Fault {
    Memory,
    Other(String),
}

impl Faults {
    /// Install the callbacks of `device`.
    pub(super) fn of(device: &wgpu::Device) -> Arc<Faults> {
        let faults = Arc::new(Faults::default());
        let heard = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&heard.first).get_or_insert(match error {
                wgpu::Error::OutOfMemory { .. } => Fault::Memory,
                wgpu::Error::Validation { description, .. }
                | wgpu::Error::Internal { description, .. } => Fault::Other(description),
            });
        }));
        let heard = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            let why = match (reason, message.as_str()) {
                (wgpu::DeviceLostReason::Destroyed, _) => "it was destroyed".to_string(),
                (_, "") => "its driver gave no reason".to_string(),
                _ => message,
            };
            lock(&heard.lost).get_or_insert(why);
        });
        faults
    }

    /// A batch could not be submitted: its results are undefined, so the device counts as lost.
    pub(super) fn fail(&self, why: String) {
        lock(&self.lost).get_or_insert(format!("a batch was refused: {why}"));
    }

    #[cfg(not(target_family = "wasm"))]
    pub(super) fn is_lost(&self) -> bool {
        lock(&self.lost).is_some()
    }

    /// Return the stored error, once; if the device is lost, always.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        if let Some(why) = &*lock(&self.lost) {
            return Err(Error::Device { op, why: format!("the GPU was lost: {why}") });
        }
        match lock(&self.first).take() {
            None => Ok(()),
            Some(Fault::Memory) => {
                Err(Error::Device { op, why: "the GPU's memory is full".into() })
            }
            Some(Fault::Other(why)) => Err(Error::Device { op, why }),
        }
    }
}

/// Create something on the device, or return why it failed. A browser reports errors later: there,
/// the result may be invalid, and the next call that can fail returns the error.
pub(super) fn scoped<R>(
    device: &wgpu::Device,
    filter: wgpu::ErrorFilter,
    make: impl FnOnce(&wgpu::Device) -> R,
) -> std::result::Result<R, String> {
    #[cfg(not(target_family = "wasm"))]
    {
        let scope = device.push_error_scope(filter);
        let made = make(device);
        match pollster::block_on(scope.pop()) {
            None => Ok(made),
            Some(error) => Err(error.to_string()),
        }
    }
    #[cfg(target_family = "wasm")]
    {
        let _ = filter;
        Ok(make(device))
    }
}
