//! Every WGSL source that the crate can generate passes both compilers: naga, which wgpu uses, and
//! tint, which is Chrome's and stricter.

use std::collections::HashSet;
use std::process::Command;

use crate::DType;
use crate::ops::programs;

/// The sources, without duplicates.
fn sources() -> Vec<String> {
    let mut seen = HashSet::new();
    let mut all = programs(&[DType::F32, DType::F16, DType::U32]);
    all.extend(crate::optim::programs());
    all.iter().map(|program| program.wgsl()).filter(|source| seen.insert(source.clone())).collect()
}

#[test]
fn naga_accepts_every_shader() {
    use wgpu::naga::front::wgsl;
    use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};
    let capabilities = Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
    let sources = sources();
    assert!(sources.len() > 300, "{} sources", sources.len());
    for source in sources {
        let module = wgsl::parse_str(&source)
            .unwrap_or_else(|error| panic!("{}\n{source}", error.emit_to_string(&source)));
        let mut validator = Validator::new(ValidationFlags::all(), capabilities);
        if let Err(error) = validator.validate(&module) {
            panic!("{}\n{source}", error.emit_to_string(&source));
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
    for (i, source) in sources().into_iter().enumerate() {
        // Chrome requires this line, naga does not support it; browsers do not use such programs.
        let subgroups = source.contains("subgroupBroadcast") || source.contains("subgroupAdd");
        let source = if subgroups { format!("enable subgroups;\n{source}") } else { source };
        let path = directory.join(format!("{i}.wgsl"));
        std::fs::write(&path, &source).unwrap();
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
