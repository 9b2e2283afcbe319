//! The estimate of memory against what is allocated; in a process of its own, which counts.

#[path = "../../taipan/tests/harness/allocator.rs"]
mod allocator;
#[path = "train/harness.rs"]
mod harness;

use allocator::{live, usage};
use harness::{Run, TEXT, steps};
use taipan::DType;
use taipan_lm::{Activations, Config, LayerKind, Memory, Preset, Recipe, Tokenizer, Trainer};

/// The most that a run of two steps has at a time, and the estimate.
fn run(run: Run) -> (u64, u64) {
    let (data, tokenizer) = (run.data(&TEXT.repeat(20)), Tokenizer::bytes());
    let mut trainer = Trainer::new(run.model(), data, tokenizer, run.recipe.clone()).unwrap();
    let before = live();
    let usage = usage(|| steps(&mut trainer, 2)).1;
    let estimate = Memory::of_training(&run.config, run.dtype, &run.recipe);
    ((before + usage.peak) as u64, estimate.total())
}

#[test]
fn a_run_takes_what_was_estimated() {
    let tiny = Preset::Tiny.config(256);
    let short = Config { layers: vec![LayerKind::Ssm; 2], ..tiny.clone() };
    let wide = Config { layers: vec![LayerKind::Ssm; 2], ..Preset::Small.config(50000) };
    let (f32, bf16) = (DType::F32, DType::BF16);
    let (saved, recomputed) = (Activations::Saved, Activations::Recomputed);
    // From the smaller to the larger, since buffers of an earlier run may still wait for others of
    // their size.
    for (config, dtype, [batch_size, block_size, grad_accum], activations) in [
        (short, f32, [2, 128, 1], saved),
        (tiny.clone(), bf16, [4, 256, 1], saved),
        (tiny.clone(), f32, [8, 256, 1], recomputed),
        (Preset::HybridTiny.config(256), f32, [4, 256, 1], saved),
        (tiny, f32, [8, 256, 2], saved),
        (wide, f32, [1, 64, 1], saved),
    ] {
        let mut small = Run { config, dtype, ..Run::new() };
        small.recipe = Recipe { batch_size, block_size, grad_accum, activations, ..small.recipe };
        let (taken, estimate) = run(small);
        println!(
            "{dtype}, {batch_size}×{block_size}, {activations:?}: {taken}, estimated {estimate}"
        );
        assert!(taken <= estimate, "{taken} taken, {estimate} estimated");
        assert!(estimate <= taken * 3 / 2, "{taken} taken, {estimate} estimated");
    }
}
