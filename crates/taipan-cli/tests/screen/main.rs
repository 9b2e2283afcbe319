//! What a person sees: `taipan` in terminals of 50 and of 100 columns.
#![cfg(target_os = "linux")]

#[path = "../../../taipan-lm/tests/common/empty.rs"]
mod empty;
// Not every function of these is of use here.
#[allow(dead_code)]
#[path = "../train/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../common/terminal.rs"]
mod terminal;

use harness::{Harness, succeed};
use terminal::Terminal;

/// The widths of terminals, narrow and wide.
const WIDTHS: [u16; 2] = [50, 100];

/// A line without what differs from machine to machine and from run to run: `#` for numbers, `~`
/// for curves, and nothing of the lines on the machine and its speed.
fn stable(line: &str) -> String {
    if let Some(name) = ["time", "device", "memory"].iter().find(|name| line.starts_with(**name)) {
        return name.to_string();
    }
    // What a model of a few steps generates is anything.
    let line = line.find(" times").map_or(line, |at| &line[..at + " times".len()]);
    let mut result = String::new();
    for c in line.chars() {
        let c = match c {
            '0'..='9' => '#',
            '▁'..='█' => '~',
            c => c,
        };
        // `#.#` is one number.
        let repeats = "#~".contains(c) && (result.ends_with(c) || result.ends_with("#."));
        if repeats && result.ends_with("#.") {
            result.pop();
        } else if !repeats {
            result.push(c);
        }
    }
    result
}

/// Compare the lines on a screen.
fn assert_lines(terminal: &Terminal, columns: u16, expected: &[&str]) {
    let lines = terminal.lines();
    let screen = lines.join("\n");
    let found: Vec<String> = lines.iter().map(|line| stable(line)).collect();
    assert_eq!(found.join("\n"), expected.join("\n"), "at {columns} columns:\n{screen}");
    assert!(lines.iter().all(|line| line.chars().count() < columns.into()), "{screen}");
}

fn start(harness: &Harness, arguments: &[&str], columns: u16) -> Terminal {
    Terminal::start(harness.train(arguments), columns)
}

#[test]
fn a_run_from_its_header_to_its_model() {
    let narrow = [
        "model       Mamba, width #, layers #, state #,",
        "            tied head, f#, # M parameters",
        "text        text, # KiB",
        "tokens      #k for training, #k held out,",
        "            vocabulary #",
        "training    # steps of # × # tokens: #k in",
        "            total, # epochs",
        "lr          #e-#, warm-up # steps, cosine decay",
        "            to #e-#",
        "device",
        "memory",
        "output      run",
        "",
        "step #/#  loss #  bits/byte #",
        "  sample: # times",
        "step #/#  loss #  bits/byte #",
        "",
        "time",
        "loss        # ~ #, lowest #",
        "held out    # bits/byte, the best was #",
        "            at step #",
        "",
        "# times",
        "",
        "model       run: config.json, model.safetensors,",
        "            tokenizer.json",
        "curves      run/loss.svg, run/metrics.jsonl",
        "generate    taipan generate run",
        "to resume   taipan train --resume --out run",
        "            --steps #",
    ];
    let wide = [
        "model       Mamba, width #, layers #, state #, tied head, f#, # M parameters",
        "text        text, # KiB",
        "tokens      #k for training, #k held out, vocabulary #",
        "training    # steps of # × # tokens: #k in total, # epochs",
        "lr          #e-#, warm-up # steps, cosine decay to #e-#",
        "device",
        "memory",
        "output      run",
        "",
        "step #/#  loss #  val #  bits/byte #",
        "  sample: # times",
        "step #/#  loss #  val #  bits/byte #",
        "",
        "time",
        "loss        # ~ #, lowest #",
        "held out    # bits/byte, the best was # at step #",
        "",
        "# times",
        "",
        "model       run: config.json, model.safetensors, tokenizer.json",
        "curves      run/loss.svg, run/metrics.jsonl",
        "generate    taipan generate run",
        "to resume   taipan train --resume --out run --steps #",
    ];
    for (columns, expected) in WIDTHS.into_iter().zip([&narrow[..], &wide]) {
        let harness = Harness::new(&format!("screen-run-{columns}"));
        let settings = ["--eval-interval", "20", "--sample", "5 times", "--sample-tokens", "1"];
        let mut terminal = start(&harness, &settings, columns);
        assert_eq!(terminal.end(), Some(0));
        assert_lines(&terminal, columns, expected);
    }
}

