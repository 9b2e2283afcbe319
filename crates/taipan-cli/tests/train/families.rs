//! Other mixers, and adapters, from the command line.

use serde_json::Value;

use crate::harness::{Harness, fail, succeed};

#[test]
fn mamba2_is_trained_and_resumed() {
    let harness = Harness::new("mamba2");
    let arch = ["--arch", "mamba2", "--head-dim", "8"];
    let with = |more: &[&'static str]| [&arch[..], more].concat();
    let text = succeed(&mut harness.train(&with(&["--out", "whole", "--steps", "6"])));
    assert!(text.contains("Mamba-2, width 16, layers 1, state 4, tied head, f32"), "{text}");
    let stop = with(&["--out", "parts", "--steps", "6", "--stop-after", "3"]);
    succeed(&mut harness.train(&stop));
    succeed(&mut harness.bare(&["--resume", "--out", "parts"]));
    harness.assert_same("whole", "parts", 6);
    let config: Value = serde_json::from_slice(&harness.read("whole/config.json")).unwrap();
    assert_eq!((&config["model_type"], &config["num_heads"]), (&"mamba2".into(), &4.into()));

    let info = succeed(&mut harness.program(&["info", "whole"]));
    assert!(info.starts_with("Mamba-2, ") && info.contains("state 4, 4 heads of 8, "), "{info}");
    succeed(&mut harness.program(&["generate", "whole", "--prompt", "1 times", "-n", "4"]));
    let look = fail(&mut harness.program(&["look", "whole", "--text", "1 times"]), 1);
    assert!(look.contains("a model of Mamba-2, expected the scans of Mamba"), "{look}");
    let differs = ["text", "--from", "whole", "--arch", "mamba", "--out", "no"];
    let differs = fail(&mut harness.bare(&differs), 2);
    assert!(differs.contains("--arch is \"mamba\", but in whole it is \"mamba2\""), "{differs}");
    let original = ["convert", "whole", "original", "--layout", "original"];
    succeed(&mut harness.program(&original));
    succeed(&mut harness.program(&["convert", "original", "again"]));
    assert_eq!(harness.read("again/model.safetensors"), harness.read("whole/model.safetensors"));
}

#[test]
fn adapters_are_trained_resumed_and_merged() {
    let harness = Harness::new("lora");
    succeed(&mut harness.train(&["--out", "base", "--steps", "4"]));
    let tune = |out: &'static str, more: &[&'static str]| {
        let lora = ["text", "--from", "base", "--lora", "2", "--lora-dropout", "0.1"];
        let small = ["--batch-size", "2", "--block-size", "16", "--device", "cpu", "--lr", "0.01"];
        let rest = ["--sample-tokens", "0", "--steps", "6", "--out", out];
        harness.bare(&[&lora[..], &small, &rest, more].concat())
    };
    let text = succeed(&mut tune("whole", &[]));
    assert!(text.contains("adapters of rank 2 on in_proj, x_proj"), "{text}");
    succeed(&mut tune("parts", &["--stop-after", "3"]));
    succeed(&mut harness.bare(&["--resume", "--out", "parts"]));
    for file in ["adapter_model.safetensors", "checkpoint-6/trainer.json", "metrics.jsonl"] {
        let [one, other] = ["whole", "parts"].map(|run| harness.read(&format!("{run}/{file}")));
        assert!(one == other, "{file}");
    }
    assert!(!harness.path("whole/model.safetensors").exists());

    let generate = |arguments: &[&str]| {
        let ids = ["--prompt", "3 times", "-n", "8", "--temperature", "0"];
        succeed(&mut harness.program(&[&["generate"], arguments, &ids].concat()))
    };
    let adapted = generate(&["base", "--adapter", "whole"]);
    assert_eq!(generate(&["whole"]), adapted, "it names its model");
    let merge = ["convert", "base", "merged", "--adapter", "whole", "--merge"];
    succeed(&mut harness.program(&merge));
    assert_eq!(generate(&["merged"]), adapted);
    let loss = |arguments: &[&str]| -> f64 {
        let all = [&["eval"], arguments, &["text", "--json", "--window", "16"]].concat();
        let report: Value = serde_json::from_str(&succeed(&mut harness.program(&all))).unwrap();
        report["loss"].as_f64().unwrap()
    };
    let (before, after) = (loss(&["base"]), loss(&["base", "--adapter", "whole"]));
    assert!(after < before, "{after}, before {before}");
    assert!((loss(&["merged"]) - after).abs() < 1e-4);
    let info = succeed(&mut harness.program(&["info", "whole"]));
    assert!(info.contains("backbone.layers.*.mixer.x_proj  1 × rank 2"), "{info}");

    let refused = fail(&mut tune("no", &["--lora-targets", "dt_proj"]), 1);
    assert!(refused.contains("dt_proj cannot be adapted"), "{refused}");
    let refused = fail(&mut harness.program(&["convert", "base", "no", "--merge"]), 2);
    assert!(refused.contains("--merge needs --adapter"), "{refused}");
}
