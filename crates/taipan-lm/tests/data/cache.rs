//! What is on disk.

use super::*;

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