#[test]
fn ctrl_c_and_resuming() {
    for columns in WIDTHS {
        let harness = Harness::new(&format!("screen-ctrl-c-{columns}"));
        let settings = ["--steps", "1000000", "--eval-interval", "1000000", "--log-interval", "1"];
        let mut terminal = start(&harness, &settings, columns);
        // The bar is drawn a second time.
        terminal.wait_for("loss");
        terminal.wait_for("loss");
        terminal.press("\x03");
        assert_eq!(terminal.end(), Some(130));
        let lines = terminal.lines();
        let end = &lines[lines.len() - if columns == 50 { 2 } else { 1 }..];
        assert_eq!(
            stable(&end.join(" ")),
            "stopped at step # of #, saved; resume with: taipan train --resume --out run",
            "{lines:#?}"
        );
        let screen = lines.join("\n");
        assert!(!screen.contains("^C") && !screen.contains("tok/s"), "nothing is left: {screen}");

        let step = harness.metrics("run").last().unwrap()["step"].as_u64().unwrap();
        let next = (step + 1).to_string();
        let resume = harness.bare(&["--resume", "--out", "run", "--stop-after", &next]);
        let mut terminal = Terminal::start(resume, columns);
        assert_eq!(terminal.end(), Some(0));
        let lines = terminal.lines();
        let output = format!("output      run, {step} steps done");
        assert!(lines.contains(&output), "{output}: {lines:#?}");
        let stopped = format!("stopped at step {next} of 1000000, saved; ");
        assert!(lines.iter().any(|line| line.starts_with(&stopped)), "{lines:#?}");
    }
}

/// Errors of the program look like those of its parser of arguments.
#[test]
fn errors_are_red_and_short() {
    let harness = Harness::new("screen-error");
    succeed(&mut harness.train(&["--steps", "1"]));
    for columns in WIDTHS {
        let mut bogus = start(&harness, &["--bogus"], columns);
        assert_eq!(bogus.end(), Some(2));
        assert_eq!(bogus.lines()[0], "error: unexpected argument '--bogus' found");
        let mut missing = start(&harness, &["nowhere", "--out", "new"], columns);
        assert_eq!(missing.end(), Some(1));
        assert_eq!(missing.lines(), ["error: nowhere: no such file or directory"]);
        let mut full = start(&harness, &[], columns);
        assert_eq!(full.end(), Some(2));
        let text = "error: --out: run is not empty; --resume continues the run in it, --overwrite \
                    replaces it";
        assert_eq!(full.lines().concat().replace(' ', ""), text.replace(' ', ""));
        for terminal in [bogus, missing, full] {
            assert_eq!(terminal.colour(0), vt100::Color::Idx(1), "red");
        }
    }
}

#[test]
fn a_window_that_becomes_narrower_and_wider_leaves_nothing_behind() {
    let harness = Harness::new("screen-resize");
    let settings = ["--steps", "1000000", "--eval-interval", "1000000", "--log-interval", "1"];
    let mut terminal = start(&harness, &settings, 100);
    terminal.wait_for("loss");
    for columns in [50, 100, 50, 70] {
        terminal.resize(columns);
        // Drawn twice for the new width.
        for _ in 0..3 {
            terminal.wait_for("loss");
        }
        terminal.wait_for("\r");
        let lines = terminal.lines();
        let bars = lines.iter().filter(|line| line.contains("loss")).count();
        let steps = lines.iter().filter(|line| line.contains("/1000000 ")).count();
        assert_eq!((bars, steps), (1, 1), "at {columns} columns: {lines:#?}");
        assert!(lines.last().unwrap().contains("/1000000 "), "{lines:#?}");
    }
    terminal.press("\x03");
    assert_eq!(terminal.end(), Some(130));
}
