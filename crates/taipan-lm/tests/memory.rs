//! The estimate of memory against what is allocated; in a process of its own, which counts.

mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use harness::{Run, steps};
use taipan::DType;
use taipan_lm::{Activations, Config, Memory, Preset};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work; the counts are beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_run_takes_what_was_estimated() {
    // From the smaller to the larger: buffers wait for their like to be used again.
    for (config, dtype, rows, len, activations) in [
        (
            Config { num_hidden_layers: 2, ..Preset::Tiny.config(256) },
            DType::F32,
            2,
            128,
            Activations::Kept,
        ),
        (Preset::Tiny.config(256), DType::BF16, 4, 256, Activations::Kept),
        (Preset::Tiny.config(256), DType::F32, 8, 256, Activations::Recomputed),
        (Preset::Tiny.config(256), DType::F32, 8, 256, Activations::Kept),
        (
            Config { num_hidden_layers: 2, ..Preset::Small.config(50000) },
            DType::F32,
            1,
            64,
            Activations::Kept,
        ),
    ] {
        let mut run = Run { config, dtype, ..Run::new() };
        run.recipe.batch_size = rows;
        run.recipe.block_size = 16;
        let data = run.data(&harness::TEXT.repeat(20));
        run.recipe.block_size = len;
        run.recipe.activations = activations;
        let before = LIVE.load(Ordering::Relaxed);
        let model = run.model();
        let recipe = run.recipe.clone();
        let tokenizer = taipan_lm::Tokenizer::bytes();
        let mut trainer = taipan_lm::Trainer::new(model, data, tokenizer, recipe).unwrap();
        PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
        steps(&mut trainer, 2);
        let taken = PEAK.load(Ordering::Relaxed);
        let estimate = Memory::of_training(&run.config, dtype, &run.recipe);
        eprintln!(
            "{dtype} {rows}x{len} {activations:?}: {taken} (before {before}), estimate {} {estimate:?}",
            estimate.total()
        );
    }
}
