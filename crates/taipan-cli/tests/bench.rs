//! `taipan bench`, as a user calls it.

use std::process::{Command, Output};

use serde_json::Value;

const SMALL: [&str; 10] = [
    "--d-model",
    "64",
    "--n-layer",
    "2",
    "--batch-size",
    "2",
    "--block-size",
    "64",
    "--rounds",
    "2",
];

fn bench(arguments: &[&str]) -> Output {
    run("step", arguments)
}

fn run(what: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
    command.args(["bench", what]).args(arguments).env_remove("TAIPAN_ADAPTER");
    command.output().expect("the program was built")
}

/// The report of a small model.
fn report(what: &str, arguments: &[&str]) -> Value {
    let small = ["--d-model", "64", "--n-layer", "2", "--vocab-size", "300", "--rounds", "2"];
    let output = run(what, &[&small[..], &["--threads", "1", "--json"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Bytes of the weights, by hand, and the rates that follow from them and from the time.
#[test]
fn decoding_is_measured_by_memory() {
    let number = |value: &Value| value.as_f64().unwrap();
    let matrices = 300 * 64 + 2 * (3 * 64 * 128 + 36 * 128 + 128 * 4);
    let vectors = 64 + 2 * (64 + 128 * (4 + 1 + 1 + 16 + 1));
    // k of 4 and of 64 in blocks of 32.
    let int8 = (300 * 64 + 2 * (3 * 64 * 128 + 36 * 128 + 128 * 32)) * 36 / 32;
    for (arguments, dtype, bytes) in [
        (&[][..], "f32", 4 * (matrices + vectors)),
        (&["--quantize", "int8"], "int8", int8 + 4 * vectors),
    ] {
        let report = report("decode", arguments);
        assert_eq!((&report["dtype"], &report["batch"]), (&dtype.into(), &1.into()));
        assert_eq!(report["weight_bytes"], bytes, "{dtype}");
        let rate = bytes as f64 / number(&report["token_ms"]) * 1e-6;
        assert!((number(&report["weight_gbs"]) - rate).abs() < 1e-6 * rate, "{report}");
        let fraction = number(&report["weight_gbs"]) / number(&report["memory_gbs"]);
        assert!((number(&report["fraction"]) - fraction).abs() < 1e-6, "{report}");
        assert_eq!(report["profile"], Value::Null);
    }
}

#[test]
fn prompts_are_measured_by_arithmetic() {
    let number = |value: &Value| value.as_f64().unwrap();
    let report = report("prefill", &["--tokens", "32", "--batch", "3", "--profile"]);
    let layer = 3 * 64 * 128 + 36 * 128 + 128 * 4;
    let operations = 2.0 * (3 * 32 * 2 * layer + 3 * 300 * 64) as f64;
    let seconds = 96.0 * number(&report["token_ms"]) * 1e-3;
    let rate = operations / seconds * 1e-9;
    assert!((number(&report["gflops"]) - rate).abs() < 1e-6 * rate, "{report}");
    for (rate, fraction) in [("gflops", "fraction"), ("product_gflops", "product_fraction")] {
        let expected = number(&report[rate]) / number(&report["peak_gflops"]);
        assert!((number(&report[fraction]) - expected).abs() < 1e-6, "{report}");
    }
    let parts = report["profile"]["parts"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["name"] == "linear" && part["calls"] == 11), "{report}");
}

#[test]
fn a_step_is_measured_and_explained() {
    let output = bench(&[&SMALL[..], &["--threads", "1", "--profile", "--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(report["threads"], 1);
    assert_eq!(report["batch"], serde_json::json!([2, 64]));
    // An embedding of 256 tokens, two layers of 128 channels, a norm.
    let layer = 64 + 256 * 64 + 128 * 5 + 36 * 128 + 128 * 5 + 128 * 17 + 64 * 128;
    assert_eq!(report["parameters"], 256 * 64 + 2 * layer + 64);
    let speed = number(&report["tokens_per_second"]) * number(&report["step_ms"]) / 1e3;
    assert!((speed - 128.0).abs() < 1e-6, "tokens of a step, from its time and speed: {speed}");

    let profile = &report["profile"];
    let parts = profile["parts"].as_array().unwrap();
    let calls =
        |name: &str| parts.iter().find(|part| part["name"] == name).unwrap()["calls"].clone();
    assert_eq!(calls("selective_scan"), 2);
    assert_eq!(calls("selective_scan: backward"), 2);
    // x and z, the parameters of the scan, its step size, and back to the stream.
    assert_eq!(calls("linear"), 10);
    assert_eq!(calls("linear: dw"), 10);
    assert_eq!(calls("adamw"), 3);
    assert_eq!(profile["dispatches"], 0, "they are a GPU's");
    let sum: f64 = parts.iter().map(|part| number(&part["ms"])).sum();
    let explained = number(&profile["explained"]);
    assert!((explained * number(&profile["total_ms"]) - sum).abs() < 1e-6);
    assert!(explained > 0.8 && explained <= 1.0, "{explained}");
}

/// A launch takes its time however small the tensor is. With one for each, a step has about 180.
#[test]
fn a_step_on_a_gpu_takes_few_dispatches() {
    if std::env::var("TAIPAN_TEST_GPU").is_ok_and(|value| value == "skip") {
        eprintln!("skipped: TAIPAN_TEST_GPU=skip");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
    command.args(["bench", "step", "--device", "gpu", "--profile", "--json"]).args(SMALL);
    if std::env::var_os("TAIPAN_ADAPTER").is_none() {
        command.env("TAIPAN_ADAPTER", "llvmpipe");
    }
    let output = command.output().expect("the program was built");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let profile = &report["profile"];
    let parts = profile["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["dispatches"].as_u64().unwrap()).sum();
    assert_eq!(profile["dispatches"], sum);
    assert!((50..120).contains(&sum), "{sum} dispatches: {profile}");
}

/// Adapters are compared with a frozen model, in the same rounds.
#[test]
fn a_step_of_adapters_is_compared_with_one_without() {
    let json = bench(&[&SMALL[..], &["--lora", "2", "--json"]].concat());
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(report["frozen_step_ms"].as_f64().unwrap() > 0.0, "{report}");
    let text = String::from_utf8(bench(&[&SMALL[..], &["--lora", "2"]].concat()).stdout).unwrap();
    let line = text.lines().nth(3).unwrap();
    assert!(line.starts_with("adapters ") && line.contains(" × the step without"), "{text}");
}

#[test]
fn text_and_json_report_the_same() {
    let output = bench(&SMALL);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("cpu, "), "{text}");
    assert_eq!(lines[1], "0.1 M parameters in f32, 2 x 64 tokens");
    assert!(lines[2].starts_with("step ") && lines[2].ends_with(" tokens/s"), "{text}");
    assert!(lines[3].starts_with("products ") && lines[3].contains(" % of the device's"), "{text}");
    assert!(lines[4].starts_with("baseline ") && lines[4].contains(" GF/s"), "{text}");
}

#[test]
fn invalid_values_are_wrong_usage() {
    for (arguments, message) in [
        (&["--d-model", "0"][..], "error: --d-model is 0, expected 1 to 262144"),
        (&["--vocab-size", "0"], "error: --vocab-size is 0, expected 1 to 262144"),
        (&["--block-size", "0"], "error: --batch-size × --block-size is 0, expected 1 to 2^28"),
        (&["--threads", "0"], "error: --threads is 0, expected 1 to 1024"),
        (&["--rounds", "0"], "error: invalid value '0' for '--rounds <N>'"),
    ] {
        let output = bench(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(message), "{arguments:?}: {stderr}");
    }
}

/// Rates follow from times and shapes, and fractions from rates and what the device reached.
#[test]
fn ops_are_compared_with_what_the_device_can_do() {
    let number = |value: &Value| value.as_f64().unwrap();
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b.abs();
    let report = |what, arguments: &[&str]| -> Value {
        let always = ["--rounds", "2", "--threads", "1", "--json"];
        let output = run(what, &[arguments, &always].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let linear = report("linear", &["--rows", "64", "--inputs", "32", "--outputs", "48"]);
    for (pass, products) in [("forward", 1.0), ("backward", 2.0)] {
        let pass = &linear[pass];
        let rate = 2e-6 * products * 64.0 * 32.0 * 48.0 / number(&pass["ms"]);
        assert!(close(number(&pass["gflops"]), rate), "{linear}");
        let fraction = rate / number(&linear["peak_gflops"]);
        assert!(close(number(&pass["peak_fraction"]), fraction), "{linear}");
    }
    let sizes = ["--batch-size", "2", "--length", "40", "--channels", "24", "--d-state", "3"];
    let scan = report("scan", &sizes);
    // u, delta, z; B and C; A, D and the bias of Δ; y.
    let (inputs, y) = (3 * 2 * 40 * 24 + 2 * 2 * 40 * 3 + 24 * 3 + 2 * 24, 2 * 40 * 24);
    for (pass, elements) in [("forward", inputs + y), ("backward", 2 * inputs + y)] {
        let pass = &scan[pass];
        let rate = 1e-6 * (4 * elements) as f64 / number(&pass["ms"]);
        assert!(close(number(&pass["gbs"]), rate), "{scan}");
        let fraction = rate / number(&scan["memory_gbs"]);
        assert!(close(number(&pass["memory_fraction"]), fraction), "{scan}");
    }
    assert_eq!(scan["forward"]["gflops"], Value::Null);
    let refused = run("scan", &["--length", "0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
