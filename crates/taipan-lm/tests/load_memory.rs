//! What loading a model takes of the host's memory, in a process of its own for each way: its peak
//! is the system's count of all pages, those of the mapped file included.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use taipan::check::devices;
use taipan::{DType, Device};
use taipan_lm::{Config, ModelFiles, Preset};

/// What tells a process that it is the one to load: the directory, the dtype and the device.
const CHILD: &str = "TAIPAN_TEST_LOAD";

/// Bytes of a line of `/proc/self/status`.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Write a model of zeros that takes no space on the disk.
fn write_zeros(config: &Config, directory: &Path) {
    fs::write(directory.join("config.json"), config.to_json(DType::F32, None)).unwrap();
    let (mut header, mut begin) = (serde_json::Map::new(), 0);
    for tensor in config.tensors() {
        let end = begin + 4 * tensor.shape.iter().product::<usize>();
        let entry = serde_json::json!({
            "dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]
        });
        header.insert(tensor.name, entry);
        begin = end;
    }
    let header = serde_json::Value::from(header).to_string();
    let header = format!("{header:0$}", header.len().next_multiple_of(8));
    let mut file = fs::File::create(directory.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + begin) as u64).unwrap();
}

/// In a process of its own: load the model, and compare the peak with what is allowed.
fn load(directory: &Path, dtype: DType, device: &Device) {
    let files = ModelFiles::open(directory).unwrap();
    let size = |(tensor, dtype): &(taipan_lm::TensorSpec, DType)| {
        (tensor.shape.iter().product::<usize>() * dtype.size()) as u64
    };
    let largest = files.tensors().iter().map(size).max().unwrap();
    let before = status("VmRSS");
    let model = files.load(dtype, device).unwrap();
    let taken = status("VmHWM").saturating_sub(before);
    let bytes =
        |parameter: &taipan_lm::Parameter| (parameter.len() * parameter.dtype().size()) as u64;
    let weights: u64 = model.parameters().iter().map(bytes).sum();
    let most = weights + largest + (200 << 20);
    println!("{dtype} on {}: {} MB, weights {} MB", device.name(), taken >> 20, weights >> 20);
    assert!(taken <= most, "{taken} bytes taken, expected at most {most}");
    // Otherwise nothing was measured.
    assert!(taken >= weights / 2, "{taken} bytes taken, of weights of {weights}");
}

#[test]
fn a_model_is_loaded_tensor_by_tensor() {
    let config = Preset::M130.config(50280);
    let dtypes = [DType::F32, DType::BF16, DType::F16];
    if let Ok(child) = std::env::var(CHILD) {
        let mut words = child.splitn(3, ' ');
        let mut next = || words.next().unwrap();
        let (dtype, device) = (next(), next());
        let dtype = dtypes.into_iter().find(|known| known.to_string() == dtype).unwrap();
        let device = devices().into_iter().find(|known| known.name() == device).unwrap();
        return load(Path::new(next()), dtype, &device);
    }
    let directory = tempfile::tempdir().unwrap();
    write_zeros(&config, directory.path());
    for device in devices() {
        for dtype in dtypes.into_iter().filter(|dtype| device.supports(*dtype)) {
            let child = format!("{dtype} {} {}", device.name(), directory.path().display());
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["a_model_is_loaded_tensor_by_tensor", "--exact", "--nocapture"])
                .env(CHILD, &child)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            println!("{text}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{child}: {text}{errors}");
        }
    }
}
