//! Steps: they learn, and they are what their batches make them.

use std::collections::BTreeSet;

use crate::common::letters_without_eos;
use crate::harness::{Run, TEXT, steps};
use taipan::nn::Module;
use taipan::{DType, Tensor};
use taipan_lm::data::{Dataset, Order, Sources, Split};
use taipan_lm::{IGNORE, LanguageModel, Recipe, Tokenizer, Trainer, best_checkpoint};

/// The bits of every parameter, by name.
fn weights(model: &LanguageModel) -> Vec<(String, Vec<u32>)> {
    let bits = |tensor: &Tensor| {
        let values = tensor.cast(DType::F32).unwrap().read_blocking::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    model.parameters().into_iter().map(|p| (p.name.clone(), bits(p.tensor))).collect()
}

#[test]
fn a_small_text_is_learnt_by_heart() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let mut run = Run { dtype, ..Run::new() };
        run.recipe = Recipe { batch_size: 8, grad_clip: None, weight_decay: 0.0, ..run.recipe };
        run.recipe.schedule.total = 300;
        let mut trainer = run.begin();
        let reports = steps(&mut trainer, 300);
        let (first, last) = (reports[0], reports[299]);
        assert!((first.loss - 256f64.ln()).abs() < 0.2, "{dtype}: {} at first", first.loss);
        assert!(last.loss < 1.2, "{dtype}: {} in the end", last.loss);
        assert_eq!((last.step, last.tokens, last.skipped), (300, 128, 0), "{dtype}");
    }
}

#[test]
fn batches_of_a_step_are_one_batch() {
    let run = |batch_size, grad_accum| {
        let mut run = Run { dtype: DType::F64, ..Run::new() };
        run.recipe = Recipe { batch_size, grad_accum, ..run.recipe };
        steps(&mut run.begin(), 5)
    };
    for (one, several) in run(6, 1).into_iter().zip(run(2, 3)) {
        assert_eq!(one.tokens, several.tokens);
        assert!((one.loss / several.loss - 1.0).abs() < 1e-12, "{one:?} {several:?}");
        assert!((one.grad_norm / several.grad_norm - 1.0).abs() < 1e-6, "{one:?} {several:?}");
    }
}

/// Batches have different numbers of targets where documents end without a token for that: the last
/// letter of one predicts nothing.
#[test]
fn batches_of_a_step_are_weighed_by_their_targets() {
    let run = |batch_size, grad_accum| {
        let mut run = Run { dtype: DType::F64, ..Run::new() };
        run.recipe = Recipe { batch_size, grad_accum, block_size: 4, ..run.recipe };
        let letters = |i: u8| {
            let text: String =
                (0..1 + 7 * (i % 2)).map(|j| (b'A' + (i + j) % 26) as char).collect();
            (i.to_string(), text)
        };
        let sources = Sources::texts((0..60).map(letters));
        let split = Split { held_out: 0.0, ..Split::default() };
        let tokenizer = letters_without_eos();
        let data = Dataset::build(run.path().join("data"), &sources, &tokenizer, &split).unwrap();
        let order = Order { seed: run.recipe.seed, batch_size, block_size: 4 };
        let targets: BTreeSet<usize> = (0..grad_accum as u64)
            .map(|i| data.batch(&order, i).unwrap().targets)
            .map(|targets| targets.iter().filter(|target| **target != IGNORE).count())
            .collect();
        let trainer = Trainer::new(run.model(), data, tokenizer, run.recipe.clone());
        (targets, steps(&mut trainer.unwrap(), 3))
    };
    let (_, whole) = run(6, 1);
    let (targets, several) = run(1, 6);
    assert!(targets.len() > 1, "unequal batches, or nothing is tested: {targets:?}");
    for (one, several) in whole.into_iter().zip(several) {
        assert!((one.loss / several.loss - 1.0).abs() < 1e-12, "{one:?} {several:?}");
        assert!((one.grad_norm / several.grad_norm - 1.0).abs() < 1e-6, "{one:?} {several:?}");
    }
}

#[test]
fn the_learning_rate_is_that_of_the_schedule() {
    let run = Run::new();
    let reports = steps(&mut run.begin(), 12);
    for (i, report) in reports.iter().enumerate() {
        assert_eq!((report.step, report.lr), (i as u64 + 1, run.recipe.schedule.lr(i as u64)));
    }
}

#[test]
fn frozen_parameters_stay_and_all_others_change() {
    let mut run = Run::new();
    run.recipe.freeze = vec!["*.in_proj.weight".into(), "backbone.layers.1.mixer.D".into()];
    let mut trainer = run.begin();
    let before = weights(trainer.model());
    steps(&mut trainer, 2);
    let mut frozen = 0;
    for ((name, before), (_, after)) in before.iter().zip(weights(trainer.model())) {
        let stays = name.contains(".in_proj.weight") || name == "backbone.layers.1.mixer.D";
        frozen += usize::from(stays);
        assert_eq!(*before == after, stays, "{name}");
    }
    assert_eq!(frozen, 5, "two halves of two layers, and one D");
}

