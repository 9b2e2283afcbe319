//! What happens where nobody reads the output.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Run with a standard output that nobody reads.
fn unread(command: &mut Command) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped()).output().expect("the program was built")
}

fn taipan(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taipan"));
    command.args(arguments).env_remove("TAIPAN_ADAPTER").env_remove("TAIPAN_LIMITS");
    command
}

#[test]
fn a_reader_that_left_is_no_failure() {
    let config = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unread_config.json");
    std::fs::write(&config, r#"{"model_type": "mamba"}"#).unwrap();
    let info = ["info", config.to_str().unwrap()];
    for arguments in [&["devices"][..], &["devices", "--json"], &info, &["--help"]] {
        let output = unread(&mut taipan(arguments));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_failure_stays_one_when_nobody_reads() {
    let output = unread(taipan(&["devices"]).env("TAIPAN_ADAPTER", "no such thing"));
    assert_eq!(output.status.code(), Some(1));
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    drop(reader);
    let status = taipan(&["info", "no such file"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = taipan(&["devices"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("error: output: No space left on device"), "{stderr}");
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    let stdout = |arguments: &[&str]| {
        let output = taipan(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let commands =
        ["train", "generate", "eval", "look", "web", "convert", "info", "bench", "doctor"];
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&["completions", shell]);
        for command in commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("early-stop"), "{shell}: flags of train");
    }
    assert!(stdout(&["man"]).contains(".TH taipan 1"));
    let pages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manual_pages");
    std::fs::create_dir_all(&pages).unwrap();
    stdout(&["man", pages.to_str().unwrap()]);
    for command in commands {
        let page = std::fs::read_to_string(pages.join(format!("taipan-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH taipan-{command} 1")), "{page}");
    }
}

/// Vulkan's drivers say things of their own on standard error.
#[test]
fn drivers_are_silent() {
    let output = taipan(&["devices"]).env_remove("XDG_RUNTIME_DIR").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_config_tells_its_dtype() {
    let config = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dtype_config.json");
    for (dtype, shown) in [
        (r#""dtype": "bfloat16""#, "246.3 MiB in bf16"),
        (r#""torch_dtype": "float32""#, "492.6 MiB in f32"),
        (r#""use_cache": true"#, "492.6 MiB in f32"),
    ] {
        let json = r#"{"model_type": "mamba", "num_hidden_layers": 24, "#;
        std::fs::write(&config, format!("{json}{dtype}}}")).unwrap();
        let output = taipan(&["info", config.to_str().unwrap()]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(&format!("Mamba, 129.1 M parameters, {shown}\n")), "{text}");
    }
}
