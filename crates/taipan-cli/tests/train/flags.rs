//! Where settings come from.

use crate::harness::{Harness, fail, succeed};

#[test]
fn the_command_line_wins_over_the_file_and_the_file_over_the_preset() {
    let harness = Harness::new("layers");
    let config = "files = ['text']\npreset = 'small'\nd-model = 24\nn-layer = 1\nbatch-size = 1\n\
                  block-size = 8\n\
                  steps = 3\nwarmup = 1\nsample-tokens = 0\n";
    harness.write("my.toml", config);
    succeed(&mut harness.bare(&["--config", "my.toml", "--steps", "2", "--out", "run"]));
    let settings = harness.text("run/train.toml");
    for line in ["preset = \"small\"", "d-model = 24", "steps = 2", "lr = 0.002", "grad-clip = 1.0"]
    {
        assert!(settings.lines().any(|found| found == line), "{line}: {settings}");
    }
    let config: serde_json::Value =
        serde_json::from_slice(&harness.read("run/config.json")).unwrap();
    assert_eq!((&config["hidden_size"], &config["time_step_rank"]), (&24.into(), &2.into()));
    assert!(harness.path("run/checkpoint-2").exists());
    // What a run leaves repeats it.
    succeed(&mut harness.bare(&["--config", "run/train.toml", "--out", "again"]));
    harness.assert_same("run", "again", 2);
}

#[test]
fn a_model_can_be_tuned() {
    let harness = Harness::new("tuned");
    succeed(&mut harness.train(&["--steps", "2", "--train-tokenizer", "300"]));
    let from = ["text", "--from", "run", "--steps", "2", "--out", "tuned", "--block-size", "16"];
    succeed(harness.bare(&from).args([
        "--batch-size",
        "2",
        "--freeze",
        "*.mixer.*",
        "--sample-tokens",
        "0",
    ]));
    assert_eq!(harness.read("run/tokenizer.json"), harness.read("tuned/tokenizer.json"));
    let shape = |run: &str| -> serde_json::Value {
        serde_json::from_slice(&harness.read(&format!("{run}/config.json"))).unwrap()
    };
    assert_eq!(shape("run"), shape("tuned"));
    assert_ne!(harness.read("run/model.safetensors"), harness.read("tuned/model.safetensors"));
    let error = fail(&mut harness.bare(&["--from", "run", "--d-model", "32", "--out", "other"]), 2);
    assert_eq!(error, "taipan: --d-model is 32, but in run it is 16\n");
    // What such a run leaves repeats it, and can be resumed.
    succeed(&mut harness.bare(&["--config", "tuned/train.toml", "--out", "again"]));
    harness.assert_same("tuned", "again", 2);
    succeed(&mut harness.bare(&["--resume", "--out", "tuned", "--steps", "3"]));
    assert!(harness.path("tuned/checkpoint-3").exists());
}

#[test]
fn a_seed_decides_on_weights_and_on_what_is_held_out() {
    let harness = Harness::new("seeds");
    std::fs::create_dir(harness.path("many")).unwrap();
    (0..20).for_each(|i| harness.write(&format!("many/{i}"), format!("text {i}, ").repeat(200)));
    for (run, seed) in [("one", "1"), ("again", "1"), ("two", "2")] {
        let arguments = ["many", "--steps", "1", "--lr", "1e-30", "--seed", seed, "--out", run];
        succeed(harness.train(&arguments).args(["--val-fraction", "0.3"]));
    }
    harness.assert_same("one", "again", 1);
    for file in ["model.safetensors", "data/held_out.tokens"] {
        let read = |run: &str| harness.read(&format!("{run}/{file}"));
        assert_ne!(read("one"), read("two"), "{file}");
    }
}

#[test]
fn time_ends_a_run() {
    let harness = Harness::new("time");
    succeed(&mut harness.train(&[
        "--steps",
        "1000000",
        "--max-time",
        "0.3s",
        "--log-interval",
        "1",
    ]));
    let rows = harness.metrics("run");
    let last = rows.last().unwrap();
    assert!(last["step"].as_u64().unwrap() < 1_000_000);
    assert!(last["val_loss"].is_f64(), "the last step is measured: {last}");
    assert!(harness.path(&format!("run/checkpoint-{}", last["step"])).exists());
}

#[test]
fn without_files_the_program_learns_from_stories_or_from_its_sources() {
    let harness = Harness::new("own");
    let small = ["--d-model", "16", "--n-layer", "1", "--steps", "1", "--batch-size", "1"];
    let train = |more: &[&str]| {
        let mut command = harness.bare(&small);
        succeed(command.args(["--block-size", "16", "--sample-tokens", "8"]).args(more))
    };
    let stdout = train(&[]);
    assert!(stdout.contains("little stories, since no FILES are given"), "{stdout}");
    assert!(stdout.contains("\nThe"), "the sample begins with the prompt: {stdout}");
    assert!(harness.path("taipan-run/model.safetensors").exists());
    let stdout = train(&["--corpus", "sources", "--out", "sources"]);
    assert!(stdout.contains("taipan's own sources"), "{stdout}");
    assert!(stdout.contains("\npub fn "), "the sample begins with the prompt: {stdout}");
}

#[test]
fn the_help_tells_defaults() {
    let help = succeed(&mut Harness::new("help").bare(&["--help"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "[default: stories]",
        "[one of tiny, small, 130m, 370m, 790m, 1.4b, 2.8b]",
        "State size per channel [default: 16]",
        "[default: taipan-run]",
        "[default: a tenth of --lr]",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
