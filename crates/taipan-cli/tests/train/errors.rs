//! What cannot be done is refused with its reason: exit code 2 for what was asked, 1 for what went
//! wrong.

use crate::harness::{Harness, fail, succeed};
use crate::tree::Tree;

#[test]
fn invalid_settings_are_wrong_usage() {
    let harness = Harness::new("usage");
    harness.write("key.toml", "steps = 3\nd-modle = 16\n");
    harness.write("type.toml", "steps = 'many'\n");
    harness.write("both.toml", "tokenizer = 'a'\ntrain-tokenizer = 300\n");
    harness.write("resume.toml", "resume = true\n");
    for (arguments, text) in [
        (&["--bogus"][..], "unexpected argument '--bogus'"),
        (&["--steps", "many"], "invalid value 'many' for '--steps <N>'"),
        (&["--steps", "0"], "--steps is 0, expected 1 to 1099511627776"),
        (&["--max-time", "90"], "\"90\" is no time, expected one as 90s, 10m or 1h"),
        (&["--preset", "huge"], "--preset: huge found, expected one of tiny, small, 130m"),
        (&["--dtype", "f8"], "invalid value 'f8' for '--dtype <TYPE>'"),
        (&["--lr", "1e-4", "--min-lr", "1e-3"], "--min-lr is 0.001, expected 0 to 0.0001"),
        (&["--d-state", "300"], "--d-state is 300, expected 1 to 256"),
        (&["--beta2", "1"], "--beta2 is 1, expected at least 0 and below 1"),
        (&["--threads", "0"], "--threads is 0, expected 1 to 1024"),
        (&["--grad-clip=-1"], "--grad-clip is -1, expected a positive number"),
        (&["--steps", "5", "--stop-after", "6"], "--stop-after is 6, expected 1 to 5"),
        (&["--tokenizer", "a", "--train-tokenizer", "300"], "cannot be used with"),
        (
            &["--preset", "small", "--from", "x"],
            "--preset and --from both determine the model's shape",
        ),
        (&["--config", "key.toml"], "key.toml: TOML parse error at line 2, column 1"),
        (&["--config", "key.toml"], "unknown field `d-modle`"),
        (&["--config", "type.toml"], "invalid type: string \"many\", expected u64"),
        (&["--config", "both.toml"], "--tokenizer and --train-tokenizer cannot be used together"),
        (&["--config", "resume.toml"], "unknown field `resume`"),
    ] {
        let error = fail(&mut harness.bare(arguments), 2);
        assert!(error.contains(text), "{arguments:?}: {error}");
        assert!(!harness.path("taipan-run").exists(), "{arguments:?}");
    }
}

