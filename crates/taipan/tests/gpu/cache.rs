//! The cache of pipelines on disk.

use std::fs;
use std::path::{Path, PathBuf};

use taipan::wgpu::Features;
use taipan::{Activation, DType, Device, Tensor, linear};

use crate::{child, in_child, shared};

/// A directory that goes with the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let path = std::env::temp_dir().join(format!("taipan-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Temporary(path)
    }

    /// The files in it.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// In the child: a layer, and what it computes, on the line that begins with this.
const RESULT: &str = "the layer gives ";

fn layer() {
    let Some(gpu) = shared() else { return };
    let device = &Device::Gpu(gpu);
    let x = Tensor::arange(-6, 6, DType::F32, device).unwrap().reshape(&[3, 4]).unwrap();
    let y = linear(&x, &x.transpose(0, 1).unwrap(), None, Activation::Gelu).unwrap();
    println!("\n{RESULT}{:?}", y.read_blocking::<f32>().unwrap());
}

/// Run the layer in a process of its own: what it computes.
fn run(test: &str, cache: &Path) -> String {
    let out = child(test, |command| {
        command.env("TAIPAN_CACHE", cache);
    });
    let result = out.lines().find_map(|line| line.strip_prefix(RESULT));
    result.unwrap_or_else(|| panic!("no result in {out}")).to_string()
}

/// FNV-1a, as in front of the file's data.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ *byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[test]
fn pipelines_are_saved_to_a_file() {
    const NAME: &str = "cache::pipelines_are_saved_to_a_file";
    if in_child() {
        return layer();
    }
    let Some(gpu) = shared() else { return };
    let cache = Temporary::new("kept");
    let want = run(NAME, &cache.0);
    if !gpu.device().features().contains(Features::PIPELINE_CACHE) {
        assert_eq!(cache.files(), Vec::<PathBuf>::new(), "the adapter has no cache");
        return;
    }
    let [file] = &cache.files()[..] else { panic!("{:?}", cache.files()) };
    let kept = fs::read(file).unwrap();
    let written = fs::metadata(file).unwrap().modified().unwrap();
    assert_eq!(kept[..8], checksum(&kept[8..]).to_le_bytes());
    assert_eq!(run(NAME, &cache.0), want);
    assert_eq!(cache.files().len(), 1);
    // A run that began without it would have written the same once more.
    let again = fs::metadata(file).unwrap().modified().unwrap();
    assert!(again == written || fs::read(file).unwrap() != kept, "the second run began anew");
}

/// A file that is damaged, or from another driver, is not used, and written again.
#[test]
fn an_unusable_file_is_replaced() {
    const NAME: &str = "cache::an_unusable_file_is_replaced";
    if in_child() {
        return layer();
    }
    let Some(_) = shared() else { return };
    let cache = Temporary::new("replaced");
    let want = run(NAME, &cache.0);
    for file in cache.files() {
        let kept = fs::read(&file).unwrap();
        for (what, useless) in useless(&kept) {
            fs::write(&file, &useless).unwrap();
            assert_eq!(run(NAME, &cache.0), want, "{what}");
            let again = fs::read(&file).unwrap();
            assert_ne!(again, useless, "{what}: the file is not made again");
            assert_eq!(again.len(), kept.len(), "{what}");
            assert_eq!(again[..8], checksum(&again[8..]).to_le_bytes(), "{what}");
        }
    }
}

/// Contents that a run cannot begin from.
fn useless(kept: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let (sum, data) = kept.split_at(8);
    let noise = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as u8;
    let noise: Vec<u8> = (0..kept.len()).map(noise).collect();
    let signed = |data: &[u8]| [&checksum(data).to_le_bytes(), data].concat();
    let flipped = |at: usize| {
        let mut data = data.to_vec();
        data[at] ^= 0x10;
        data
    };
    vec![
        ("empty", vec![]),
        ("a few bytes", vec![1, 2, 3]),
        ("truncated", kept[..kept.len() / 2].to_vec()),
        ("noise", noise.clone()),
        ("one bit", [sum, &flipped(data.len() / 2)].concat()),
        ("signed noise", signed(&noise)),
        ("signed nothing", signed(&[])),
        ("signed half", signed(&data[..data.len() / 2])),
        // wgpu's header names the driver from byte 32 on. An update changes it, not the length.
        ("of another driver", signed(&flipped(40))),
    ]
}

/// If the file cannot be written, there is none, and nothing else changes.
#[test]
fn a_cache_that_cannot_be_written_does_no_harm() {
    const NAME: &str = "cache::a_cache_that_cannot_be_written_does_no_harm";
    if in_child() {
        return layer();
    }
    let Some(_) = shared() else { return };
    let cache = Temporary::new("file");
    let want = run(NAME, &cache.0);
    let _ = fs::remove_dir_all(&cache.0);
    fs::write(&cache.0, "a file, not a directory").unwrap();
    assert_eq!(run(NAME, &cache.0), want);
    assert_eq!(run(NAME, &cache.0.join("deeper")), want);
    assert_eq!(fs::read_to_string(&cache.0).unwrap(), "a file, not a directory");
    fs::remove_file(&cache.0).unwrap();
}

#[test]
fn kernels_are_written_where_the_environment_asks_for_them() {
    const NAME: &str = "cache::kernels_are_written_where_the_environment_asks_for_them";
    if in_child() {
        return layer();
    }
    if shared().is_none() {
        return;
    }
    let directory = Temporary::new("dump");
    child(NAME, |command| {
        command.env("TAIPAN_DUMP_WGSL", &directory.0);
    });
    let names = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut files: Vec<_> = directory.files().iter().map(names).collect();
    files.sort();
    assert!(files.iter().any(|name| name.starts_with("linear.Left-f32.Right-f32.")), "{files:?}");
    for file in files {
        let text = fs::read_to_string(directory.0.join(&file)).unwrap();
        assert!(file.ends_with(".wgsl") && text.contains("@compute"), "{file}: {text}");
    }
}
