//! Text to tokens, and tokens to batches.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use taipan_lm::data::{Dataset, Order, Reason, Sources, Split};
use taipan_lm::{Batch, IGNORE, Tokenizer};

/// A directory for one test, removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("taipan-data-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Document `i` is `sizes[i]` times the letter `i`, from `A` on.
fn letters(sizes: &[usize]) -> Sources {
    let text = |(i, size): (usize, &usize)| (format!("{i}"), letter(i).repeat(*size));
    Sources::texts(sizes.iter().enumerate().map(text))
}

fn letter(i: usize) -> String {
    char::from_u32('A' as u32 + i as u32).unwrap().to_string()
}

const ALL: Split = Split { held_out: 0.0, least: 0, seed: 0 };

/// Words without end, the same for the same seed.
fn words(seed: u64, bytes: usize) -> String {
    let (mut state, mut text) = (seed, String::new());
    while text.len() < bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let word = ["the ", "cat", "né\n", "  if x {", "日本語", "\r\n", "0042 ", "🙂", "wörter"];
        text += word[(state >> 33) as usize % word.len()];
    }
    text
}

fn build(directory: &Directory, sources: &Sources, split: &Split) -> Dataset {
    Dataset::build(directory.cache(), sources, &Tokenizer::bytes(), split).unwrap()
}

