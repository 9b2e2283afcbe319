//! Where settings come from.

use crate::bench::{Bench, fail, succeed};

#[test]
fn the_command_line_wins_over_the_file_and_the_file_over_the_preset() {
    let bench = Bench::new("layers");
    let config = "files = ['text']\npreset = 'small'\nd-model = 24\nn-layer = 1\nbatch-size = 1\nblock-size = 8\n\
                  steps = 3\nwarmup = 1\nsample-tokens = 0\n";
    bench.write("my.toml", config);
    succeed(&mut bench.bare(&["--config", "my.toml", "--steps", "2", "--out", "run"]));
    let settings = bench.text("run/train.toml");
    for line in ["preset = \"small\"", "d-model = 24", "steps = 2", "lr = 0.002", "grad-clip = 1.0"]
    {
        assert!(settings.lines().any(|found| found == line), "{line}: {settings}");
    }
    let config: serde_json::Value = serde_json::from_slice(&bench.read("run/config.json")).unwrap();
    assert_eq!((&config["hidden_size"], &config["time_step_rank"]), (&24.into(), &2.into()));
    assert!(bench.path("run/checkpoint-2").exists());
    // What a run leaves repeats it.
    succeed(&mut bench.bare(&["--config", "run/train.toml", "--out", "again"]));
    bench.assert_same("run", "again", 2);
}

#[test]
fn a_model_can_be_tuned() {
    let bench = Bench::new("tuned");
    succeed(&mut bench.train(&["--steps", "2", "--train-tokenizer", "300"]));
    let from = ["text", "--from", "run", "--steps", "2", "--out", "tuned", "--block-size", "16"];
    succeed(bench.bare(&from).args([
        "--batch-size",
        "2",
        "--freeze",
        "*.mixer.*",
        "--sample-tokens",
        "0",
    ]));
    assert_eq!(bench.read("run/tokenizer.json"), bench.read("tuned/tokenizer.json"));
    let shape = |run: &str| -> serde_json::Value {
        serde_json::from_slice(&bench.read(&format!("{run}/config.json"))).unwrap()
    };
    assert_eq!(shape("run"), shape("tuned"));
    assert_ne!(bench.read("run/model.safetensors"), bench.read("tuned/model.safetensors"));
    let error = fail(&mut bench.bare(&["--from", "run", "--d-model", "32", "--out", "other"]), 2);
    assert_eq!(error, "taipan: --d-model is 32, but in run it is 16\n");
}

#[test]
fn a_seed_decides_on_weights_and_on_what_is_held_out() {
    let bench = Bench::new("seeds");
    std::fs::create_dir(bench.path("many")).unwrap();
    (0..20).for_each(|i| bench.write(&format!("many/{i}"), format!("text {i}, ").repeat(200)));
    for (run, seed) in [("one", "1"), ("again", "1"), ("two", "2")] {
        let arguments = ["many", "--steps", "1", "--lr", "1e-30", "--seed", seed, "--out", run];
        succeed(bench.train(&arguments).args(["--val-fraction", "0.3"]));
    }
    bench.assert_same("one", "again", 1);
    for file in ["model.safetensors", "data/held_out.tokens"] {
        let read = |run: &str| bench.read(&format!("{run}/{file}"));
        assert_ne!(read("one"), read("two"), "{file}");
    }
}

#[test]
fn time_ends_a_run() {
    let bench = Bench::new("time");
    succeed(&mut bench.train(&["--steps", "1000000", "--max-time", "0.3s", "--log-interval", "1"]));
    let rows = bench.metrics("run");
    let last = rows.last().unwrap();
    assert!(last["step"].as_u64().unwrap() < 1_000_000);
    assert!(last["val_loss"].is_f64(), "the last step is measured: {last}");
    assert!(bench.path(&format!("run/checkpoint-{}", last["step"])).exists());
}

#[test]
fn without_files_the_program_learns_from_its_sources() {
    let bench = Bench::new("own");
    let small = ["--d-model", "16", "--n-layer", "1", "--steps", "1", "--batch-size", "1"];
    let stdout = succeed(bench.bare(&small).args(["--block-size", "16", "--sample-tokens", "8"]));
    assert!(stdout.contains("taipan's own sources, since no FILES are given"), "{stdout}");
    assert!(stdout.contains("\npub fn "), "the sample begins with the prompt: {stdout}");
    assert!(bench.path("taipan-run/model.safetensors").exists());
}

#[test]
fn the_help_tells_defaults() {
    let help = succeed(&mut Bench::new("help").bare(&["--help"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "[default: taipan's own sources]",
        "[one of tiny, small, 130m, 370m, 790m, 1.4b, 2.8b]",
        "State of each channel [default: 16]",
        "[default: taipan-run]",
        "[default: a tenth of --lr]",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
