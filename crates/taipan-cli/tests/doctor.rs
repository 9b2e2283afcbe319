//! `taipan doctor`, as a user calls it. What it finds of a broken kernel is tested in
//! `src/doctor/tests.rs`.

use std::process::{Command, Output};

use serde_json::Value;

/// `taipan doctor` with what the environment says of devices, or else with llvmpipe.
fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
    command.arg("doctor").args(arguments).env_remove("TAIPAN_LIMITS");
    if std::env::var_os("TAIPAN_ADAPTER").is_none() {
        command.env("TAIPAN_ADAPTER", "llvmpipe");
    }
    command.output().expect("the program was built")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the text is UTF-8")
}

/// The report, of a device that is right.
fn report(arguments: &[&str]) -> Value {
    let output = doctor(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["passed"], true, "{report}");
    report
}

fn names(rows: &Value, key: &str) -> Vec<String> {
    let rows = rows.as_array().unwrap().iter();
    let mut names: Vec<_> = rows.map(|row| row[key].as_str().unwrap().to_owned()).collect();
    names.dedup();
    names
}

/// Every part of it, on the CPU.
#[test]
fn a_cpu_is_healthy() {
    let report = report(&["--device", "cpu", "--quick"]);
    let ops = names(&report["ops"], "op");
    assert!(ops.len() > 60, "{ops:?}");
    for op in ["linear", "selective_scan", "ssd", "attention", "causal_conv1d", "cross_entropy"] {
        assert!(ops.iter().any(|found| found == op), "no {op} in {ops:?}");
    }
    let linear: Vec<_> = report["ops"].as_array().unwrap()[..4].iter().collect();
    let dtypes: Vec<_> = linear.iter().map(|row| row["dtype"].as_str().unwrap()).collect();
    assert_eq!(dtypes, ["f16", "bf16", "f32", "f64"]);
    for row in &linear[..3] {
        let within = |key: &str, range: std::ops::Range<f64>| {
            let found = row[key].as_f64().unwrap();
            assert!(range.contains(&found), "{key} of {row}");
        };
        // Rounded once, and not exact.
        within("value_ulp", 0.01..16.0);
        within("gradient_ulp", 0.01..128.0);
        within("relative", 1e-17..0.03);
    }
    let checks = ["determinism", "memory", "bad index", "out of memory", "training"];
    assert_eq!(names(&report["checks"], "name"), checks);
    assert_eq!(report["gpu"], Value::Null);
    assert!(report["speed"]["memory_gbs"].as_f64().unwrap() > 0.1, "{report}");
    assert_eq!(names(&report["speed"]["ops"], "op"), ["linear", "selective_scan"]);
}

/// Some of the ops; `src/doctor/tests.rs` has the rest of what is checked on a GPU.
#[test]
fn a_gpu_is_healthy() {
    if std::env::var("TAIPAN_TEST_GPU").is_ok_and(|value| value == "skip") {
        eprintln!("skipped: TAIPAN_TEST_GPU=skip");
        return;
    }
    let report = report(&["--device", "gpu", "--quick", "--ops", "linear,rms_norm"]);
    assert_eq!(names(&report["ops"], "op"), ["linear", "rms_norm"]);
    assert_eq!(names(&report["checks"], "name"), ["determinism", "memory"]);
    let f32 = report["ops"].as_array().unwrap().iter().find(|row| row["dtype"] == "f32");
    assert_eq!(f32.unwrap()["runs"], 2, "with both limits: {report}");
    assert!(report["gpu"]["driver"].is_string() && report["gpu"]["limits"].is_object());
    assert!(report["pipelines"]["count"].as_u64().unwrap() > 5, "{report}");
    assert!(report["pipelines"]["seconds"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_terminal_of_80_columns_has_room() {
    let output = doctor(&["--device", "cpu", "--ops", "softmax,binary_cross_entropy_with_logits"]);
    let text = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(output.stderr.is_empty(), "no progress where nobody looks");
    assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let row = text.lines().find(|line| line.starts_with("softmax")).expect("a row");
    assert!(row.ends_with(" ok"), "{row}");
    assert!(text.contains("\nall 10 checks passed in "), "{text}");
}

/// The device, and nothing of the person.
#[test]
fn a_page_to_share() {
    let output = doctor(&["--device", "cpu", "--quick", "--ops", "softmax", "--markdown"]);
    let page = text(&output.stdout);
    assert!(page.starts_with("# taipan doctor: all 6 checks passed\n"), "{page}");
    assert!(page.contains("\n| softmax | f32 | "), "{page}");
    for variable in ["HOME", "USER", "HOSTNAME"] {
        if let Some(value) = std::env::var(variable).ok().filter(|value| value.len() > 4) {
            assert!(!page.contains(&value), "{variable} is in {page}");
        }
    }
}

#[test]
fn unknown_ops_are_wrong_usage() {
    let output = doctor(&["--device", "cpu", "--ops", "linear,lienar"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.starts_with("error: --ops: \"lienar\", expected some of linear, "), "{error}");
    assert_eq!(doctor(&["--json", "--markdown"]).status.code(), Some(2));
}