fn error<T>(result: taipan_lm::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

/// A tokenizer of letters, without a token for the end of a document.
fn without_end() -> Tokenizer {
    let vocab: Vec<String> =
        ('A'..='Z').zip(0..).map(|(c, id)| format!(r#""{c}": {id}"#)).collect();
    let model = r#""type": "BPE", "merges": [], "vocab""#;
    let json = format!(r#"{{"version": "1.0", "model": {{{model}: {{{}}}}}}}"#, vocab.join(","));
    Tokenizer::from_json(&json).unwrap()
}

#[test]
fn targets_are_the_next_tokens_and_starts_where_documents_begin() {
    let directory = Directory::new("targets");
    let data = build(&directory, &letters(&[3, 1, 5]), &ALL);
    let ring = b"\0AAA\0B\0CCCCC".map(u32::from);
    assert_eq!((data.train_tokens(), data.train_documents(), data.bytes()), (12, 3, 9));
    let len = ring.len();
    let Batch { ids, targets, starts, .. } = data.batch(&Order { seed: 3, rows: 1, len }, 0);
    let shift = (0..len).find(|shift| (0..len).all(|i| ids[i] == ring[(i + shift) % len]));
    let shift = shift.expect("the ring, from some place on");
    for i in 0..len {
        assert_eq!(targets[i], ring[(i + shift + 1) % len], "the last predicts the end");
        assert_eq!(starts[i] == 1, ring[(i + shift) % len] == 0);
    }
}

#[test]
fn without_an_end_nothing_is_predicted_across_documents() {
    let directory = Directory::new("without-end");
    let tokenizer = without_end();
    assert_eq!((tokenizer.end(), tokenizer.vocab_size()), (None, 26));
    let split = Split { held_out: 0.5, least: 0, seed: 0 };
    let sources = letters(&[3, 3, 3, 3]);
    let data = Dataset::build(directory.cache(), &sources, &tokenizer, &split).unwrap();
    assert_eq!((data.train_tokens(), data.held_out_tokens()), (6, 6));
    let (batch, bytes) = data.held_out(1, 6, 6).next().unwrap();
    assert_eq!(batch.starts, [1, 0, 0, 1, 0, 0]);
    assert_eq!(batch.targets[2], IGNORE);
    assert_eq!(batch.targets[5], IGNORE);
    assert_eq!(bytes, 4, "of the targets that count");
    let batch = data.batch(&Order { seed: 0, rows: 1, len: 6 }, 0);
    assert_eq!(batch.targets.iter().filter(|target| **target == IGNORE).count(), 2);
}

/// The first two tokens of the rows of batches: where they begin, in a text of distinct pairs.
fn places(data: &Dataset, order: &Order, batches: std::ops::Range<u64>) -> Vec<u32> {
    let place = |ids: &[u32]| ids[0] | ids[1] << 8;
    let first = |index| {
        let batch = data.batch(order, index);
        batch.ids.chunks(order.len).map(place).collect::<Vec<_>>()
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
    for (len, rows) in [(2, 3), (7, 4), (64, 1), (100, 2), (1800, 1), (3000, 1)] {
        let order = Order { seed: 9, rows, len };
        let blocks = order.blocks(tokens);
        assert_eq!(blocks, tokens / len as u64);
        // As many batches as epochs have blocks, so that `rows` epochs end where a batch does.
        let rows_of = |order: &Order| places(&data, order, 0..2 * blocks);
        let found = rows_of(&order);
        let epochs: Vec<&[u32]> = found.chunks(blocks as usize).collect();
        assert_eq!(epochs.len(), 2 * rows);
        for epoch in &epochs {
            let distinct: BTreeSet<_> = epoch.iter().collect();
            assert_eq!(distinct.len() as u64, blocks, "len {len}: each place once");
        }
        let orders: BTreeSet<_> = epochs.iter().collect();
        assert_eq!(orders.len(), epochs.len(), "len {len}: no epoch is like another");
        let cuts: BTreeSet<BTreeSet<_>> = epochs.iter().map(|e| e.iter().collect()).collect();
        assert_eq!(cuts.len(), epochs.len(), "len {len}: the cuts move");
        assert_ne!(rows_of(&Order { seed: 10, ..order }), found, "len {len}: seeds differ");
    }
}

#[test]
fn the_blocks_of_an_epoch_do_not_overlap() {
    let directory = Directory::new("cover");
    // 26 documents of a token each, and as many ends: every letter is visited once.
    let data = build(&directory, &letters(&[1; 26]), &ALL);
    for (len, blocks) in [(1, 52), (2, 26), (4, 13), (13, 4), (26, 2), (52, 1)] {
        for epoch in 0..3 {
            let batch = data.batch(&Order { seed: 1, rows: blocks, len }, epoch);
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
    let order = Order { seed: 5, rows: 1, len: 2 };
    let places = places(&data, &order, 0..order.blocks(data.train_tokens()));
    // Of a random order, half of the neighbours rise; 1 770 of them, so 21 is a standard deviation.
    let rising = places.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(rising.abs_diff(places.len() / 2) < 100, "{rising} of {}", places.len());
}

#[test]
fn batches_are_the_same_after_reopening_and_rebuilding() {
    let directory = Directory::new("reopen");
    let sources =
        Sources::texts([("a", words(1, 9000)), ("b", words(2, 500)), ("c", words(3, 700))]);
    let split = Split { held_out: 0.1, least: 0, seed: 4 };
    let order = Order { seed: 8, rows: 3, len: 50 };
    let take = |data: &Dataset| (0..500).map(|i| data.batch(&order, i)).collect::<Vec<_>>();
    let data = build(&directory, &sources, &split);
    let (fingerprint, batches) = (data.fingerprint().to_owned(), take(&data));
    let reopened = Dataset::open(directory.cache()).unwrap();
    assert_eq!((reopened.fingerprint(), take(&reopened)), (&*fingerprint, batches.clone()));
    assert_eq!(reopened.batch(&order, 499), batches[499], "any index, at once");
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
    let (bytes, tenth) = (Tokenizer::bytes(), Split { held_out: 0.1, least: 0, seed: 0 });
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABC")]), &bytes, &ALL);
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABD")]), &bytes, &ALL);
    add(&Sources::texts([("x", "ABCDEFGHIJ\0ABC")]), &bytes, &ALL);
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABC")]), &bytes, &tenth);
    add(&Sources::texts([("x", "ABCDEFGHIJ"), ("y", "ABC")]), &without_end(), &ALL);
}

#[test]
fn a_split_is_disjoint_covers_everything_and_is_reproducible() {
    let directory = Directory::new("split");
    let sizes: Vec<usize> = (0..26).map(|i| 10 + i * 7 % 23).collect();
    let total: usize = sizes.iter().sum();
    let held_out = |fraction, seed| {
        let split = Split { held_out: fraction, least: 0, seed };
        let data = build(&directory, &letters(&sizes), &split);
        assert_eq!(data.bytes(), total as u64);
        let order = Order { seed: 0, rows: 1, len: data.train_tokens() as usize };
        let mut both = data.batch(&order, 0).ids;
        let held_out: Vec<u32> =
            data.held_out(1, 1000, 1000).flat_map(|(batch, _)| batch.ids).collect();
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
    let split = Split { held_out: 0.25, least: 0, seed: 0 };
    let data = build(&directory, &letters(&[10; 20]), &split);
    assert_eq!((data.train_documents(), data.held_out_documents()), (15, 5));
    assert_eq!(data.held_out_tokens(), 55);
}

#[test]
fn the_end_of_the_largest_document_is_held_out_where_none_fits() {
    let directory = Directory::new("tail");
    let split = Split { held_out: 0.1, least: 0, seed: 0 };
    let data = build(&directory, &letters(&[100, 300, 200]), &split);
    assert_eq!((data.train_documents(), data.held_out_documents()), (3, 1));
    let (batch, bytes) = data.held_out(1, 61, 100).next().unwrap();
    assert_eq!((batch.ids[0], &batch.ids[1..], bytes), (0, &[u32::from(b'B'); 60][..], 60));
    // Cut between characters, though the fraction ends inside one: 3 of 30 bytes are 1.5 of these.
    let path = directory.write("é.txt", "é".repeat(15));
    let data = build(&directory, &Sources::find([path]).unwrap(), &split);
    let (batch, bytes) = data.held_out(1, 3, 100).next().unwrap();
    assert_eq!((batch.ids, bytes), (vec![0, 0xc3, 0xa9], 2));
}

#[test]
fn little_text_has_a_least_part_held_out() {
    let directory = Directory::new("least");
    let least = |bytes, size| {
        let split = Split { held_out: 0.01, least: bytes, seed: 0 };
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
    let split = Split { held_out: 0.5, least: 0, seed: 0 };
    for tokenizer in [Tokenizer::bytes(), bpe] {
        let data = Dataset::build(directory.cache(), &sources, &tokenizer, &split).unwrap();
        let all = data.held_out_tokens();
        let (whole, text) = data.held_out(1, all as usize, all).next().unwrap();
        assert!(all > 200 && text + data_train_bytes(&data, &tokenizer) == data.bytes());
        for (rows, len) in [(1, 1), (3, 7), (2, 64), (5, 1000)] {
            let (mut ids, mut targets, mut bytes) = (vec![], vec![], 0);
            for (batch, part) in data.held_out(rows, len, u64::MAX) {
                assert_eq!((batch.len, batch.ids.len()), (len, batch.rows * len));
                assert!(batch.rows <= rows && batch.rows > 0);
                ids.extend(batch.ids);
                targets.extend(batch.targets);
                bytes += part;
            }
            assert_eq!((&ids[..all as usize], bytes), (&whole.ids[..], text));
            assert!(targets[all as usize..].iter().all(|target| *target == IGNORE), "padding");
            targets.truncate(all as usize);
            assert_eq!(targets, whole.targets);
            let first: u64 = data
                .held_out(rows, len, 100)
                .map(|(batch, _)| {
                    batch.targets.iter().filter(|target| **target != IGNORE).count() as u64
                })
                .sum();
            assert_eq!(first, 100);
        }
        assert_eq!(data.held_out(0, 8, 100).count() + data.held_out(8, 0, 100).count(), 0);
    }
}

/// Bytes of the training text, by decoding all of it.
fn data_train_bytes(data: &Dataset, tokenizer: &Tokenizer) -> u64 {
    let order = Order { seed: 0, rows: 1, len: data.train_tokens() as usize };
    let mut ids = data.batch(&order, 0).ids;
    let first = ids.iter().position(|id| *id == 0).unwrap();
    ids.rotate_left(first);
    ids.retain(|id| *id != 0);
    tokenizer.decode(&ids).unwrap().len() as u64
}

#[test]
fn bytes_of_text_follow_the_tokens() {
    let directory = Directory::new("lengths");
    let sources = Sources::texts([("a", "ABAB AB".repeat(9)), ("b", "é AB é AB".repeat(7))]);
    let bpe = Tokenizer::train_bpe(&sources, 259).unwrap();
    let split = Split { held_out: 0.99, least: 0, seed: 0 };
    let data = Dataset::build(directory.cache(), &sources, &bpe, &split).unwrap();
    for (batch, bytes) in data.held_out(1, 1, u64::MAX) {
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
    let (batch, bytes) = data.held_out(1, 5, 5).next().unwrap();
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
    let expected = "data: 4 bytes of text, expected enough to hold out a part of it";
    assert_eq!(build("\u{1f642}"), expected, "a character is not cut");
    assert_eq!(build("x"), "data: no tokens, expected some to learn from");
}

#[test]
fn too_little_text_for_a_block_is_an_error() {
    let directory = Directory::new("little");
    let split = Split { held_out: 0.1, least: 0, seed: 0 };
    let data = build(&directory, &letters(&[100]), &split);
    assert_eq!((data.train_tokens(), data.held_out_tokens()), (91, 11));
    data.check(10).unwrap();
    let held_out = "data: 11 tokens of held-out text, expected 12 or more for a block of 11";
    assert_eq!(error(data.check(11)), held_out);
    let train = "data: 91 tokens of training text, expected 92 or more for a block of 91";
    assert_eq!(error(data.check(91)), train);
    build(&directory, &letters(&[100]), &ALL).check(100).unwrap();
    // A batch is a batch all the same: the ring goes round.
    let batch = data.batch(&Order { seed: 0, rows: 2, len: 200 }, u64::MAX);
    assert_eq!((batch.ids.len(), batch.starts.iter().sum::<u32>() >= 4), (400, true));
    assert!(data.batch(&Order { seed: 0, rows: 2, len: 0 }, 1).ids.is_empty());
}

#[test]
fn files_directories_and_patterns_are_found() {
    let directory = Directory::new("find");
    let root = directory.0.display().to_string();
    for name in ["b.txt", "a.txt", "deep/c.rs", "deep/er/d.txt", "z[1].txt"] {
        directory.write(name, name);
    }
    directory.write(".hidden/x.txt", "x");
    directory.write("deep/.y.txt", "y");
    directory.write("image.png", b"\x89PNG\0\0");
    directory.write("empty.txt", "");
    let found = |names: &[&str]| {
        let sources = Sources::find(names.iter().map(|name| format!("{root}/{name}"))).unwrap();
        let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().display().to_string();
        let skip =
            |file: &taipan_lm::data::Skipped| format!("{} {}", relative(&file.path), file.reason);
        let skipped: Vec<_> = sources.skipped().iter().map(skip).collect();
        // Every document is its own name.
        let data = build(&Directory::new("found"), &sources, &ALL);
        let order = Order { seed: 0, rows: 1, len: data.train_tokens() as usize };
        let mut ids: Vec<u8> = data.batch(&order, 0).ids.iter().map(|id| *id as u8).collect();
        let first = ids.iter().position(|id| *id == 0).unwrap();
        ids.rotate_left(first + 1);
        ids.pop();
        let mut names: Vec<String> =
            ids.split(|id| *id == 0).map(|name| String::from_utf8(name.into()).unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), sources.len());
        (names.join(" "), skipped.join(", "))
    };
    let both = |names: &str, skipped: &str| (names.to_owned(), skipped.to_owned());
    assert_eq!(
        found(&[""]),
        both(
            "a.txt b.txt deep/c.rs deep/er/d.txt z[1].txt",
            ".hidden hidden, deep/.y.txt hidden, empty.txt empty, image.png binary"
        )
    );
    assert_eq!(found(&["*.txt"]), both("a.txt b.txt z[1].txt", "empty.txt empty"));
    assert_eq!(found(&["**/*.txt"]).0, "a.txt b.txt deep/er/d.txt z[1].txt");
    assert_eq!(found(&["?.txt", "deep"]).0, "a.txt b.txt deep/c.rs deep/er/d.txt");
    assert_eq!(found(&["[ab].txt", "deep/er"]).0, "a.txt b.txt deep/er/d.txt");
    assert_eq!(found(&["z[1].txt"]).0, "z[1].txt", "a file's name goes before a pattern");
    assert_eq!(found(&["a.txt", "deep/../a.txt"]), both("a.txt", "deep/../a.txt named twice"));
    for pattern in ["deep/**", "d*", "deep/**/*", "deep/*"] {
        assert_eq!(found(&[pattern]).0, "deep/c.rs deep/er/d.txt");
        assert!(!found(&[pattern]).1.contains("twice"), "{pattern}");
    }
}

#[cfg(unix)]
#[test]
fn links_lead_to_files_but_not_in_circles() {
    let directory = Directory::new("links");
    directory.write("text/a.txt", "a");
    let outside = directory.write("b.txt", "b");
    std::os::unix::fs::symlink(outside, directory.0.join("text/link")).unwrap();
    std::os::unix::fs::symlink(&directory.0, directory.0.join("text/circle")).unwrap();
    let sources = Sources::find([directory.0.join("text")]).unwrap();
    assert_eq!(sources.len(), 2);
    assert_eq!(sources.skipped()[0].reason, Reason::Link);
    let broken = directory.0.join("text/broken");
    std::os::unix::fs::symlink("nowhere", &broken).unwrap();
    let shown = format!("{}: No such file or directory", broken.display());
    assert!(
        error(Sources::find([directory.0.join("text")])).starts_with(&shown),
        "never passed over"
    );
}

#[test]
fn what_leads_to_no_text_is_an_error() {
    let directory = Directory::new("no-text");
    let find = |name: &str| {
        let path = directory.0.join(name);
        error(Sources::find([&path])).replace(&directory.0.display().to_string(), "D")
    };
    directory.write("only/image.png", b"\0");
    directory.write("only/empty", "");
    assert_eq!(find("missing.txt"), "D/missing.txt: no such file or directory");
    assert_eq!(find("*.md"), "D/*.md: no text files found");
    assert_eq!(
        find("only"),
        "D/only: no text files found; of 2 skipped, the first, D/only/empty, is empty"
    );
    assert_eq!(find("only/image.png"), "D/only/image.png: binary, expected UTF-8 text");
    assert_eq!(find("only/empty"), "D/only/empty: empty, expected UTF-8 text");
    assert!(find("a[").contains("D/a[: "), "{}", find("a["));
    let none = Sources::texts::<String, String>([]);
    let built = Dataset::build(directory.cache(), &none, &Tokenizer::bytes(), &ALL);
    assert_eq!(error(built), "data: no text, expected some to learn from");
    let built = Dataset::build(directory.cache(), &letters(&[0]), &Tokenizer::bytes(), &ALL);
    assert_eq!(error(built), "data: no text, expected some to learn from");
    for (held_out, shown) in [(1.0, "1"), (-0.1, "-0.1"), (f64::NAN, "NaN")] {
        let split = Split { held_out, ..ALL };
        let built = Dataset::build(directory.cache(), &letters(&[9]), &Tokenizer::bytes(), &split);
        let expected = format!("held-out part: a fraction of {shown}, expected 0 to less than 1");
        assert_eq!(error(built), expected);
    }
}

#[test]
fn invalid_utf8_is_an_error_with_its_place() {
    let directory = Directory::new("utf8");
    let chunk = 32 << 10;
    for at in [0, 1, 100, chunk - 2, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 3 * chunk] {
        for line in [usize::MAX, 77] {
            // A text of letters of two bytes with a bad byte at `at`.
            let mut bytes: Vec<u8> = "é".bytes().cycle().take(at & !1).collect();
            bytes.resize(at, b'x');
            (line..at).step_by(line.max(2) & !1).for_each(|i| bytes[i & !1..][..2].fill(b'\n'));
            bytes.push(0xff);
            bytes.extend(b"and so on".repeat(1000));
            let path = directory.write("bad.txt", &bytes);
            let sources = Sources::find([&path]).unwrap();
            let built = Dataset::build(directory.cache(), &sources, &Tokenizer::bytes(), &ALL);
            let place = format!("no UTF-8: the byte at offset {at} is 0xff");
            assert_eq!(error(built), format!("{}: {place}", path.display()));
            let split = Split { held_out: 0.5, ..ALL };
            let built = Dataset::build(directory.cache(), &sources, &Tokenizer::bytes(), &split);
            assert!(error(built).ends_with(&place), "in a part of a document");
            assert!(Dataset::open(directory.cache()).is_err());
            assert_eq!(fs::read_dir(directory.cache()).unwrap().count(), 0, "nothing is left");
        }
    }
    // A character that the end of the file cuts off.
    let path = directory.write("cut.txt", b"caf\xc3");
    let sources = Sources::find([&path]).unwrap();
    let built = Dataset::build(directory.cache(), &sources, &Tokenizer::bytes(), &ALL);
    assert!(error(built).ends_with("cut.txt: no UTF-8: the byte at offset 3 is 0xc3"));
}

#[test]
fn characters_survive_the_borders_of_pieces() {
    let directory = Directory::new("borders");
    for text in [words(7, 100_000), "é".repeat(50_000), "日".repeat(33_333), "🙂".repeat(20_000)]
    {
        for shift in ["", "x", "xx", "xxx"] {
            let text = shift.to_owned() + &text;
            let path = directory.write("text.txt", &text);
            let data = build(&directory, &Sources::find([path]).unwrap(), &ALL);
            assert_eq!(data.train_tokens(), text.len() as u64 + 1);
            let len = text.len() + 1;
            let mut ids = data.batch(&Order { seed: 0, rows: 1, len }, 0).ids;
            let first = ids.iter().position(|id| *id == 0).unwrap();
            ids.rotate_left(first + 1);
            ids.pop();
            assert!(Tokenizer::bytes().decode(&ids).unwrap() == text);
        }
    }
}

#[test]
fn a_cache_that_is_not_whole_is_refused() {
    let directory = Directory::new("broken");
    let split = Split { held_out: 0.5, ..ALL };
    let open = || error(Dataset::open(directory.cache()));
    let fresh = || build(&directory, &letters(&[10, 10, 10, 10]), &split).fingerprint().to_owned();
    assert!(open().contains("manifest.json: "), "{}", open());
    for file in [
        "train.tokens",
        "train.documents",
        "held_out.tokens",
        "held_out.documents",
        "held_out.lengths",
    ] {
        fresh();
        let path = directory.cache().join(file);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (found, expected) = (bytes.len() - 1, bytes.len());
        let why = format!("{file}: {found} bytes, expected {expected} by manifest.json");
        assert!(open().ends_with(&why), "{}", open());
        fs::write(&path, [&bytes[..], &[0; 8]].concat()).unwrap();
        assert!(open().contains(file));
        fs::remove_file(&path).unwrap();
        assert!(open().contains(file));
    }
    fresh();
    let path = directory.cache().join("train.documents");
    fs::write(&path, [[0, 99].map(u64::to_le_bytes).concat()].concat()).unwrap();
    assert!(open().ends_with("train.documents: not the places of documents among 22 tokens"));
    fresh();
    let path = directory.cache().join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    for (old, new, why) in [
        ("tokens 1", "tokens 2", "format \"taipan tokens 2\", expected \"taipan tokens 1\""),
        ("\"width\": 1", "\"width\": 2", "2 bytes per token, expected 1"),
        ("\"format\"", "\"name\"", "not the manifest of a token cache: "),
        ("\"train\"", "\"strain\"", "not the manifest of a token cache: "),
    ] {
        assert!(manifest.contains(old));
        fs::write(&path, manifest.replace(old, new)).unwrap();
        assert!(open().contains(why), "{}", open());
    }
    fs::write(&path, &manifest[..manifest.len() / 2]).unwrap();
    assert!(open().contains("not the manifest of a token cache: "));
    fresh();
    Dataset::open(directory.cache()).unwrap();
}

#[test]
fn a_build_that_fails_keeps_the_cache_that_was_there() {
    let directory = Directory::new("fails");
    let fingerprint = build(&directory, &letters(&[10]), &ALL).fingerprint().to_owned();
    let bad = directory.write("bad.txt", b"bad \xff");
    let sources = Sources::find([bad]).unwrap();
    error(Dataset::build(directory.cache(), &sources, &Tokenizer::bytes(), &ALL));
    assert_eq!(Dataset::open(directory.cache()).unwrap().fingerprint(), fingerprint);
}

#[test]
fn tokens_are_as_wide_as_the_vocabulary_needs() {
    let directory = Directory::new("width");
    let sources = Sources::texts([("a", words(5, 20_000))]);
    let bpe = Tokenizer::train_bpe(&sources, 270).unwrap();
    // The same, but for a token with a large id, which leaves a hole.
    let json = bpe.to_json().replace("\"vocab\":{", "\"vocab\":{\"zz\":70000,");
    let wide = Tokenizer::from_json(&json).unwrap();
    assert_eq!(wide.vocab_size(), 70001);
    for (tokenizer, width) in [(Tokenizer::bytes(), 1), (bpe, 2), (wide, 4)] {
        let data = Dataset::build(directory.cache(), &sources, &tokenizer, &ALL).unwrap();
        let file = fs::metadata(directory.cache().join("train.tokens")).unwrap();
        assert_eq!(file.len(), width * data.train_tokens());
        let order = Order { seed: 0, rows: 1, len: data.train_tokens() as usize };
        assert!(data.batch(&order, 0).ids.iter().any(|id| *id >= 128));
        assert_eq!(data_train_bytes(&data, &tokenizer), 20_000.max(data.bytes()));
    }
}
