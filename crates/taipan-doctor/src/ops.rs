//! Every op against f64, in every type, as the tests do it.

use serde::Serialize;
use taipan::check::{Case, Deviation, FLOATS, Finding, Kind};
use taipan::{DType, Device};

use crate::Check;

/// A device as it is opened.
pub struct Target {
    /// The device.
    pub device: Device,
    /// What is said of an error there.
    pub limits: &'static str,
}

impl Target {
    /// A device as it is.
    pub fn of(device: Device) -> Target {
        Target { device, limits: "" }
    }

    /// The floats that it supports.
    pub fn floats(&self) -> impl Iterator<Item = DType> {
        FLOATS.into_iter().filter(|&dtype| self.device.supports(dtype))
    }

    /// A finding, as one of this target.
    pub fn label(&self, mut found: Finding) -> Finding {
        if let Some(mismatch) = &mut found.mismatch {
            mismatch.message.insert_str(0, self.limits);
        }
        found
    }
}

/// What was found of an op in a type: the worst of its cases, wherever they ran.
#[derive(Serialize)]
pub struct Row {
    /// The op.
    pub op: String,
    /// The type.
    pub dtype: String,
    /// Whether everything is within its tolerance.
    pub passed: bool,
    /// How many cases ran, each where the type is supported.
    pub runs: usize,
    /// The largest error of the value, in units in the last place.
    pub value_ulp: f64,
    /// That of the gradients. None in f64, whose gradients are compared with finite differences, and
    /// of ops without one.
    pub gradient_ulp: Option<f64>,
    /// The largest relative error of value and gradients.
    pub relative: f64,
    /// How long it took, if the caller measures that.
    pub seconds: f64,
    /// What is wrong first.
    pub failure: Option<String>,
    /// Whether that is another result of the same run.
    pub differs: bool,
}

impl Row {
    /// The worst of these findings of an op, of which this is a case.
    pub fn new(case: &Case, dtype: DType, findings: impl IntoIterator<Item = Finding>) -> Row {
        let (mut runs, mut worst) = (0, Finding::default());
        for found in findings {
            (runs, worst) = (runs + 1, worst.max(found));
        }
        let Deviation { relative, .. } = worst.value.max(worst.gradient);
        let compared = dtype != DType::F64 && case.has_gradient();
        Row {
            op: case.op().to_owned(),
            dtype: dtype.to_string(),
            passed: worst.mismatch.is_none(),
            runs,
            value_ulp: worst.value.ulp,
            gradient_ulp: compared.then_some(worst.gradient.ulp),
            relative,
            seconds: 0.0,
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

/// Whether all memory of tensors was returned, with `bytes` written by the caller.
pub fn memory(targets: &[Target], bytes: impl Fn(u64) -> String) -> Check {
    let memories: Vec<_> = targets.iter().map(|target| target.device.memory()).collect();
    let peak = memories.iter().map(|memory| memory.peak).max().unwrap_or(0);
    let used: usize = memories.iter().map(|memory| memory.used).sum();
    let [used_text, peak] = [used, peak].map(|count| bytes(count as u64));
    let found = format!("{used_text} in use after all ops, at most {peak} before");
    Check { name: "memory", passed: used == 0, found }
}
