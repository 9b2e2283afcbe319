//! The cache of compiled pipelines on disk, for backends that support it: Vulkan.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often pipelines are saved while a program compiles many of them.
const EVERY: Duration = Duration::from_secs(2);

/// A pipeline cache and its file.
pub(super) struct Disk {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    /// The checksum of the file.
    stored: Option<u64>,
    /// Whether there are pipelines that are not saved yet, and the time of the last save.
    unsaved: bool,
    saved: Option<Instant>,
}

impl Disk {
    /// None if the device has no pipeline cache or there is no directory for it.
    pub(super) fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<Disk> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = directory()?.join(wgpu::util::pipeline_cache_key(info)?);
        let data = load(&path);
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("taipan"),
            data: data.as_deref(),
            fallback: true,
        };
        // SAFETY: the data is what `write` stored, which was what the cache gave: the file is in
        // the user's own directory, and `load` compares checksums. wgpu itself refuses what another
        // adapter or driver made.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        let stored = data.as_deref().map(checksum);
        Some(Disk { cache, path, stored, unsaved: false, saved: None })
    }

    /// The cache, to compile another pipeline with.
    pub(super) fn cache(&mut self) -> &wgpu::PipelineCache {
        self.unsaved = true;
        &self.cache
    }

    /// Write new pipelines, unless the file was written recently.
    pub(super) fn save(&mut self) {
        if self.unsaved && self.saved.is_none_or(|at| at.elapsed() > EVERY) {
            self.write();
        }
    }

    /// Errors are ignored: if the file cannot be written, the next run compiles again.
    fn write(&mut self) {
        (self.unsaved, self.saved) = (false, Some(Instant::now()));
        let Some(data) = self.cache.get_data() else { return };
        let sum = Some(checksum(&data));
        if sum != self.stored {
            self.stored = sum;
            let _ = store(&self.path, &data);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.unsaved {
            self.write();
        }
    }
}

/// `TAIPAN_CACHE`, or the platform's cache directory.
fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = |name| variable(name).map(PathBuf::from);
    if let Some(path) = path("TAIPAN_CACHE") {
        return Some(path);
    }
    let base = if cfg!(target_os = "windows") {
        path("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        path("HOME").map(|home| home.join("Library/Caches"))
    } else {
        path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    Some(base?.join("taipan").join("pipelines"))
}

/// The data of a file whose checksum matches.
fn load(path: &Path) -> Option<Vec<u8>> {
    let file = fs::read(path).ok()?;
    let (sum, data) = file.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == checksum(data)).then(|| data.to_vec())
}

/// Write a temporary file and rename it: readers see the old file or the new one.
fn store(path: &Path, data: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}.{count}", std::process::id()));
    fs::write(&beside, [&checksum(data).to_le_bytes(), data].concat())?;
    fs::rename(&beside, path)
}

/// FNV-1a.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ *byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
