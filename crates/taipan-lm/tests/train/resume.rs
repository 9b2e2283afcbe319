//! A run that was interrupted leaves the same bytes as one that was not.

use crate::harness::{Run, files, steps};
use taipan::check::devices;
use taipan::{DType, Device};
use taipan_lm::Recipe;

/// 40 steps at once, and twice 20 with a checkpoint between: every file is the same.
fn check(run: impl Fn() -> Run) {
    let (whole, parts) = (run(), run());
    let mut trainer = whole.begin();
    let reports = steps(&mut trainer, 40);
    assert!(reports.iter().all(|report| report.loss.is_finite()));
    pollster::block_on(trainer.evaluate(u64::MAX)).unwrap();
    trainer.save_blocking(whole.path(), 2).unwrap();

    let mut trainer = parts.begin();
    let first = steps(&mut trainer, 20);
    assert_eq!(first, reports[..20], "two runs are the same");
    trainer.save_blocking(parts.path(), 2).unwrap();
    drop(trainer);
    let mut trainer = parts.resume().unwrap();
    assert_eq!((trainer.steps_done(), trainer.checkpoint()), (20, Some(&*parts.checkpoint(20))));
    let second = steps(&mut trainer, 20);
    assert_eq!(second, reports[20..], "the same steps follow");
    pollster::block_on(trainer.evaluate(u64::MAX)).unwrap();
    trainer.save_blocking(parts.path(), 2).unwrap();

    let (expected, found) = (files(&whole.checkpoint(40)), files(&parts.checkpoint(40)));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    assert_eq!(expected.len(), 7);
    for (name, bytes) in expected {
        assert!(found[&name] == bytes, "{name} differs");
    }
}

#[test]
fn in_f32() {
    check(Run::new);
}

#[test]
fn in_f32_with_several_batches_per_step() {
    check(|| {
        let mut run = Run::new();
        run.recipe.grad_accum = 3;
        run
    });
}

#[test]
fn in_bf16_with_master_weights() {
    check(|| Run { dtype: DType::BF16, ..Run::new() });
}

#[test]
fn in_f16_with_a_loss_scale() {
    check(|| {
        let recipe = Recipe { grad_accum: 2, ..Run::new().recipe };
        Run { dtype: DType::F16, recipe, ..Run::new() }
    });
}

#[test]
fn with_an_untied_head_and_frozen_layers() {
    check(|| {
        let mut run = Run::new();
        run.config.tie_word_embeddings = false;
        run.recipe.freeze = vec!["backbone.layers.0.*".into()];
        run
    });
}

#[test]
fn on_a_gpu() {
    for device in devices().into_iter().filter(|device| *device != Device::Cpu) {
        check(|| Run { device: device.clone(), ..Run::new() });
        if device.supports(DType::F16) {
            check(|| Run { device: device.clone(), dtype: DType::F16, ..Run::new() });
        }
    }
}

#[test]
fn activations_do_not_change_the_result() {
    let run = Run::new();
    let mut other = Run::new();
    other.recipe.activations = taipan_lm::Activations::Recomputed;
    assert_eq!(steps(&mut run.begin(), 3), steps(&mut other.begin(), 3));
}
