//! `taipan devices`, as built and run.

use std::process::{Command, Output};

use serde_json::Value;

/// `taipan devices` without what the environment says of devices.
fn devices(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
    command.arg("devices").args(options);
    for name in ["TAIPAN_ADAPTER", "TAIPAN_LIMITS", "VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES"] {
        command.env_remove(name);
    }
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program was built")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("the text is UTF-8")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The names of the devices marked as best.
fn best(document: &Value) -> Vec<&Value> {
    let devices = document["devices"].as_array().unwrap().iter();
    devices.filter(|device| device["best"] == true).map(|device| &device["name"]).collect()
}

#[test]
fn json_begins_with_the_cpu() {
    let output = run(&mut devices(&["--json"]));
    let document = json(&output);
    let cpu = &document["devices"][0];
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(cpu["kind"], "cpu");
    assert_eq!(cpu["index"], Value::Null);
    assert!(cpu["name"].as_str().unwrap().starts_with("cpu, "), "{cpu}");
    assert_eq!(document["error"], Value::Null);
    assert_eq!(best(&document).len(), 1, "{document}");
}

#[test]
fn unknown_options_are_wrong_usage() {
    assert_eq!(run(&mut devices(&["--xml"])).status.code(), Some(2));
}

/// Only here can drivers be chosen.
#[cfg(target_os = "linux")]
mod drivers {
    use std::path::Path;

    use super::*;

    /// Mesa's driver for the CPU as the only one; none if GPUs are not to be tested.
    fn llvmpipe(options: &[&str]) -> Option<Command> {
        let mut command = devices(options);
        command.env("VK_ICD_FILENAMES", llvmpipe_file()?);
        Some(command)
    }

    /// What the Vulkan loader reads to find llvmpipe.
    fn llvmpipe_file() -> Option<String> {
        if std::env::var("TAIPAN_TEST_GPU").is_ok_and(|value| value == "skip") {
            eprintln!("skipped: TAIPAN_TEST_GPU=skip");
            return None;
        }
        let files = [format!("lvp_icd.{}.json", std::env::consts::ARCH), "lvp_icd.json".into()]
            .map(|name| format!("/usr/share/vulkan/icd.d/{name}"));
        let found = files.iter().find(|file| Path::new(file).is_file());
        assert!(
            found.is_some(),
            "found none of {files:?}; install mesa-vulkan-drivers or set TAIPAN_TEST_GPU=skip"
        );
        found.cloned()
    }

    #[test]
    fn without_adapters_the_cpu_is_alone_and_best() {
        let no_driver =
            |options: &[&str]| run(devices(options).env("VK_ICD_FILENAMES", "/dev/null"));
        let (text, document) = (no_driver(&[]), json(&no_driver(&["--json"])));
        assert_eq!(text.status.code(), Some(0), "{text:?}");
        let name = document["devices"][0]["name"].as_str().unwrap();
        assert_eq!(stdout(&text), format!("{name}  [best]\n"));
        assert_eq!(document["devices"].as_array().unwrap().len(), 1);
        assert_eq!(best(&document), [name]);
    }

    #[test]
    fn software_is_listed_but_not_best() {
        let Some(mut command) = llvmpipe(&["--json"]) else { return };
        let document = json(&run(&mut command));
        let [cpu, gpu] = document["devices"].as_array().unwrap().as_slice() else {
            panic!("{document}")
        };
        assert_eq!(gpu["kind"], "gpu");
        assert_eq!(gpu["index"], 0);
        assert!(gpu["name"].as_str().unwrap().starts_with("llvmpipe"), "{gpu}");
        assert_eq!(gpu["backend"], "vulkan");
        assert_eq!(gpu["driver"], "llvmpipe");
        assert!(gpu["driver_info"].as_str().unwrap().starts_with("Mesa"), "{gpu}");
        assert_eq!(gpu["type"], "software");
        for feature in ["f16", "subgroups", "timestamps"] {
            assert!(gpu[feature].is_boolean(), "{feature}: {gpu}");
        }
        for size in ["subgroup_min_size", "subgroup_max_size"] {
            assert_eq!(gpu[size].is_u64(), gpu["subgroups"] == true, "{size}: {gpu}");
        }
        // No adapter may offer less than WebGPU's defaults.
        let least = [
            ("max_buffer_size", 256 << 20),
            ("max_storage_buffer_binding_size", 128 << 20),
            ("max_compute_workgroup_storage_size", 16 << 10),
            ("max_compute_invocations_per_workgroup", 256),
            ("max_storage_buffers_per_shader_stage", 8),
        ];
        for (limit, least) in least {
            assert!(gpu["limits"][limit].as_u64().unwrap() >= least, "{limit}: {gpu}");
        }
        assert_eq!(best(&document), [&cpu["name"]]);
    }

    #[test]
    fn text_fits_a_terminal_and_says_what_software_needs() {
        let Some(mut command) = llvmpipe(&[]) else { return };
        let output = run(&mut command);
        let text = stdout(&output);
        assert!(text.starts_with("cpu, "), "{text}");
        assert!(text.lines().next().unwrap().ends_with("  [best]"), "{text}");
        assert!(text.contains("\n\ngpu 0: llvmpipe"), "{text}");
        let software = "\n  type        software, used only when named: TAIPAN_ADAPTER=0\n";
        assert!(text.contains(software), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_named_adapter_is_best() {
        for name in ["0", "LLVMpipe"] {
            let Some(mut command) = llvmpipe(&["--json"]) else { return };
            let document = json(&run(command.env("TAIPAN_ADAPTER", name)));
            assert_eq!(best(&document), [&document["devices"][1]["name"]], "{name}");
        }
    }

    #[test]
    fn the_number_tells_twins_apart() {
        let Some(file) = llvmpipe_file() else { return };
        let twin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("llvmpipe_twin.json");
        std::fs::copy(&file, &twin).unwrap();
        let both = format!("{file}:{}", twin.display());
        for number in [0, 1] {
            let mut command = devices(&["--json"]);
            command.env("VK_ICD_FILENAMES", &both).env("TAIPAN_ADAPTER", number.to_string());
            let document = json(&run(&mut command));
            let gpus = &document["devices"].as_array().unwrap()[1..];
            let marks: Vec<_> = gpus.iter().map(|gpu| gpu["best"] == true).collect();
            assert_eq!(marks, [number == 0, number == 1], "{document}");
        }
    }

    #[test]
    fn a_wrong_name_lists_devices_and_fails() {
        for name in ["no such thing", "1"] {
            let Some(mut command) = llvmpipe(&["--json"]) else { return };
            let output = run(command.env("TAIPAN_ADAPTER", name));
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let document = json(&output);
            assert_eq!(document["devices"].as_array().unwrap().len(), 2, "{document}");
            assert_eq!(best(&document), [""; 0], "{document}");
            let error = document["error"].as_str().unwrap();
            let start = format!("gpu: TAIPAN_ADAPTER: no adapter is {name:?}; found 0: llvmpipe");
            assert!(error.starts_with(&start), "{error}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(&format!("error: {error}\n")), "{stderr}");
        }
    }

    /// `taipan` with llvmpipe as the only adapter; none if GPUs are not to be tested.
    fn program(arguments: &str) -> Option<Command> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
        command.args(arguments.split(' ')).env("VK_ICD_FILENAMES", llvmpipe_file()?);
        for name in ["TAIPAN_ADAPTER", "TAIPAN_LIMITS", "VK_DRIVER_FILES"] {
            command.env_remove(name);
        }
        Some(command)
    }

    #[test]
    fn without_a_flag_the_device_is_hardware_or_named() {
        let bench = "bench linear --rows 8 --inputs 8 --outputs 8 --rounds 1 --json";
        let Some(mut command) = program(bench) else { return };
        let output = run(&mut command);
        assert!(json(&output)["device"].as_str().unwrap().starts_with("cpu, "), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing was chosen");
        let output = run(command.env("TAIPAN_ADAPTER", "llvmpipe"));
        assert!(json(&output)["device"].as_str().unwrap().starts_with("gpu, llvmpipe"));
        let note = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(note.starts_with("note: running on gpu, llvmpipe"), "{note}");
        let way = "; --device cpu, or a name of taipan devices, chooses another\n";
        assert!(note.ends_with(way), "{note}");
    }

    #[test]
    fn a_dtype_that_a_gpu_lacks_names_others() {
        let bench = "bench linear --device llvmpipe --dtype bf16";
        let Some(mut command) = program(bench) else { return };
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.starts_with("error: gpu, llvmpipe"), "{error}");
        let others = [
            " does not support bf16; use --dtype f32, or --device cpu\n",
            " does not support bf16; use --dtype f32 or --dtype f16, or --device cpu\n",
        ];
        assert!(others.iter().any(|others| error.ends_with(others)), "{error}");
    }
}
