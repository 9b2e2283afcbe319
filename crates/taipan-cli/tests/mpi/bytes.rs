//! However many processes compute the batches of a step, they leave the same bytes.

use crate::harness::{Harness, succeed};
use crate::{SMALL, harness, mpirun};

/// One process without MPI, then some with it.
fn check(harness: &Harness, arguments: &[&str], ranks: &[usize]) {
    let arguments = [&SMALL[..], arguments].concat();
    succeed(harness.train(&arguments).args(["--out", "alone"]));
    for &ranks in ranks {
        let out = format!("on-{ranks}");
        let mut command = harness.train(&arguments);
        let shown = succeed(&mut mpirun(ranks, command.args(["--out", &out])));
        assert_eq!(shown.matches(" for training, ").count(), 1, "one summary: {shown}");
        harness.assert_same("alone", &out, 6);
    }
}

#[test]
fn in_f32_with_clipping() {
    let arguments = ["--d-model", "24", "--grad-clip", "0.1"];
    check(&harness("f32"), &arguments, &[1, 2, 3, 4]);
}

#[test]
fn in_bf16_with_frozen_parameters() {
    let arguments = ["--dtype", "bf16", "--freeze", "*.in_proj.weight", "--untied"];
    check(&harness("bf16"), &arguments, &[2, 3, 4]);
}

#[test]
fn with_adapters() {
    let harness = harness("lora");
    succeed(harness.train(&["--out", "base"]).args(["--steps", "2"]));
    let mut arguments = vec!["--from", "base", "--lora", "4", "--lora-dropout", "0.1"];
    // Of the model, which --from has.
    harness.write("small.toml", "");
    arguments.extend(SMALL);
    let config = "out = 'run'\neval-tokens = 256\nsample-tokens = 0\nthreads = 1\ndevice = 'cpu'\n";
    harness.write("lora.toml", config);
    let train = |out: &str| {
        let mut command = harness.bare(&["--config", "lora.toml", "--out", out]);
        command.args(&arguments);
        command
    };
    succeed(&mut train("alone"));
    for ranks in [2, 3] {
        let out = format!("on-{ranks}");
        succeed(&mut mpirun(ranks, &train(&out)));
        for file in ["adapter_model.safetensors", "trainer.safetensors", "trainer.json"] {
            let read = |run: &str| harness.read(&format!("{run}/checkpoint-6/{file}"));
            assert!(read("alone") == read(&out), "{file} on {ranks}");
        }
    }
}

#[test]
fn a_checkpoint_is_resumed_on_another_number_of_ranks() {
    let harness = harness("resumed");
    succeed(harness.train(&SMALL).args(["--out", "alone"]));
    let mut begun = harness.train(&SMALL);
    succeed(&mut mpirun(4, begun.args(["--out", "parts", "--stop-after", "2"])));
    let resume = ["--resume", "--out", "parts"];
    succeed(&mut mpirun(3, harness.bare(&resume).args(["--stop-after", "4"])));
    succeed(&mut harness.bare(&resume));
    harness.assert_same("alone", "parts", 6);
}

/// Without --grad-accum, each process computes one batch.
#[test]
fn a_step_has_as_many_batches_as_there_are_ranks() {
    let harness = harness("default");
    succeed(&mut mpirun(3, harness.train(&["--steps", "2"]).args(["--out", "on-3"])));
    let settings = harness.text("on-3/train.toml");
    assert!(settings.contains("\ngrad-accum = 3\n"), "{settings}");
    let alone = ["--steps", "2", "--grad-accum", "3", "--out", "alone"];
    succeed(&mut harness.train(&alone));
    for file in ["model.safetensors", "checkpoint-2/trainer.safetensors"] {
        let read = |run: &str| harness.read(&format!("{run}/{file}"));
        assert!(read("alone") == read("on-3"), "{file}");
    }
}

#[test]
fn a_benchmark_shows_what_is_sent() {
    let harness = harness("bench");
    let mut bench = harness.program(&["bench", "step", "--json", "--device", "cpu"]);
    bench.args(["--d-model", "64", "--n-layer", "1", "--batch-size", "1", "--rounds", "2"]);
    let shown = succeed(&mut mpirun(2, &bench));
    let report: serde_json::Value = serde_json::from_str(&shown).expect(&shown);
    let gradient = 4.0 * report["parameters"].as_f64().unwrap();
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        let sent = rank["sent_bytes"].as_f64().unwrap() / gradient;
        assert!((1.0..1.05).contains(&sent), "{sent} times the gradient");
        let time = ["compute_ms", "waiting_ms"].map(|key| rank[key].as_f64().unwrap());
        assert!(time.iter().all(|ms| *ms > 0.0), "{time:?}");
    }
}
