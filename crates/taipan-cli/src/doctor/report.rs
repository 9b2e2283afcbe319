//! The report: as text, as Markdown, and as JSON, whose keys are these fields.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use taipan::Device;
use taipan::wgpu::Adapter;
use taipan_doctor::{Check, Row, Target, verdict};

use super::speed::Speed;
use crate::bench::Pass;
use crate::devices;
use crate::wrap::wrap;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const DIM: Style = Style::new().dimmed();

/// Columns of the text.
const WIDTH: usize = 79;

/// Of a device, and of nothing else on the machine.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    system: String,
    device: String,
    threads: usize,
    gpu: Option<devices::Gpu>,
    pub ops: Vec<Row>,
    pub checks: Vec<Check>,
    pub speed: Option<Speed>,
    pipelines: Option<Pipelines>,
    seconds: f64,
    pub passed: bool,
    /// One line.
    pub verdict: String,
}

/// What was compiled for the ops, with the device's own limits.
#[derive(Serialize)]
struct Pipelines {
    count: u64,
    seconds: f64,
}

impl Report {
    pub fn new(device: &Device, adapter: Option<&Adapter>) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION"),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            device: device.describe(),
            threads: rayon::current_num_threads(),
            gpu: adapter.map(devices::Gpu::new),
            ops: Vec::new(),
            checks: Vec::new(),
            speed: None,
            pipelines: None,
            seconds: 0.0,
            passed: false,
            verdict: String::new(),
        }
    }

    /// Count, and decide.
    pub fn finish(&mut self, targets: &[Target], time: Duration) {
        self.seconds = time.as_secs_f64();
        if let Device::Gpu(gpu) = &targets[0].device {
            let work = gpu.work();
            let seconds = work.compile_time.as_secs_f64();
            self.pipelines = Some(Pipelines { count: work.pipelines, seconds });
        }
        (self.passed, self.verdict) = verdict(&self.ops, &self.checks);
    }

    /// What the text begins with.
    pub fn header(&self) -> String {
        let mut text = format!("taipan {}, {}\n{}\n", self.version, self.system, self.device);
        for (what, value) in self.gpu.iter().flat_map(devices::Gpu::lines) {
            text += &format!("  {what:<10}  {value}\n");
        }
        text
    }

    /// What the text ends with, after the rows of the ops.
    pub fn summary(&self) -> String {
        let mut text = format!("\n{DIM}{:<16}{:<8}found{DIM:#}\n", "check", "result");
        for check in &self.checks {
            let found = wrap(&check.found, 24, WIDTH);
            text += &format!("{:<16}{}{found}\n", check.name, result(check.passed, 8));
        }
        for (name, found) in self.measurements() {
            text += &format!("{name:<24}{found}\n");
        }
        for row in &self.ops {
            if let Some(failure) = &row.failure {
                let label = format!("{} in {}:", row.op, row.dtype);
                text += &format!("\n{BAD}{label}{BAD:#}\n  {}\n", wrap(failure, 2, WIDTH));
            }
        }
        let style = if self.passed { GOOD } else { BAD };
        text += &format!("\n{style}{}{style:#} in {:.0} s\n", self.verdict, self.seconds);
        text + "to share: the same command with --markdown or --json\n"
    }

    /// What has no right or wrong.
    fn measurements(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if let Some(Pipelines { count, seconds }) = self.pipelines {
            let found = format!("{count}, compiled in {seconds:.2} s");
            lines.push(("pipelines".to_owned(), found));
        }
        let Some(speed) = &self.speed else { return lines };
        lines.push(("memory bandwidth".to_owned(), format!("{:.1} GB/s", speed.memory_gbs)));
        lines.push(("multiply-adds".to_owned(), format!("{:.1} GF/s", speed.peak_gflops)));
        for op in &speed.ops {
            let of = |pass: &Pass| match pass.peak_fraction {
                Some(fraction) => (fraction, "multiply-adds"),
                None => (pass.memory_fraction, "bandwidth"),
            };
            let ((forward, bound), (backward, _)) = (of(&op.forward), of(&op.backward));
            let [forward, backward] = [forward, backward].map(|fraction| 100.0 * fraction);
            let found = format!("forward {forward:.0} %, backward {backward:.0} % of the {bound}");
            lines.push((op.op.to_owned(), found));
        }
        lines
    }

    /// A page to share.
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let mut text = format!("# taipan doctor: {}\n\n", self.verdict);
        text += &format!("taipan {}, {}, {}\n\n", self.version, self.system, self.device);
        if let Some(gpu) = &self.gpu {
            text += "| adapter | |\n|---|---|\n";
            for (what, value) in gpu.lines() {
                text += &format!("| {what} | {} |\n", cell(&value));
            }
            text.push('\n');
        }
        text += "| check | result | found |\n|---|---|---|\n";
        for check in &self.checks {
            let result = word(check.passed);
            text += &format!("| {} | {result} | {} |\n", check.name, cell(&check.found));
        }
        for (name, found) in self.measurements() {
            text += &format!("| {name} | | {found} |\n");
        }
        text += "\nWorst errors, in units in the last place and relative.\n\n";
        text += "| op | dtype | value ulp | gradient ulp | relative | result | seconds |\n";
        text += "|---|---|---:|---:|---:|---|---:|\n";
        for row in &self.ops {
            let [value, gradient] = ulps(row);
            let (relative, result) = (row.relative, word(row.passed));
            text += &format!("| {} | {} | {value} | {gradient} ", row.op, row.dtype);
            text += &format!("| {relative:.1e} | {result} | {:.2} |\n", row.seconds);
        }
        let failures = self.ops.iter().filter_map(|row| row.failure.as_deref());
        failures.fold(text, |text, failure| text + &format!("\n- {}\n", cell(failure)))
    }
}

/// What the columns are.
pub fn row_header() -> String {
    let names = format!(
        "{:<33}{:<5}{:>7}{:>9}{:>10}{:>7}  result",
        "op", "dtype", "value", "gradient", "relative", "s"
    );
    format!("\n{DIM}worst errors against f64, in ulp and relative\n{names}{DIM:#}\n")
}

/// The errors of value and gradient.
fn ulps(row: &Row) -> [String; 2] {
    [number(row.value_ulp), row.gradient_ulp.map_or("-".into(), number)]
}

/// A line of the table; the op is named once.
pub fn line(row: &Row, first: bool) -> String {
    let op = if first { &row.op } else { "" };
    let [value, gradient] = ulps(row);
    format!(
        "{op:<33}{:<5}{value:>7}{gradient:>9}{:>10.1e}{:>7.2}  {}\n",
        row.dtype,
        row.relative,
        row.seconds,
        result(row.passed, 0)
    )
}

fn word(passed: bool) -> &'static str {
    if passed { "ok" } else { "FAILED" }
}

/// The word, in its colour, and spaces up to a width.
fn result(passed: bool, width: usize) -> String {
    let style = if passed { GOOD } else { BAD };
    let spaces = " ".repeat(width.saturating_sub(word(passed).len()));
    format!("{style}{}{style:#}{spaces}", word(passed))
}

/// An error in ulp, in few characters.
fn number(ulp: f64) -> String {
    match ulp {
        0.0..100.0 => format!("{ulp:.1}"),
        100.0..1e5 => format!("{ulp:.0}"),
        _ => format!("{ulp:.0e}"),
    }
}
