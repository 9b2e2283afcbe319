//! What batches are made of, and in which order.

use super::*;

#[test]
fn targets_are_the_next_tokens_and_seq_start_marks_documents() {
    let directory = Directory::new("targets");
    let data = build(&directory, &letters(&[3, 1, 5]), &ALL);
    let text = b"\0AAA\0B\0CCCCC".map(u32::from);
    assert_eq!((data.train_tokens(), data.train_documents(), data.bytes()), (12, 3, 9));
    let len = text.len();
    let Batch { ids, targets, seq_start, .. } =
        data.batch(&Order { seed: 3, batch_size: 1, block_size: len }, 0).unwrap();
    let shift = (0..len).find(|shift| (0..len).all(|i| ids[i] == text[(i + shift) % len]));
    let shift = shift.expect("the text, from some offset on");
    for i in 0..len {
        assert_eq!(targets[i], text[(i + shift + 1) % len], "the last predicts the eos token");
        assert_eq!(seq_start[i] == 1, text[(i + shift) % len] == 0);
    }
}

#[test]
fn without_eos_nothing_is_predicted_across_documents() {
    let directory = Directory::new("without-eos");
    let tokenizer = letters_without_eos();
    assert_eq!((tokenizer.eos_token_id(), tokenizer.vocab_size()), (None, 26));
    let split = Split { held_out: 0.5, min_bytes: 0, seed: 0 };
    let sources = letters(&[3, 3, 3, 3]);
    let data = Dataset::build(directory.cache(), &sources, &tokenizer, &split).unwrap();
    assert_eq!((data.train_tokens(), data.held_out_tokens()), (6, 6));
    let (batch, bytes) = data.held_out(1, 6, 6).map(Result::unwrap).next().unwrap();
    assert_eq!(batch.seq_start, [1, 0, 0, 1, 0, 0]);
    assert_eq!(batch.targets[2], IGNORE);
    assert_eq!(batch.targets[5], IGNORE);
    assert_eq!(bytes, 4, "of the targets that count");
    let batch = data.batch(&Order { seed: 0, batch_size: 1, block_size: 6 }, 0).unwrap();
    assert_eq!(batch.targets.iter().filter(|target| **target == IGNORE).count(), 2);
}

/// The first two tokens of each sequence: its offset, in a text of distinct pairs.
fn offsets(data: &Dataset, order: &Order, batches: std::ops::Range<u64>) -> Vec<u32> {
    let offset = |ids: &[u32]| ids[0] | ids[1] << 8;
    let first = |index| {
        let batch = data.batch(order, index).unwrap();
        batch.ids.chunks(order.block_size).map(offset).collect::<Vec<_>>()
    };
    batches.flat_map(first).collect()
}

/// A text in which no two neighbours occur twice: 0 01 02 … 1 12 13 … and so on.
fn distinct_pairs(letters: u8) -> String {
    let mut text = String::new();
    for a in 0..letters {
        text.push((b'0' + a) as char);
        for b in a + 1..letters {
            text.extend([(b'0' + a) as char, (b'0' + b) as char]);
        }
    }
    text
}

#[test]
fn an_epoch_visits_every_block_once_and_each_epoch_in_another_order() {
    let directory = Directory::new("epochs");
    let text = distinct_pairs(60);
    let tokens = text.len() as u64 + 1;
    let data = build(&directory, &Sources::texts([("pairs", text)]), &ALL);
    for (block_size, batch_size) in [(2, 3), (7, 4), (64, 1), (100, 2), (1800, 1), (3000, 1)] {
        let order = Order { seed: 9, batch_size, block_size };
        let blocks = order.blocks(tokens);
        assert_eq!(blocks, tokens / block_size as u64);
        // As many batches as epochs have blocks, so that `batch_size` epochs end where a batch
        // does.
        let visited = |order: &Order| offsets(&data, order, 0..2 * blocks);
        let found = visited(&order);
        let epochs: Vec<&[u32]> = found.chunks(blocks as usize).collect();
        assert_eq!(epochs.len(), 2 * batch_size);
        for epoch in &epochs {
            let distinct: BTreeSet<_> = epoch.iter().collect();
            assert_eq!(distinct.len() as u64, blocks, "block {block_size}: each offset once");
        }
        let orders: BTreeSet<_> = epochs.iter().collect();
        assert_eq!(orders.len(), epochs.len(), "block {block_size}: no epoch is like another");
        let cuts: BTreeSet<BTreeSet<_>> = epochs.iter().map(|e| e.iter().collect()).collect();
        assert_eq!(cuts.len(), epochs.len(), "block {block_size}: the cuts move");
        assert_ne!(
            visited(&Order { seed: 10, ..order }),
            found,
            "block {block_size}: seeds differ"
        );
    }
}

