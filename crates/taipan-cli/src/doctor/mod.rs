//! `taipan doctor`: whether this machine computes what it should, and how fast.

mod faults;
mod ops;
mod report;
mod screen;
mod speed;
#[cfg(test)]
mod tests;

use std::time::Instant;

use pollster::block_on;
use taipan::Device;
use taipan::check::{Case, cases};
use taipan::gpu::{Capabilities, Gpu};
use taipan::wgpu::Adapter;

use self::report::Report;
use self::screen::Screen;
use crate::{Failure, machine, usage};

/// What to check, and how the report is printed.
#[derive(clap::Args)]
pub struct Flags {
    /// cpu, gpu, auto (a GPU if there is one), or a GPU's number or part of its name: see taipan
    /// devices
    #[arg(long, value_name = "DEVICE", default_value = machine::AUTO)]
    device: String,
    /// One case of each op instead of several
    #[arg(long)]
    quick: bool,
    /// These ops alone, and nothing besides ops: linear,selective_scan
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    ops: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Print a page of Markdown, to share
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// Check and print; fails after that if anything is wrong.
pub fn doctor(flags: &Flags) -> Result<(), Failure> {
    let began = Instant::now();
    let cases = chosen(cases::list(), flags)?;
    let device = machine::open(&flags.device)?;
    let adapter = adapter(&device)?;
    let mut screen = Screen::new(!flags.json && !flags.markdown);
    let mut report = Report::new(&device, adapter.as_ref());
    screen.print(&report.header())?;
    let targets = ops::targets(&device, adapter.as_ref())?;
    report.ops = ops::examine(&cases, &targets, &mut screen)?;
    report.checks.push(taipan_doctor::determinism(&report.ops));
    report.checks.push(taipan_doctor::memory(&targets, crate::bytes));
    if flags.ops.is_empty() {
        let device = &targets[0].device;
        report.checks.extend(faults::checks(device, adapter.as_ref(), &mut screen));
        screen.note("exp2 and tanh");
        report.checks.extend(block_on(taipan_doctor::builtins(device)));
        screen.note("training");
        report.checks.push(block_on(taipan_doctor::training(device)));
        report.speed = Some(speed::measure(device, &mut screen)?);
    }
    report.finish(&targets, began.elapsed());
    screen.clear();
    match (flags.json, flags.markdown) {
        (true, _) => crate::print(&(serde_json::to_string_pretty(&report)? + "\n"))?,
        (_, true) => crate::print(&report.markdown())?,
        _ => crate::print(&report.summary())?,
    }
    match report.passed {
        true => Ok(()),
        false => Err(format!("doctor: {}", report.verdict).into()),
    }
}

/// The cases to run.
fn chosen(mut cases: Vec<Case>, flags: &Flags) -> Result<Vec<Case>, Failure> {
    if let Some(unknown) = flags.ops.iter().find(|op| cases.iter().all(|case| case.op() != **op)) {
        let mut known: Vec<&str> = cases.iter().map(Case::op).collect();
        known.dedup();
        return usage(format!("--ops: {unknown:?}, expected some of {}", known.join(", ")));
    }
    cases.retain(|case| flags.ops.is_empty() || flags.ops.iter().any(|op| op == case.op()));
    if flags.quick {
        cases.dedup_by(|later, first| later.op() == first.op());
    }
    Ok(cases)
}

/// The adapter of a GPU; none of the CPU.
fn adapter(device: &Device) -> Result<Option<Adapter>, Failure> {
    let Device::Gpu(gpu) = device else { return Ok(None) };
    let adapters = block_on(taipan::gpu::adapters());
    let found = adapters.into_iter().find(|adapter| adapter.get_info() == *gpu.info());
    let missing = || format!("doctor: {} is not among the adapters any more", gpu.name());
    Ok(Some(found.ok_or_else(missing)?))
}

/// An adapter, opened for this alone: nobody else counts or breaks anything there.
fn open(adapter: &Adapter, capabilities: Capabilities) -> taipan::Result<Gpu> {
    block_on(Gpu::open(adapter, capabilities))
}
