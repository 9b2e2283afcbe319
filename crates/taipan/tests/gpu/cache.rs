//! The cache of pipelines on disk.

use std::fs;
use std::path::{Path, PathBuf};

use taipan::wgpu::Features;
use taipan::{Activation, DType, Device, Tensor, linear};

use crate::{child, in_child, shared};

/// A test that runs a layer in processes of its own, and a directory that goes with the test.
struct Test {
    name: &'static str,
    directory: PathBuf,
}

impl Test {
    /// The test of this name. In its child, which is to run the layer, and without a GPU, there is
    /// nothing more to do.
    fn new(name: &'static str) -> Option<Test> {
        if in_child() {
            layer();
            return None;
        }
        shared()?;
        let unique = format!("taipan-{}-{}", name.replace("::", "-"), std::process::id());
        let directory = std::env::temp_dir().join(unique);
        let _ = fs::remove_dir_all(&directory);
        Some(Test { name, directory })
    }

    /// The files in the directory.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// What the layer computes in a process of its own, with this cache.
    fn run(&self, cache: &Path) -> String {
        let out = child(self.name, |command| {
            command.env("TAIPAN_CACHE", cache);
        });
        let result = out.lines().find_map(|line| line.strip_prefix(RESULT));
        result.unwrap_or_else(|| panic!("no result in {out}")).to_string()
    }
}

impl Drop for Test {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// In the child: a layer, and what it computes, on the line that begins with this.
const RESULT: &str = "the layer gives ";

fn layer() {
    let Some(device) = &shared().map(Device::Gpu) else { return };
    let x = Tensor::arange(-6, 6, DType::F32, device).unwrap().reshape(&[3, 4]).unwrap();
    let y = linear(&x, &x.transpose(0, 1).unwrap(), None, Activation::Gelu).unwrap();
    println!("\n{RESULT}{:?}", y.read_blocking::<f32>().unwrap());
}

/// FNV-1a, as in front of the file's data.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ *byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[test]
fn pipelines_are_saved_to_a_file() {
    let Some(test) = Test::new("cache::pipelines_are_saved_to_a_file") else { return };
    let want = test.run(&test.directory);
    let gpu = shared().expect("not skipped");
    if !gpu.device().features().contains(Features::PIPELINE_CACHE) {
        assert_eq!(test.files(), Vec::<PathBuf>::new(), "the adapter has no cache");
        return;
    }
    let [file] = &test.files()[..] else { panic!("{:?}", test.files()) };
    let kept = fs::read(file).unwrap();
    let written = fs::metadata(file).unwrap().modified().unwrap();
    assert_eq!(kept[..8], checksum(&kept[8..]).to_le_bytes());
    assert_eq!(test.run(&test.directory), want);
    assert_eq!(test.files().len(), 1);
    // A run that began without it would have written the same once more.
    let again = fs::metadata(file).unwrap().modified().unwrap();
    assert!(again == written || fs::read(file).unwrap() != kept, "the second run began anew");
}

/// A file that is damaged, or from another driver, is not used, and written again.
#[test]
fn an_unusable_file_is_replaced() {
    let Some(test) = Test::new("cache::an_unusable_file_is_replaced") else { return };
    let want = test.run(&test.directory);
    for file in test.files() {
        let kept = fs::read(&file).unwrap();
        for (what, useless) in useless(&kept) {
            fs::write(&file, &useless).unwrap();
            assert_eq!(test.run(&test.directory), want, "{what}");
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
    let Some(test) = Test::new("cache::a_cache_that_cannot_be_written_does_no_harm") else {
        return;
    };
    let want = test.run(&test.directory);
    let _ = fs::remove_dir_all(&test.directory);
    fs::write(&test.directory, "a file, not a directory").unwrap();
    assert_eq!(test.run(&test.directory), want);
    assert_eq!(test.run(&test.directory.join("deeper")), want);
    assert_eq!(fs::read_to_string(&test.directory).unwrap(), "a file, not a directory");
    fs::remove_file(&test.directory).unwrap();
}

#[test]
fn kernels_are_written_where_the_environment_asks_for_them() {
    let name = "cache::kernels_are_written_where_the_environment_asks_for_them";
    let Some(test) = Test::new(name) else { return };
    child(name, |command| {
        command.env("TAIPAN_DUMP_WGSL", &test.directory);
    });
    let names = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut files: Vec<_> = test.files().iter().map(names).collect();
    files.sort();
    assert!(files.iter().any(|name| name.starts_with("linear.Left-f32.Right-f32.")), "{files:?}");
    for file in files {
        let text = fs::read_to_string(test.directory.join(&file)).unwrap();
        assert!(file.ends_with(".wgsl") && text.contains("@compute"), "{file}: {text}");
    }
}