#[test]
fn the_blocks_of_an_epoch_do_not_overlap() {
    let directory = Directory::new("cover");
    // 26 documents of a token each, and as many ends: every letter is visited once.
    let data = build(&directory, &letters(&[1; 26]), &ALL);
    for (len, blocks) in [(1, 52), (2, 26), (4, 13), (13, 4), (26, 2), (52, 1)] {
        for epoch in 0..3 {
            let batch =
                data.batch(&Order { seed: 1, batch_size: blocks, block_size: len }, epoch).unwrap();
            let mut ids = batch.ids.clone();
            ids.sort();
            let expected = std::iter::repeat_n(0, 26).chain(b'A'.into()..=b'Z'.into());
            assert_eq!(ids, expected.collect::<Vec<u32>>(), "len {len}, epoch {epoch}");
        }
    }
}

#[test]
fn the_order_of_blocks_is_random() {
    let directory = Directory::new("random");
    let text = distinct_pairs(60);
    let data = build(&directory, &Sources::texts([("pairs", text)]), &ALL);
    let order = Order { seed: 5, batch_size: 1, block_size: 2 };
    let offsets = offsets(&data, &order, 0..order.blocks(data.train_tokens()));
    // Of a random order, half of the neighbours rise; 1 770 of them, so 21 is a standard deviation.
    let rising = offsets.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(rising.abs_diff(offsets.len() / 2) < 100, "{rising} of {}", offsets.len());
}

#[test]
fn batches_are_the_same_after_reopening_and_rebuilding() {
    let directory = Directory::new("reopen");
    let sources =
        Sources::texts([("a", words(1, 9000)), ("b", words(2, 500)), ("c", words(3, 700))]);
    let split = Split { held_out: 0.1, min_bytes: 0, seed: 4 };
    let order = Order { seed: 8, batch_size: 3, block_size: 50 };
    let take =
        |data: &Dataset| (0..500).map(|i| data.batch(&order, i).unwrap()).collect::<Vec<_>>();
    let data = build(&directory, &sources, &split);
    let (fingerprint, batches) = (data.fingerprint().to_owned(), take(&data));
    let reopened = Dataset::open(directory.cache()).unwrap();
    assert_eq!((reopened.fingerprint(), take(&reopened)), (&*fingerprint, batches.clone()));
    assert_eq!(reopened.batch(&order, 499).unwrap(), batches[499], "any index, at once");
    let rebuilt = build(&directory, &sources, &split);
    assert_eq!((rebuilt.fingerprint(), take(&rebuilt)), (&*fingerprint, batches.clone()));
    assert_eq!(take(&data), batches, "what is open stays as it was");
}

#[test]
fn fingerprints_tell_texts_borders_splits_and_tokenizers_apart() {
    let directory = Directory::new("fingerprints");
    let mut seen = BTreeSet::new();
    let mut add = |sources: &Sources, tokenizer: &Tokenizer, split: &Split| {
        let data = Dataset::build(directory.cache(), sources, tokenizer, split).unwrap();
        assert!(seen.insert(data.fingerprint().to_owned()), "{sources:?}, {split:?}");
    };
    let (bytes, tenth) = (Tokenizer::bytes(), Split { held_out: 0.1, min_bytes: 0, seed: 0 });
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABC")]), &bytes, &ALL);
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABD")]), &bytes, &ALL);
    add(&Sources::texts([("x", "ABCDEFGHIJ\0ABC")]), &bytes, &ALL);
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABC")]), &bytes, &tenth);
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABC")]), &letters_without_eos(), &ALL);
}
