//! Every op against f64, in every type, as the tests do it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde::Serialize;
use taipan::check::{Case, Deviation, Finding, Kind, Mismatch};
use taipan::gpu::Capabilities;
use taipan::wgpu::Adapter;
use taipan::{DType, Device};

use super::floats;
use super::report::Check;
use super::screen::Screen;
use crate::Failure;

/// A device as it is opened.
pub struct Target {
    pub device: Device,
    /// What is said of an error there.
    limits: &'static str,
}

impl Target {
    /// A device as it is.
    pub fn of(device: Device) -> Target {
        Target { device, limits: "" }
    }

    /// The CPU; or a GPU with its own limits and features, and with those of every browser.
    pub fn all(device: &Device, adapter: Option<&Adapter>) -> Result<Vec<Target>, Failure> {
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
}

/// What was found of an op in a type: the worst of its cases, wherever they ran.
#[derive(Serialize)]
pub struct Row {
    pub op: String,
    pub dtype: String,
    pub passed: bool,
    /// How many cases ran, each where the type is supported.
    pub runs: usize,
    pub value_ulp: f64,
    /// None in f64, whose gradients are compared with finite differences.
    pub gradient_ulp: Option<f64>,
    /// Of value and gradients.
    pub relative: f64,
    pub seconds: f64,
    /// What is wrong first.
    pub failure: Option<String>,
    /// Whether that is another result of the same run.
    #[serde(skip)]
    differs: bool,
}

/// Examine the cases, op by op. Each row is printed when it is known.
pub fn examine(
    cases: &[Case],
    targets: &[Target],
    screen: &mut Screen,
) -> Result<Vec<Row>, Failure> {
    let mut rows: Vec<Row> = Vec::new();
    screen.print(&Row::header())?;
    let ops: Vec<&[Case]> = cases.chunk_by(|a, b| a.op() == b.op()).collect();
    for (done, cases) in ops.iter().enumerate() {
        let op = cases[0].op();
        screen.note(&format!("{op} ({} of {})", done + 1, ops.len()));
        let references: Vec<_> = cases.iter().map(|case| guarded(|| case.reference())).collect();
        for dtype in floats(&targets[0].device) {
            let began = Instant::now();
            let (mut runs, mut worst) = (0, Finding::default());
            for target in targets.iter().filter(|target| target.device.supports(dtype)) {
                for reference in &references {
                    let found = match reference {
                        Ok(reference) => guarded(|| Ok(reference.examine(&target.device, dtype))),
                        Err(mismatch) => Err(mismatch.clone()),
                    };
                    let mut found = found.unwrap_or_else(Finding::from);
                    if let Some(mismatch) = &mut found.mismatch {
                        mismatch.message.insert_str(0, target.limits);
                    }
                    (runs, worst) = (runs + 1, worst.max(found));
                }
            }
            let row = Row::new(op, dtype, runs, worst, began);
            let first = rows.last().is_none_or(|last| last.op != row.op);
            screen.print(&row.line(first))?;
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

impl Row {
    fn new(op: &str, dtype: DType, runs: usize, worst: Finding, began: Instant) -> Row {
        let Deviation { relative, .. } = worst.value.max(worst.gradient);
        Row {
            op: op.to_owned(),
            dtype: dtype.to_string(),
            passed: worst.mismatch.is_none(),
            runs,
            value_ulp: worst.value.ulp,
            gradient_ulp: (dtype != DType::F64).then_some(worst.gradient.ulp),
            relative,
            seconds: began.elapsed().as_secs_f64(),
            differs: worst.mismatch.as_ref().is_some_and(|found| found.kind == Kind::Bits),
            failure: worst.mismatch.map(|mismatch| mismatch.message),
        }
    }
}

/// Whether every run gave the same bits again.
pub fn determinism(rows: &[Row]) -> Check {
    let different: Vec<String> = rows
        .iter()
        .filter(|row| row.differs)
        .map(|row| format!("{} in {}", row.op, row.dtype))
        .collect();
    let runs: usize = rows.iter().map(|row| row.runs).sum();
    let found = match different.is_empty() {
        true => format!("the same bits when {runs} cases ran again"),
        false => format!("other bits in another run: {}", different.join(", ")),
    };
    Check { name: "determinism", passed: different.is_empty(), found }
}
