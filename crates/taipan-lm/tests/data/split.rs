//! What is held out.

use super::*;

#[test]
fn a_split_is_disjoint_covers_everything_and_is_reproducible() {
    let directory = Directory::new("split");
    let sizes: Vec<usize> = (0..26).map(|i| 10 + i * 7 % 23).collect();
    let total: usize = sizes.iter().sum();
    let held_out = |fraction, seed| {
        let split = Split { held_out: fraction, min_bytes: 0, seed };
        let data = build(&directory, &letters(&sizes), &split);
        assert_eq!(data.bytes(), total as u64);
        let order = Order { seed: 0, batch_size: 1, block_size: data.train_tokens() as usize };
        let mut both = data.batch(&order, 0).unwrap().ids;
        let held_out: Vec<u32> = data
            .held_out(1, 1000, 1000)
            .map(Result::unwrap)
            .flat_map(|(batch, _)| batch.ids)
            .collect();
        let held_out = &held_out[..data.held_out_tokens() as usize];
        both.extend(held_out);
        both.sort();
        let letters = both.into_iter().filter(|id| *id != 0).collect::<Vec<_>>();
        let expected = sizes.iter().zip(b'A'..).flat_map(|(size, id)| vec![u32::from(id); *size]);
        assert_eq!(letters, expected.collect::<Vec<_>>(), "nothing is lost or doubled");
        held_out.to_vec()
    };
    for fraction in [0.05, 0.1, 0.5, 0.9] {
        let chosen = held_out(fraction, 1);
        let share = chosen.iter().filter(|id| **id != 0).count() as f64 / total as f64;
        assert!(share <= fraction && share > 0.75 * fraction, "{share} of {fraction}");
        assert_eq!(held_out(fraction, 1), chosen);
        assert_ne!(held_out(fraction, 2), chosen);
    }
    assert!(held_out(0.0, 1).is_empty());
}

#[test]
fn whole_documents_are_held_out_where_they_fit() {
    let directory = Directory::new("whole");
    let split = Split { held_out: 0.25, min_bytes: 0, seed: 0 };
    let data = build(&directory, &letters(&[10; 20]), &split);
    assert_eq!((data.train_documents(), data.held_out_documents()), (15, 5));
    assert_eq!(data.held_out_tokens(), 55);
}

#[test]
fn the_end_of_the_largest_document_is_held_out_where_none_fits() {
    let directory = Directory::new("tail");
    let split = Split { held_out: 0.1, min_bytes: 0, seed: 0 };
    let data = build(&directory, &letters(&[100, 300, 200]), &split);
    assert_eq!((data.train_documents(), data.held_out_documents()), (3, 1));
    let (batch, bytes) = data.held_out(1, 61, 100).map(Result::unwrap).next().unwrap();
    assert_eq!((batch.ids[0], &batch.ids[1..], bytes), (0, &[u32::from(b'B'); 60][..], 60));
    // Cut between characters, though the fraction ends inside one: 3 of 30 bytes are 1.5 of these.
    let path = directory.write("é.txt", "é".repeat(15));
    let data = build(&directory, &Sources::find([path]).unwrap(), &split);
    let (batch, bytes) = data.held_out(1, 3, 100).map(Result::unwrap).next().unwrap();
    assert_eq!((batch.ids, bytes), (vec![0, 0xc3, 0xa9], 2));
}

#[test]
fn little_text_has_a_least_part_held_out() {
    let directory = Directory::new("least");
    let least = |bytes, size| {
        let split = Split { held_out: 0.01, min_bytes: bytes, seed: 0 };
        build(&directory, &letters(&[size]), &split).held_out_tokens()
    };
    assert_eq!(least(40, 1000), 41);
    assert_eq!(least(40, 10_000), 101, "the fraction is more");
    assert_eq!(least(40, 60), 31, "never more than a half");
}

