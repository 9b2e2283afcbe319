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
    assert!(stderr.contains("taipan: output: No space left on device"), "{stderr}");
}
