//! Every WGSL source that the crate can generate passes three compilers: naga, which wgpu uses;
//! tint, which is Chrome's and stricter; and AMD's, which shows what becomes of it on a GPU.

mod accepted;
#[cfg(all(target_os = "linux", feature = "gpu"))]
mod amd;

use std::collections::HashSet;
use std::process::Command;

use self::accepted::Accepted;
use crate::DType;
use crate::ops::programs;

/// On GPUs that support all types.
const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::U32];

/// The sources for GPUs that support these types, without duplicates.
fn sources(types: &[DType]) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut all = programs(types);
    all.extend(crate::optim::programs());
    all.extend(crate::terms::programs());
    all.iter()
        .filter(|program| program.types.iter().all(|(_, dtype)| types.contains(dtype)))
        .map(|program| program.wgsl())
        .filter(|source| seen.insert(source.clone()))
        .collect()
}

/// Whether a source calls functions of subgroups.
fn uses_subgroups(source: &str) -> bool {
    source.contains("subgroupBroadcast(") || source.contains("subgroupAdd(")
}

#[cfg(feature = "gpu")]
#[test]
fn naga_accepts_every_shader() {
    use wgpu::naga::front::wgsl;
    use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};
    let capabilities = Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP;
    let all = sources(&TYPES);
    assert!(all.len() > 300, "{} sources", all.len());
    let accepted = Accepted::by("naga", &[include_bytes!("mod.rs")]);
    for source in accepted.others(all.clone()) {
        let module = wgsl::parse_str(&source)
            .unwrap_or_else(|error| panic!("{}\n{source}", error.emit_to_string(&source)));
        let mut validator = Validator::new(ValidationFlags::all(), capabilities);
        if let Err(error) = validator.validate(&module) {
            panic!("{}\n{source}", error.emit_to_string(&source));
        }
    }
    accepted.remember(&all);
}

#[test]
fn tint_accepts_every_shader() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(tint) = std::env::split_paths(&path).map(|at| at.join("tint")).find(|at| at.exists())
    else {
        eprintln!("tint is not on PATH: its check is skipped");
        return;
    };
    let program = std::fs::read(&tint).unwrap();
    let accepted = Accepted::by("tint", &[&program, include_bytes!("mod.rs")]);
    let all = sources(&TYPES);
    let directory = std::env::temp_dir().join(format!("taipan-shaders-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (i, source) in accepted.others(all.clone()).into_iter().enumerate() {
        // Chrome requires this line, naga does not support it; browsers do not use such programs.
        let needs_line = uses_subgroups(&source);
        let source = if needs_line { format!("enable subgroups;\n{source}") } else { source };
        let path = directory.join(format!("{i}.wgsl"));
        std::fs::write(&path, &source).unwrap();
        let out = Command::new(&tint)
            .args(["--format", "wgsl", "-o", "/dev/null"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !said.contains("warning"), "{said}\n{}", path.display());
    }
    std::fs::remove_dir_all(&directory).unwrap();
    accepted.remember(&all);
}