#[test]
fn what_is_not_there_or_is_no_text_fails() {
    let harness = Harness::new("failures");
    harness.write("empty", "");
    harness.write("tiny", "a text of a few bytes");
    harness.write("broken", [b"0123456789".as_slice(), b"\xff\n"].concat());
    harness.write("tokenizer.json", "{}");
    for (arguments, text) in [
        (&["no-such-file"][..], "no-such-file: no such file"),
        (&["empty"], "empty: "),
        (&["tiny"], "expected 257 or more for a block of 256"),
        (&["text", "broken", "--strict"], "broken: not valid UTF-8: byte at offset 10"),
        (&["text", "--tokenizer", "tokenizer.json"], "tokenizer.json: "),
        (&["text", "--config", "no.toml"], "--config: no.toml: No such file"),
        (&["text", "--from", "nowhere"], "nowhere/config.json: No such file"),
        (
            &["text", "--from", "state-spaces/mamba-130m-hf"],
            "state-spaces/mamba-130m-hf: no such file or directory, and not in Hugging Face's \
             cache (/nowhere/hub); to download it: hf download state-spaces/mamba-130m-hf",
        ),
        (&["text", "--device", "no such thing"], "no adapter is \"no such thing\""),
        (&["text", "--freeze", "layer*"], "matches no parameter"),
        (&["--resume"], "nothing to resume: taipan-run/train.toml: No such file"),
    ] {
        let mut command = harness.bare(arguments);
        command.env_remove("HF_HUB_CACHE").env("HF_HOME", "/nowhere");
        let error = fail(&mut command, 1);
        assert!(error.starts_with("error: ") && error.contains(text), "{arguments:?}: {error}");
        assert!(!harness.path("taipan-run").exists(), "{arguments:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_model_that_does_not_fit_is_refused_at_once() {
    let harness = Harness::new("memory");
    let error = fail(&mut harness.bare(&["text", "--d-model", "131072", "--n-layer", "1000"]), 1);
    assert!(error.starts_with("error: memory: training 1"), "{error}");
    assert!(error.contains("is free; less is needed with a smaller --batch-size"), "{error}");
    assert!(!harness.path("taipan-run").exists());
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let harness = Harness::new("infinite");
    let wild = ["--lr", "1e30", "--warmup", "0", "--grad-clip", "0", "--save-interval", "1"];
    let error = fail(&mut harness.train(&wild), 1);
    assert!(error.starts_with("error: step "), "{error}");
    assert!(error.contains("expected a finite number"), "{error}");
    assert!(error.contains(" is complete; to resume from it: "), "{error}");
}

#[test]
fn a_run_is_never_overwritten() {
    let harness = Harness::new("overwritten");
    succeed(&mut harness.train(&["--steps", "2"]));
    let before = harness.read("run/model.safetensors");
    let error = fail(&mut harness.train(&["--steps", "3"]), 2);
    let text = "error: --out: run is not empty; --resume continues the run in it, --overwrite \
                replaces it\n";
    assert_eq!(error, text);
    assert_eq!(harness.read("run/model.safetensors"), before);
    // A directory that is there and empty is as good as a new one, and stays when nothing comes of
    // it.
    std::fs::create_dir(harness.path("empty")).unwrap();
    fail(&mut harness.bare(&["no-such-file", "--out", "empty"]), 1);
    succeed(&mut harness.train(&["--steps", "2", "--out", "empty"]));
}

#[test]
fn a_run_is_overwritten_when_that_is_asked_for() {
    let harness = Harness::new("replaced");
    succeed(&mut harness.train(&["--steps", "4", "--tensorboard"]));
    let before = Tree::read(&harness.path("run"));
    // Nothing is removed for a run that cannot begin, or if anything else is in the directory.
    let overwrite = ["--overwrite", "--steps", "2"];
    fail(harness.train(&overwrite).args(["--tokenizer", "nowhere"]), 1);
    for (foreign, shown) in [
        ("notes.txt", "run/notes.txt"),
        ("data/mine", "run/data/mine"),
        ("checkpoint-4/mine", "run/checkpoint-4/mine"),
        ("checkpoint-best", "run/checkpoint-best"),
    ] {
        harness.write(&format!("run/{foreign}"), "the user's own");
        let error = fail(&mut harness.train(&overwrite), 2);
        let why = "is not a file of a run; nothing was removed";
        assert_eq!(error, format!("error: --overwrite: {shown} {why}\n"));
        std::fs::remove_file(harness.path(&format!("run/{foreign}"))).unwrap();
    }
    Tree::read(&harness.path("run")).compare(&before).unwrap();
    succeed(&mut harness.train(&overwrite));
    succeed(&mut harness.train(&["--steps", "2", "--out", "other"]));
    harness.assert_same("run", "other", 2);
    assert!(!harness.path("run/checkpoint-4").exists());
    // What is no run is not overwritten, and a new directory may be.
    std::fs::create_dir(harness.path("own")).unwrap();
    harness.write("own/model.safetensors", "the user's own");
    let error = fail(harness.train(&overwrite).args(["--out", "own"]), 2);
    assert!(error.contains("own is not empty and is not a run"), "{error}");
    succeed(harness.train(&overwrite).args(["--out", "new"]));
    fail(harness.train(&overwrite).arg("--resume"), 2);
}

#[test]
fn a_run_is_resumed_with_its_own_settings() {
    let harness = Harness::new("settings");
    succeed(&mut harness.train(&["--stop-after", "10"]));
    for (arguments, text) in [
        (
            &["--d-model", "32"][..],
            "--d-model is 32, but the run in run has 16; with --resume only these may change: \
             --steps, ",
        ),
        (&["--seed", "1"], "--seed is 1, but the run in run has 0"),
        (&["other"], "FILES is [\"other\"], but the run in run has [\"text\"]"),
        (&["--steps", "5"], "--steps is 5, but run is at step 10"),
        (&["--stop-after", "5"], "--stop-after is 5, but run is at step 10"),
    ] {
        let error = fail(harness.bare(&["--resume", "--out", "run"]).args(arguments), 2);
        assert!(error.starts_with(&format!("error: {text}")), "{arguments:?}: {error}");
    }
    // The same settings, given again, are no change.
    succeed(&mut harness.train(&["--resume", "--stop-after", "11"]));
}

#[test]
fn a_checkpoint_of_another_shape_is_refused() {
    let harness = Harness::new("shape");
    succeed(&mut harness.train(&["--stop-after", "10"]));
    let config = harness.text("run/checkpoint-10/config.json");
    let wider = config.replace("\"hidden_size\": 16", "\"hidden_size\": 32");
    assert_ne!(config, wider);
    harness.write("run/checkpoint-10/config.json", wider);
    let error = fail(&mut harness.bare(&["--resume", "--out", "run"]), 1);
    let start = "error: run/checkpoint-10/config.json: the checksum is ";
    assert!(error.starts_with(start), "{error}");
}

/// Four processes would train four times, in one directory.
#[test]
#[cfg(not(feature = "mpi"))]
fn without_mpi_a_job_of_several_processes_is_refused() {
    let harness = Harness::new("launched");
    for (variables, launcher) in [
        (["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], "mpirun"),
        (["PMI_RANK", "PMI_SIZE"], "mpiexec"),
        (["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], "srun"),
    ] {
        let [rank, size] = variables;
        let job = |number: &str, of: &str| {
            let mut command = harness.train(&["--steps", "1"]);
            command.env(rank, number).env(size, of);
            command
        };
        let expected = format!(
            "error: {launcher} has started 4 processes, but this program was built without MPI: \
             each of them would do the same; build it with --features mpi\n"
        );
        assert_eq!(fail(&mut job("0", "4"), 2), expected);
        assert_eq!(fail(&mut job("3", "4"), 2), "", "one message");
        assert!(!harness.path("run").exists());
    }
    let mut alone = harness.train(&["--steps", "1"]);
    alone.env("OMPI_COMM_WORLD_RANK", "0").env("OMPI_COMM_WORLD_SIZE", "1");
    succeed(alone.env("SLURM_NTASKS", "8"));
}
