//! Every WGSL source that the crate can generate passes both compilers: naga, which wgpu uses, and
//! tint, which is Chrome's and stricter.

use std::collections::HashSet;
use std::process::Command;

use crate::DType;
use crate::ops::programs;

/// The sources, without duplicates.
fn texts() -> Vec<String> {
    let mut seen = HashSet::new();
    let mut all = programs(&[DType::F32, DType::F16, DType::U32]);
    all.extend(crate::optim::programs());
    all.iter().map(|program| program.wgsl()).filter(|text| seen.insert(text.clone())).collect()
}

#[test]
fn naga_accepts_every_shader() {
    use wgpu::naga::front::wgsl;
    use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};
    let capabilities = Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
    let texts = texts();
    assert!(texts.len() > 300, "{} texts", texts.len());
    for text in texts {
        let module = wgsl::parse_str(&text)
            .unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
        let mut validator = Validator::new(ValidationFlags::all(), capabilities);
        if let Err(error) = validator.validate(&module) {
            panic!("{}\n{text}", error.emit_to_string(&text));
        }
    }
}

#[test]
fn tint_accepts_every_shader() {
    if Command::new("tint").arg("--help").output().is_err() {
        eprintln!("tint is not on PATH: its check is skipped");
        return;
    }
    let directory = std::env::temp_dir().join(format!("taipan-shaders-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (i, text) in texts().into_iter().enumerate() {
        // Chrome requires this line, naga does not support it; browsers do not use such programs.
        let subgroups = text.contains("subgroupBroadcast") || text.contains("subgroupAdd");
        let text = if subgroups { format!("enable subgroups;\n{text}") } else { text };
        let path = directory.join(format!("{i}.wgsl"));
        std::fs::write(&path, &text).unwrap();
        let out = Command::new("tint")
            .args(["--format", "wgsl", "-o", "/dev/null"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !said.contains("warning"), "{said}\n{}", path.display());
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
