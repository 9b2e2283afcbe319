//! Every op against f64, in every type, as the tests do it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use taipan::Device;
use taipan::check::{Case, Finding, Kind, Mismatch};
use taipan::gpu::Capabilities;
use taipan::wgpu::Adapter;
use taipan_doctor::{Row, Target};

use super::report;
use super::screen::Screen;
use crate::Failure;

/// The CPU; or a GPU with its own limits and features, and with those of every browser.
pub fn targets(device: &Device, adapter: Option<&Adapter>) -> Result<Vec<Target>, Failure> {
    let Some(adapter) = adapter else {
        return Ok(vec![Target::of(device.clone())]);
    };
    let open = |capabilities, limits| {
        let opened = super::open(adapter, capabilities);
        opened.map(|gpu| Target { device: Device::Gpu(gpu), limits })
    };
    Ok(vec![
        open(Capabilities::Full, "")?,
        open(Capabilities::WebGpu, "with WebGPU's default limits: ")?,
    ])
}

/// Examine the cases, op by op. Each row is printed when it is known.
pub fn examine(
    cases: &[Case],
    targets: &[Target],
    screen: &mut Screen,
) -> Result<Vec<Row>, Failure> {
    let mut rows: Vec<Row> = Vec::new();
    screen.print(&report::row_header())?;
    let ops: Vec<&[Case]> = cases.chunk_by(|a, b| a.op() == b.op()).collect();
    for (done, cases) in ops.iter().enumerate() {
        let op = cases[0].op();
        screen.note(&format!("{op} ({} of {})", done + 1, ops.len()));
        let references: Vec<_> = cases.iter().map(|case| guarded(|| case.reference())).collect();
        for dtype in targets[0].floats() {
            let began = Instant::now();
            let mut findings = Vec::new();
            for target in targets.iter().filter(|target| target.device.supports(dtype)) {
                for reference in &references {
                    let found = match reference {
                        Ok(reference) => {
                            guarded(|| Ok(reference.examine_blocking(&target.device, dtype)))
                        }
                        Err(mismatch) => Err(mismatch.clone()),
                    };
                    findings.push(target.label(found.unwrap_or_else(Finding::from)));
                }
            }
            let seconds = began.elapsed().as_secs_f64();
            let row = Row { seconds, ..Row::new(&cases[0], dtype, findings) };
            let first = rows.last().is_none_or(|last| last.op != row.op);
            screen.print(&report::line(&row, first))?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// What `f` finds. A panic is found too: the others are examined all the same.
fn guarded<T>(f: impl FnOnce() -> Result<T, Mismatch>) -> Result<T, Mismatch> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let message = format!("panicked: {}", text.unwrap_or("without a message"));
        Err(Mismatch { kind: Kind::Error, message })
    })
}
