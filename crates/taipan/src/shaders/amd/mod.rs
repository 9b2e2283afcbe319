//! AMD's compiler, Mesa's RADV, compiles for any of its GPU families without the hardware, and shows
//! what it made. No kernel may spill registers to memory, which is slow on every GPU, and the inner
//! loops of the hot kernels may not take more instructions than stated here.

mod compiler;
mod loops;

use std::path::PathBuf;
use std::process::Command;

use rayon::prelude::*;

use self::compiler::Compiler;
use self::loops::{Counts, innermost};
use super::accepted::Accepted;
use super::{sources, uses_subgroups};
use crate::DType;

/// One of each generation: GCN 3, GCN 5 and RDNA 2.
const FAMILIES: [&str; 3] = [POLARIS10, "vega10", NAVI21];
/// The one without f16.
const POLARIS10: &str = "polaris10";
const NAVI21: &str = "navi21";

/// Waves of 32 invocations that a SIMD of navi21 has room for: fewer do not hide the latency of
/// memory.
const MIN_WAVES: u64 = 8;
/// The same for the matrix product, which reads most of its operands from workgroup memory.
const MIN_GEMM_WAVES: u64 = 6;

/// Where the driver reads for which GPU it compiles, when it is loaded.
const FAMILY: &str = "RADV_FORCE_FAMILY";

/// Run the test of this name again, in a process for each family. None if this is such a process,
/// which has to do the work.
fn in_process_for(families: &[&str], test: &str) -> Option<()> {
    if std::env::var_os(FAMILY).is_some() {
        return None;
    }
    let Some(driver) = driver() else {
        eprintln!("RADV, Mesa's driver for AMD, is not installed: its check is skipped");
        return Some(());
    };
    for family in families {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", &format!("shaders::amd::{test}")])
            .env(FAMILY, family)
            .env("VK_ICD_FILENAMES", &driver)
            .env_remove("VK_DRIVER_FILES")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.contains("1 passed"), "{family}: {said}{errors}");
        said.lines().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}"));
    }
    Some(())
}

/// The file that names RADV to the Vulkan loader.
fn driver() -> Option<PathBuf> {
    let directory = std::fs::read_dir("/usr/share/vulkan/icd.d").ok()?;
    directory.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("radeon_icd") && name.contains(std::env::consts::ARCH)
    })
}

/// Every kernel that an AMD GPU can be given.
fn kernels(compiler: &Compiler) -> Vec<String> {
    // RADV has subgroups of 32 and of 64: kernels that need one size are for other adapters.
    let mut types = vec![DType::F32, DType::U32];
    types.extend(compiler.f16.then_some(DType::F16));
    sources(&types).into_iter().filter(|source| !uses_subgroups(source)).collect()
}

#[test]
fn no_kernel_spills() {
    if in_process_for(&FAMILIES, "no_kernel_spills").is_some() {
        return;
    }
    let compiler = Compiler::new();
    let kernels = kernels(&compiler);
    let family = std::env::var(FAMILY).unwrap();
    let in_f16 = kernels.iter().filter(|source| source.contains("enable f16;")).count();
    assert_eq!(in_f16 > 0, family != POLARIS10, "{in_f16} of {} are in f16", kernels.len());
    println!("| {family} | {} kernels, {in_f16} of them in f16 |", kernels.len());
    let on_navi21 = family == NAVI21;
    let fault = |source: &String| {
        let figures = compiler.figures(source);
        let (spilled, scratch) = (figures.get("Spilled VGPRs"), figures.get("Scratch size"));
        let waves = figures.get("Subgroups per SIMD");
        let least = match source.contains("struct LeftBlocks") {
            _ if !on_navi21 => 0,
            true => MIN_GEMM_WAVES,
            false => MIN_WAVES,
        };
        (spilled > 0 || scratch > 0 || waves < least).then(|| {
            format!(
                "{spilled} registers are spilled, {scratch} bytes of scratch memory used, and \
                 there is room for {waves} waves, expected 0, 0 and {least} or more:\n{source}"
            )
        })
    };
    let checks: [&[u8]; 2] = [include_bytes!("mod.rs"), include_bytes!("compiler.rs")];
    let version = [&[compiler.version.as_bytes()], &checks[..]].concat();
    let accepted = Accepted::by(&family, &version);
    let others = accepted.others(kernels.clone());
    let faults: Vec<String> = others.par_iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{} of {} kernels\n{}", faults.len(), kernels.len(), faults[0]);
    accepted.remember(&kernels);
}