#[test]
fn held_out_batches_have_every_token_and_byte_once() {
    let directory = Directory::new("held-out");
    let sources = Sources::texts((0..9).map(|i| (format!("{i}"), words(i, 400))));
    let bpe = Tokenizer::train_bpe(&sources, 300).unwrap();
    let split = Split { held_out: 0.5, min_bytes: 0, seed: 0 };
    for tokenizer in [Tokenizer::bytes(), bpe] {
        let data = Dataset::build(directory.cache(), &sources, &tokenizer, &split).unwrap();
        let all = data.held_out_tokens();
        let (whole, text) = data.held_out(1, all as usize, all).map(Result::unwrap).next().unwrap();
        assert!(all > 200 && text + data_train_bytes(&data, &tokenizer) == data.bytes());
        for (batch_size, block_size) in [(1, 1), (3, 7), (2, 64), (5, 1000)] {
            let (mut ids, mut targets, mut bytes) = (vec![], vec![], 0);
            for (batch, text_bytes) in
                data.held_out(batch_size, block_size, u64::MAX).map(Result::unwrap)
            {
                assert_eq!(
                    (batch.block_size, batch.ids.len()),
                    (block_size, batch.batch_size * block_size)
                );
                assert!(batch.batch_size <= batch_size && batch.batch_size > 0);
                ids.extend(batch.ids);
                targets.extend(batch.targets);
                bytes += text_bytes;
            }
            assert_eq!((&ids[..all as usize], bytes), (&whole.ids[..], text));
            assert!(targets[all as usize..].iter().all(|target| *target == IGNORE), "padding");
            targets.truncate(all as usize);
            assert_eq!(targets, whole.targets);
            let first: u64 = data
                .held_out(batch_size, block_size, 100)
                .map(Result::unwrap)
                .map(|(batch, _)| {
                    batch.targets.iter().filter(|target| **target != IGNORE).count() as u64
                })
                .sum();
            assert_eq!(first, 100);
        }
        assert_eq!(
            data.held_out(0, 8, 100).map(Result::unwrap).count()
                + data.held_out(8, 0, 100).map(Result::unwrap).count(),
            0
        );
    }
}

#[test]
fn bytes_of_text_follow_the_tokens() {
    let directory = Directory::new("lengths");
    let sources = Sources::texts([("a", "ABAB AB".repeat(9)), ("b", "é AB é AB".repeat(7))]);
    let bpe = Tokenizer::train_bpe(&sources, 259).unwrap();
    let split = Split { held_out: 0.99, min_bytes: 0, seed: 0 };
    let data = Dataset::build(directory.cache(), &sources, &bpe, &split).unwrap();
    for (batch, bytes) in data.held_out(1, 1, u64::MAX).map(Result::unwrap) {
        let expected = match bpe.decode(&batch.targets).unwrap() {
            // The first byte of é has both.
            half if half == "\u{fffd}" => [2, 0][usize::from(batch.ids[0] == 1 + 0xc3)],
            text => text.len() as u64,
        };
        assert_eq!(bytes, expected, "{batch:?}");
    }
}

#[test]
fn bytes_that_no_token_has_count_too() {
    let directory = Directory::new("dropped");
    let json = r#"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "<eos>": 1, "a": 2}}}"#;
    let tokenizer = Tokenizer::from_json(json).unwrap();
    let sources = Sources::texts([("a", "  a a  b  a   "), ("b", "aa a aa a aa a aa")]);
    let split = Split { held_out: 0.5, ..ALL };
    let data = Dataset::build(directory.cache(), &sources, &tokenizer, &split).unwrap();
    assert_eq!((data.train_tokens(), data.held_out_tokens()), (8, 5));
    let (batch, bytes) = data.held_out(1, 5, 5).map(Result::unwrap).next().unwrap();
    assert_eq!((batch.ids, bytes), (vec![1, 2, 2, 0, 2], 14));
}

#[test]
fn nothing_to_hold_out_is_an_error() {
    let directory = Directory::new("nothing");
    let split = Split { held_out: 0.1, ..ALL };
    let build = |text| {
        let sources = Sources::texts([("one", text)]);
        error(Dataset::build(directory.cache(), &sources, &Tokenizer::bytes(), &split))
    };
    let expected = "data: 4 bytes of text, expected enough to hold some out";
    assert_eq!(build("\u{1f642}"), expected, "a character is not cut");
    assert_eq!(build("x"), "data: no tokens, expected some to train on");
}

#[test]
fn too_little_text_for_a_block_is_an_error() {
    let directory = Directory::new("little");
    let split = Split { held_out: 0.1, min_bytes: 0, seed: 0 };
    let data = build(&directory, &letters(&[100]), &split);
    assert_eq!((data.train_tokens(), data.held_out_tokens()), (91, 11));
    data.check(10).unwrap();
    let held_out = "data: 11 tokens of held-out text, expected 12 or more for a block of 11";
    assert_eq!(error(data.check(11)), held_out);
    let train = "data: 91 tokens of training text, expected 92 or more for a block of 91";
    assert_eq!(error(data.check(91)), train);
    build(&directory, &letters(&[100]), &ALL).check(100).unwrap();
    // A batch has its size all the same: the text is cyclic.
    let batch = data.batch(&Order { seed: 0, batch_size: 2, block_size: 200 }, u64::MAX).unwrap();
    assert_eq!((batch.ids.len(), batch.seq_start.iter().sum::<u32>() >= 4), (400, true));
    assert!(
        data.batch(&Order { seed: 0, batch_size: 2, block_size: 0 }, 1).unwrap().ids.is_empty()
    );
}