#[test]
fn decay_is_for_matrices_alone() {
    let with = |weight_decay| {
        let mut run = Run::new();
        run.recipe.weight_decay = weight_decay;
        let mut trainer = run.begin();
        steps(&mut trainer, 1);
        weights(trainer.model())
    };
    for ((name, without), (_, decayed)) in with(0.0).into_iter().zip(with(0.5)) {
        let matrix = name.contains("_proj.weight")
            || name.contains("conv1d.weight")
            || name.contains("embeddings");
        assert_eq!(without != decayed, matrix, "{name}");
    }
}

#[test]
fn an_evaluation_weighs_batches_by_their_targets() {
    let mut run = Run::new();
    run.recipe.block_size = 5;
    let mut trainer = run.begin();
    let evaluation = pollster::block_on(trainer.evaluate(u64::MAX)).unwrap();
    // The same, one sequence at a time.
    let (mut nats, mut targets, mut bytes) = (0.0, 0, 0);
    for (batch, length) in trainer.dataset().held_out(1, 5, u64::MAX).map(Result::unwrap) {
        let count = batch.targets.iter().filter(|t| **t != taipan_lm::IGNORE).count();
        nats += trainer.model().loss(&batch).unwrap().item().unwrap() * count as f64;
        targets += count;
        bytes += length;
    }
    assert!(targets % 5 != 0, "the last sequence is shorter");
    assert!((evaluation.loss - nats / targets as f64).abs() < 1e-5);
    let bits = nats / std::f64::consts::LN_2 / bytes as f64;
    assert!((evaluation.bits_per_byte.unwrap() - bits).abs() < 1e-5);
}

#[test]
fn tokens_that_stand_for_no_bytes_have_no_bits_per_byte() {
    let run = Run::new();
    // The second of the two tokens of "é" has no bytes of its own. Without a token that ends
    // documents, it is the first target.
    let sources = Sources::texts([("a", "é".repeat(200)), ("b", "é".repeat(200))]);
    let bpe = Tokenizer::train_bpe(&Sources::texts([("c", "abc abc")]), 258).unwrap();
    let json = bpe.to_json().replace("<|endoftext|>", "<|none|>");
    let tokenizer = Tokenizer::from_json(&json).unwrap();
    let split = Split { held_out: 0.5, ..Split::default() };
    let data = Dataset::build(run.path().join("data"), &sources, &tokenizer, &split).unwrap();
    let mut config = run.config.clone();
    config.vocab_size = 258;
    let model = LanguageModel::new(&config, DType::F32, 1, &run.device).unwrap();
    let mut trainer = Trainer::new(model, data, tokenizer, run.recipe.clone()).unwrap();
    let evaluation = pollster::block_on(trainer.evaluate(1)).unwrap();
    assert!(evaluation.loss > 0.0 && evaluation.bits_per_byte.is_none(), "{evaluation:?}");
    trainer.save_blocking(run.path(), 1).unwrap();
    let found = best_checkpoint(run.path()).unwrap().unwrap().1;
    assert!(found == evaluation, "what was saved can be read: {found:?}");
    assert!(run.resume().is_ok());
    assert!(pollster::block_on(trainer.evaluate(2)).unwrap().bits_per_byte.is_some());
}

/// A model whose loss is no number.
fn broken(run: &Run) -> Trainer {
    let mut model = run.model();
    for (name, parameter) in model.parameters_mut() {
        if name == "backbone.norm_f.weight" {
            *parameter = parameter.detached().scale(f64::NAN).unwrap().tracked();
        }
    }
    Trainer::new(model, run.data(TEXT), Tokenizer::bytes(), run.recipe.clone()).unwrap()
}

#[test]
fn a_loss_in_f16_that_is_never_a_number_ends_the_run() {
    let mut trainer = broken(&Run { dtype: DType::F16, ..Run::new() });
    let error = (0..100).find_map(|_| pollster::block_on(trainer.step()).err());
    let error = error.expect("an error within 100 steps").to_string();
    assert!(error.ends_with(": the loss is NaN, expected a finite number"), "{error}");
    assert!(trainer.steps_done() > 10, "a smaller loss scale is tried first: {error}");
}

#[test]
fn a_loss_that_is_no_number_names_its_step() {
    let mut trainer = broken(&Run::new());
    let error = pollster::block_on(trainer.step()).unwrap_err().to_string();
    assert_eq!(error, "step 1: the loss is NaN, expected a finite number");
    let error = pollster::block_on(trainer.evaluate(u64::MAX)).unwrap_err().to_string();
    assert_eq!(error, "evaluate: the loss is NaN, expected a finite number");
}
