//! A corpus need not fit into memory: an allocator counts what a build holds.

#[path = "../../taipan/tests/harness/allocator.rs"]
mod allocator;

use std::fs::{self, File};
use std::io::{BufWriter, Write};

use allocator::usage;
use taipan_lm::Tokenizer;
use taipan_lm::data::{Dataset, Order, Sources, Split};

const MIB: usize = 1 << 20;

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
    let (data, taken) = usage(build);
    assert!(taken.peak < 24 * MIB, "{taken:?} while 36 MiB of bytes are tokenised");
    let (data, all) = (data.unwrap(), 36 * MIB as u64);
    assert_eq!((data.bytes(), data.train_tokens() + data.held_out_tokens()), (all, all + 2));
    let (batch, taken) =
        usage(|| data.batch(&Order { seed: 0, batch_size: 8, block_size: 256 }, 1 << 40).unwrap());
    assert!(batch.ids.len() == 2048 && taken.peak < MIB, "{taken:?} for a batch");

    let bpe = Tokenizer::train_bpe(&Sources::texts([("line", line.repeat(100))]), 270).unwrap();
    let short = directory.join("short.txt");
    fs::write(&short, line.repeat(4 * MIB / 64)).unwrap();
    let short = Sources::find([short]).unwrap();
    let (data, taken) = usage(|| Dataset::build(directory.join("bpe"), &short, &bpe, &split));
    assert!(taken.peak < 24 * MIB, "{taken:?} while 4 MiB are tokenised, some 100 bytes per token");
    assert_eq!(data.unwrap().bytes(), 4 * MIB as u64);
    fs::remove_dir_all(&directory).unwrap();
}