/// A kernel whose innermost loop takes most of the time of a step of training.
struct Hot {
    name: &'static str,
    /// What the sources of its kind contain, and of these only its own.
    marks: [&'static [&'static str]; 2],
    /// How many state-steps of the scan, or multiply-adds of the product, a pass of the loop
    /// computes.
    units: usize,
    /// Vector instructions for each of them.
    most: f64,
}

/// In f32; the scans with an accurate `exp2` and packed sequences.
const HOT: [Hot; 6] = [
    scan("scan, forward, Euler", &[FORWARD, STEPS, EULER], 8.0),
    scan("scan, backward, Euler", &[BACKWARD, EULER], 18.0),
    scan("scan, forward, zero-order hold", &[FORWARD, STEPS, ZERO_ORDER_HOLD], 12.0),
    scan("scan, backward, zero-order hold", &[BACKWARD, ZERO_ORDER_HOLD], 30.0),
    product("product, 64×128", &["TX: u32 = 16u"], 256),
    product("product, 32×32", &["RM: u32 = 1u"], 64),
];
const FORWARD: &str = "OUTPUT: u32 = 1u;\nconst PARAMETER";
const STEPS: &str = "STEPS: u32 = 16u";
const BACKWARD: &str = "fn add_carry(";
const EULER: &str = "ZERO_ORDER_HOLD: u32 = 0u";
const ZERO_ORDER_HOLD: &str = "ZERO_ORDER_HOLD: u32 = 1u";

const fn scan(name: &'static str, own: &'static [&'static str], most: f64) -> Hot {
    let scans = &["NATIVE_EXP2: u32 = 1u", "SEQ_STARTS: u32 = 1u", "alias Elem = f32;"];
    Hot { name, marks: [scans, own], units: 16, most }
}

const fn product(name: &'static str, own: &'static [&'static str], units: usize) -> Hot {
    let products = &["struct LeftBlocks", "TA: u32 = 0u", "TB: u32 = 1u"];
    Hot { name, marks: [products, own], units, most: 1.0 / 0.9 }
}

/// Prints a row of a table for each.
#[test]
fn hot_loops_take_few_instructions() {
    if in_process_for(&[NAVI21], "hot_loops_take_few_instructions").is_some() {
        return;
    }
    let compiler = Compiler::new();
    let kernels = kernels(&compiler);
    println!("| kernel | registers | waves | vector instructions | fma | exp, log, 1/x |");
    println!("|---|---|---|---|---|---|");
    for Hot { name, marks, units, most } in HOT {
        let is_meant = |source: &&String| marks.concat().iter().all(|mark| source.contains(mark));
        let source = kernels.iter().find(is_meant).unwrap_or_else(|| panic!("no {name}"));
        let (figures, assembly) = compiler.figures_and_assembly(source);
        let loops = innermost(&assembly);
        let Counts { vector, fma, special, .. } =
            *loops.iter().max_by_key(|counts| counts.fma).expect("a loop");
        let (registers, waves) = (figures.get("VGPRs"), figures.get("Subgroups per SIMD"));
        let [per_unit, fma, special] = [vector, fma, special].map(|n| n as f64 / units as f64);
        println!("| {name} | {registers} | {waves} | {per_unit:.2} | {fma:.2} | {special:.2} |");
        assert!(
            per_unit <= most,
            "{name}: {per_unit} vector instructions, expected at most {most}"
        );
    }
}
