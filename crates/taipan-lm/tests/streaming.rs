//! A corpus need not fit into memory: an allocator counts what a build holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use taipan_lm::Tokenizer;
use taipan_lm::data::{Dataset, Order, Sources, Split};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;

/// What `work` holds at most, more than before it.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (result, PEAK.load(Relaxed) - before)
}

/// One test, so that nothing else allocates.
#[test]
fn memory_does_not_grow_with_the_corpus() {
    let directory = std::env::temp_dir().join(format!("taipan-streaming-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (lines, line) =
        (32 * MIB / 64, "The quick brown fox jumps over the lazy dog, né, 0123456789 ab\n");
    assert_eq!(line.len(), 64);
    let corpus = directory.join("corpus.txt");
    let mut file = BufWriter::new(File::create(&corpus).unwrap());
    (0..lines).for_each(|_| file.write_all(line.as_bytes()).unwrap());
    // And a line that is longer than any piece.
    (0..4 * MIB).for_each(|_| file.write_all(b"x").unwrap());
    file.flush().unwrap();
    let sources = Sources::find([&corpus]).unwrap();
    let split = Split { held_out: 0.02, ..Split::default() };

    let build = || Dataset::build(directory.join("bytes"), &sources, &Tokenizer::bytes(), &split);
    let (data, held) = peak(build);
    assert!(held < 24 * MIB, "{held} bytes held while 36 MiB of bytes are tokenised");
    let (data, all) = (data.unwrap(), 36 * MIB as u64);
    assert_eq!((data.bytes(), data.train_tokens() + data.held_out_tokens()), (all, all + 2));
    let (batch, held) =
        peak(|| data.batch(&Order { seed: 0, batch_size: 8, block_size: 256 }, 1 << 40).unwrap());
    assert!(batch.ids.len() == 2048 && held < MIB, "{held} bytes held for a batch");

    let bpe = Tokenizer::train_bpe(&Sources::texts([("line", line.repeat(100))]), 270).unwrap();
    let short = directory.join("short.txt");
    fs::write(&short, line.repeat(4 * MIB / 64)).unwrap();
    let short = Sources::find([short]).unwrap();
    let (data, held) = peak(|| Dataset::build(directory.join("bpe"), &short, &bpe, &split));
    assert!(
        held < 24 * MIB,
        "{held} bytes held while 4 MiB are tokenised, some 100 bytes per token"
    );
    assert_eq!(data.unwrap().bytes(), 4 * MIB as u64);
    fs::remove_dir_all(&directory).unwrap();
}
