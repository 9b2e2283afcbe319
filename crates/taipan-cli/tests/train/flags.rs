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
    assert_eq!(error, "error: --d-model is 32, but in run it is 16\n");
    // What such a run leaves repeats it, and can be resumed.
    succeed(&mut harness.bare(&["--config", "tuned/train.toml", "--out", "again"]));
    harness.assert_same("tuned", "again", 2);
    succeed(&mut harness.bare(&["--resume", "--out", "tuned", "--steps", "3"]));
    assert!(harness.path("tuned/checkpoint-3").exists());
}

/// What follows from a flag is not frozen by the file of a run.
#[test]
fn flags_on_top_of_the_file_of_a_run_have_their_consequences() {
    let harness = Harness::new("on-top");
    succeed(&mut harness.train(&["--lr", "0.004"]));
    let file = harness.text("run/train.toml");
    let (specified, derived) = file.split_once("[derived]\n").unwrap();
    for line in ["steps = 40", "lr = 0.004", "files = [\"text\"]", "device = \"cpu\""] {
        assert!(specified.lines().any(|found| found == line), "{line}: {file}");
    }
    for line in ["warmup = 2", "min-lr = 4e-4", "eps = 1e-8", "save-interval = 4", "dt-rank = 1"] {
        assert!(derived.lines().any(|found| found == line), "{line}: {file}");
    }
    let toml = ["--config", "run/train.toml", "--steps", "1", "--out", "short"];
    succeed(&mut harness.bare(&toml));
    assert!(harness.text("short/train.toml").contains("\nwarmup = 0\n"));
    assert!(harness.path("short/checkpoint-1").exists());
}

#[test]
fn a_model_of_the_hub_is_found_in_its_cache() {
    let harness = Harness::new("hub");
    succeed(&mut harness.train(&["--steps", "1"]));
    let repository = harness.path("hf/hub/models--some-one--tiny-model");
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::create_dir_all(repository.join("snapshots")).unwrap();
    std::fs::write(repository.join("refs/main"), "0123abcd").unwrap();
    std::fs::rename(harness.path("run"), repository.join("snapshots/0123abcd")).unwrap();
    let arguments = ["text", "--from", "some-one/tiny-model", "--steps", "2", "--block-size", "16"];
    let mut command = harness.bare(&arguments);
    command.env_remove("HF_HUB_CACHE").env("HF_HOME", harness.path("hf"));
    let stdout = succeed(command.args(["--sample-tokens", "0", "--device", "cpu"]));
    assert!(stdout.contains("M parameters, fine-tuned from some-one/tiny-model\n"), "{stdout}");
    let lr = "\nlr          3.0e-4 (for fine-tuning, a tenth of preset tiny's), warm-up 0 steps, ";
    assert!(stdout.contains(lr), "{stdout}");
    let info = |variable: &str, path: &str| {
        let mut command = harness.program(&["info", "some-one/tiny-model"]);
        command.env_remove("HF_HUB_CACHE").env_remove("HF_HOME").env(variable, harness.path(path));
        succeed(&mut command)
    };
    assert_eq!(info("HF_HUB_CACHE", "hf/hub"), info("HF_HOME", "hf"));
    // The rate of a user comes from nowhere else.
    let mut command = harness.bare(&arguments);
    command.env_remove("HF_HUB_CACHE").env("HF_HOME", harness.path("hf"));
    command.args(["--sample-tokens", "0", "--device", "cpu", "--lr", "1e-5", "--out", "slow"]);
    assert!(succeed(&mut command).contains("\nlr          1.0e-5, warm-up 0 steps, "));
}

#[test]
fn evaluations_that_do_not_improve_end_a_run() {
    let harness = Harness::new("early");
    // A rate of nothing improves nothing.
    let settings = ["--lr", "1e-30", "--eval-interval", "2", "--early-stop", "3"];
    let stdout = succeed(&mut harness.train(&settings));
    let end = "\nstopped early at step 6 of 40: no lower held-out loss in 3 evaluations; resume \
               with: taipan train --resume --out run\n";
    assert!(stdout.ends_with(end), "{stdout}");
    assert!(
        harness.path("run/checkpoint-6").exists() && !harness.path("run/checkpoint-8").exists()
    );
    // Resumed in the middle it ends at the same step, and resumed at its end at once.
    succeed(harness.train(&settings).args(["--out", "halves", "--stop-after", "5"]));
    for _ in 0..2 {
        succeed(&mut harness.bare(&["--resume", "--out", "halves"]));
        harness.assert_same("run", "halves", 6);
    }
    succeed(&mut harness.bare(&["--resume", "--out", "run", "--early-stop", "0", "--steps", "8"]));
    assert!(harness.path("run/checkpoint-8").exists());
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
    let train = |sample: &str, more: &[&str]| {
        let mut command = harness.bare(&small);
        command.args(["--block-size", "16", "--sample-tokens", "8", "--sample", sample]);
        succeed(command.args(more))
    };
    let stdout = train("The", &[]);
    assert!(stdout.contains("little stories, since no FILES are given"), "{stdout}");
    assert!(stdout.contains("\nThe"), "the sample begins with the prompt: {stdout}");
    assert!(harness.path("taipan-run/model.safetensors").exists());
    let stdout = train("pub fn ", &["--corpus", "sources", "--out", "sources"]);
    assert!(stdout.contains("taipan's own sources"), "{stdout}");
    assert!(stdout.contains("\npub fn "), "the sample begins with the prompt: {stdout}");
}

#[test]
fn the_help_tells_defaults() {
    let help = succeed(&mut Harness::new("help").bare(&["--help"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "[default: stories]",
        "[one of tiny, small, 130m, 370m, 790m, 1.4b, 2.8b, mamba2-tiny, ",
        "State size per channel [default: 16]",
        "[default: taipan-run]",
        "[default: --lr / 10]",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
