//! What a page calls. It asks for one op after the other, so that it can show each when it is known,
//! and begin anew with the next one if a check stops WebAssembly.

use js_sys::Error as JsError;
use taipan::Device;
use taipan::check::{Case, Finding, cases};
use taipan::gpu::{Capabilities, Gpu, adapters};
use wasm_bindgen::prelude::*;

use crate::{Check, Row, Target, builtins, memory, training};

/// A device of this tab, opened as the package opens it, and what is checked on it.
#[wasm_bindgen]
pub struct Doctor {
    target: Target,
    /// By op.
    cases: Vec<Vec<Case>>,
}

fn failure(error: impl ToString) -> JsValue {
    JsError::new(&error.to_string()).into()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("numbers and strings")
}

#[wasm_bindgen]
impl Doctor {
    /// On WebGPU or on the CPU. With `quick` there is one case of each op.
    pub async fn open(webgpu: bool, quick: bool) -> Result<Doctor, JsValue> {
        let mut cases = cases::list();
        if quick {
            cases.dedup_by(|later, first| later.op() == first.op());
        }
        let mut ops: Vec<Vec<Case>> = Vec::new();
        for case in cases {
            match ops.last_mut() {
                Some(op) if op[0].op() == case.op() => op.push(case),
                _ => ops.push(vec![case]),
            }
        }
        let device = if webgpu { open().await? } else { Device::Cpu };
        Ok(Doctor { target: Target::of(device), cases: ops })
    }

    /// The names of the ops.
    pub fn ops(&self) -> Vec<String> {
        self.cases.iter().map(|cases| cases[0].op().to_owned()).collect()
    }

    /// What is found of an op, by its number: a [`Row`] for each type.
    pub async fn examine(&self, op: usize) -> String {
        let cases = &self.cases[op];
        let references: Vec<_> = cases.iter().map(Case::reference).collect();
        let mut rows = Vec::new();
        for dtype in self.target.floats() {
            let mut findings = Vec::new();
            for reference in &references {
                findings.push(match reference {
                    Ok(reference) => reference.examine(&self.target.device, dtype).await,
                    Err(mismatch) => Finding::from(mismatch.clone()),
                });
            }
            rows.push(Row::new(&cases[0], dtype, findings));
        }
        json(&rows)
    }

    /// What is checked besides ops: a list of [`Check`].
    pub async fn checks(&self) -> String {
        let device = &self.target.device;
        let mut checks: Vec<Check> = Vec::new();
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        checks.push(memory(std::slice::from_ref(&self.target), megabytes));
        checks.extend(builtins(device).await);
        checks.push(training(device).await);
        json(&checks)
    }
}

async fn open() -> Result<Device, JsValue> {
    let adapters = adapters().await;
    let adapter = adapters.first().ok_or_else(|| failure("this browser gives no GPU"))?;
    Gpu::open(adapter, Capabilities::Full).await.map(Device::Gpu).map_err(failure)
}
