//! Contestants in Rust of `bench/compare`: `contestant NAME` answers the messages of
//! `bench/harness/worker.py`, one JSON object per line; `contestant bounds` measures the machine.

#[path = "../../../crates/taipan/benches/linear/baseline.rs"]
mod baseline;
#[cfg(feature = "burn")]
mod burn_gpu;
mod candle;
mod case;
mod clock;
mod mamba_rs_model;
mod numr_linear;
mod products;
mod taipan_models;
mod taipan_ops;
mod wgsl_kernels;

use std::error::Error;
use std::fmt;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::case::Case;
use crate::clock::Clock;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A tensor in f32, by the name of the reference.
pub type Output = (&'static str, Vec<f32>);

/// A case that is ready to run.
pub trait Contestant {
    /// What it computes.
    fn outputs(&mut self) -> Result<Vec<Output>>;

    /// Compute it `times` times, the timed part inside [`Clock::time`].
    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()>;
}

/// The contestant cannot do the case.
#[derive(Debug)]
pub struct Unsupported(pub String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Unsupported {}

pub fn unsupported<T>(what: &str) -> Result<T> {
    Err(Box::new(Unsupported(what.to_string())))
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Message {
    Hello,
    Prepare { case: Case },
    Check { out: PathBuf },
    Run { times: usize },
}

fn prepare(name: &str, case: &Case) -> Result<Box<dyn Contestant>> {
    match name {
        "taipan" => match case.task.as_str() {
            "linear" | "scan" => taipan_ops::prepare(case),
            _ => taipan_models::prepare(case),
        },
        "candle" => candle::prepare(case),
        "numr" => numr_linear::prepare(case),
        "gemm" => products::prepare(products::gemm, case),
        "faer" => products::prepare(products::faer, case),
        "mamba-rs" => mamba_rs_model::prepare(case),
        "tile16" | "naive" => wgsl_kernels::prepare(name, case),
        #[cfg(feature = "burn")]
        "burn" => burn_gpu::prepare(case),
        _ => unsupported(&format!("{name} is not part of this build")),
    }
}

/// Of a contestant, as `Cargo.lock` has it.
fn version(name: &str) -> String {
    let package = match name {
        "candle" => "candle-core",
        "tile16" | "naive" => return "WGSL of this repository".into(),
        name => name,
    };
    let lock = include_str!("../Cargo.lock");
    let entry = lock.split_once(&format!("name = \"{package}\"\nversion = \""));
    entry.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown").to_string()
}

struct Worker {
    name: String,
    contestant: Option<Box<dyn Contestant>>,
}

impl Worker {
    fn answer(&mut self, message: Message) -> Result<Value> {
        let contestant = || "a case must be prepared first";
        match message {
            Message::Hello => Ok(json!({ "ok": true, "version": version(&self.name) })),
            Message::Prepare { case } => {
                self.contestant = Some(prepare(&self.name, &case)?);
                Ok(json!({ "ok": true }))
            }
            Message::Check { out } => {
                let outputs = self.contestant.as_mut().ok_or_else(contestant)?.outputs()?;
                for (name, values) in outputs {
                    let path = out.join(format!("{name}.f32"));
                    std::fs::write(path, bytemuck::cast_slice(&values))?;
                }
                Ok(json!({ "ok": true }))
            }
            Message::Run { times } => {
                let mut clock = Clock::default();
                self.contestant.as_mut().ok_or_else(contestant)?.run(times, &mut clock)?;
                Ok(json!({ "ok": true, "wall": clock.wall, "cpu": clock.cpu }))
            }
        }
    }
}

fn refusal(error: &(dyn Error + Send + Sync + 'static)) -> Value {
    match error.downcast_ref::<Unsupported>() {
        Some(reason) => json!({ "ok": false, "unsupported": reason.0 }),
        None => json!({ "ok": false, "error": error.to_string() }),
    }
}

fn bounds() -> Result<()> {
    let bounds = taipan::roofline::bounds(&taipan::Device::Cpu)?;
    println!("{}", json!({ "flops": bounds.flops, "memory": bounds.memory }));
    Ok(())
}

fn main() -> Result<()> {
    // The last line on stderr is what the harness reports of a worker that died.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let name = std::env::args().nth(1).ok_or("usage: contestant NAME | bounds")?;
    if name == "bounds" {
        return bounds();
    }
    let mut worker = Worker { name, contestant: None };
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str(&line?).map_err(Into::into);
        let answer = answer.and_then(|message| worker.answer(message));
        let answer = answer.unwrap_or_else(|error| refusal(&*error));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
