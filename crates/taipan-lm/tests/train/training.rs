//! Steps: they learn, and they are what their batches make them.

use crate::harness::{Run, steps};
use taipan::{DType, Tensor};
use taipan_lm::{Mamba, Recipe};

/// The bits of every parameter, by name.
fn weights(model: &Mamba) -> Vec<(String, Vec<u32>)> {
    let bits = |tensor: &Tensor| {
        let values = tensor.cast(DType::F32).unwrap().read_blocking::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    model.parameters().into_iter().map(|p| (p.name.clone(), bits(&p.tensor))).collect()
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
    // The same, one row at a time.
    let (mut nats, mut targets, mut bytes) = (0.0, 0, 0);
    for (batch, length) in trainer.dataset().held_out(1, 5, u64::MAX) {
        let count = batch.targets.iter().filter(|t| **t != taipan_lm::IGNORE).count();
        nats += trainer.model().loss(&batch).unwrap().item().unwrap() * count as f64;
        targets += count;
        bytes += length;
    }
    assert!(targets % 5 != 0, "the last row is shorter");
    assert!((evaluation.loss - nats / targets as f64).abs() < 1e-5);
    let bits = nats / std::f64::consts::LN_2 / bytes as f64;
    assert!((evaluation.bits_per_byte - bits).abs() < 1e-5);
}

#[test]
fn a_loss_that_is_no_number_names_its_step() {
    let run = Run::new();
    let mut model = run.model();
    let (data, tokenizer) = (run.data(crate::harness::TEXT), taipan_lm::Tokenizer::bytes());
    for parameter in model.parameters_mut() {
        if parameter.name == "backbone.norm_f.weight" {
            parameter.tensor = parameter.tensor.detached().scale(f64::NAN).unwrap().tracked();
        }
    }
    let mut trainer = taipan_lm::Trainer::new(model, data, tokenizer, run.recipe.clone()).unwrap();
    let error = pollster::block_on(trainer.step()).unwrap_err().to_string();
    assert_eq!(error, "step 1: the loss is NaN, expected a finite number");
    let error = pollster::block_on(trainer.evaluate(u64::MAX)).unwrap_err().to_string();
    assert_eq!(error, "evaluate: the loss is NaN, expected a finite number");
}
