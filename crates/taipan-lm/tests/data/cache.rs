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
    assert!(open().ends_with("train.documents: not the offsets of documents among 22 tokens"));
    fresh();
    let path = directory.cache().join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    for (old, new, why) in [
        ("tokens 2", "tokens 1", "format \"taipan tokens 1\", expected \"taipan tokens 2\""),
        ("\"width\": 1", "\"width\": 2", "it was changed after it was written"),
        ("\"documents\": 2", "\"documents\": 1", "it was changed after it was written"),
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
fn bytes_that_were_changed_are_noticed() {
    let directory = Directory::new("changed");
    let split = Split { held_out: 0.5, ..ALL };
    build(&directory, &letters(&[10, 10, 10, 10]), &split);
    Dataset::open(directory.cache()).unwrap();
    for file in fs::read_dir(directory.cache()).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        for place in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[place] ^= 4;
            fs::write(&path, changed).unwrap();
            let error = error(Dataset::open(directory.cache()));
            assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
        }
        fs::write(&path, bytes).unwrap();
    }
    let path = directory.cache().join("train.tokens");
    fs::write(&path, b"\0CCCCCCCCCC\0DDDDDDDDDD").unwrap();
    let error = error(Dataset::open(directory.cache()));
    assert!(error.contains("train.tokens: the checksum is "), "{error}");
    assert!(error.ends_with(": it was changed after it was written"), "{error}");
}

#[test]
fn a_file_that_is_shortened_while_in_use_is_an_error() {
    let directory = Directory::new("shortened");
    let split = Split { held_out: 0.5, ..ALL };
    let data = build(&directory, &letters(&[4000, 4000]), &split);
    let order = Order { seed: 0, batch_size: 2, block_size: 4000 };
    for (name, bytes) in [("train.tokens", 4001), ("held_out.tokens", 4001)] {
        let path = directory.cache().join(name);
        fs::File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        let error = match name {
            "train.tokens" => error(data.batch(&order, 0)),
            _ => error(data.held_out(1, 4000, 4000).next().unwrap()),
        };
        let why = format!("less than {bytes} bytes: it was shortened while in use");
        assert_eq!(error, format!("{}: {why}", path.display()));
    }
}

#[test]
fn what_a_killed_build_left_is_removed() {
    let directory = Directory::new("left");
    build(&directory, &letters(&[10]), &ALL);
    directory.write("cache/train.tokens.tmp-123", b"half");
    directory.write("cache/manifest.json.tmp-123", b"{");
    directory.write("cache/notes.tmp-123", b"the user's own");
    build(&directory, &letters(&[10]), &ALL);
    let names = fs::read_dir(directory.cache()).unwrap();
    let names: BTreeSet<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let left: Vec<_> = names.iter().filter(|name| name.contains(".tmp")).collect();
    assert_eq!((names.len(), left), (7, vec![&"notes.tmp-123".to_owned()]));
}

#[test]
fn a_build_that_fails_keeps_the_cache_that_was_there() {
    let directory = Directory::new("fails");
    let fingerprint = build(&directory, &letters(&[10]), &ALL).fingerprint().to_owned();
    let bad = directory.write("bad.txt", b"not yet bad");
    let sources = Sources::find([bad]).unwrap();
    directory.write("bad.txt", b"bad \xff");
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
        let order = Order { seed: 0, batch_size: 1, block_size: data.train_tokens() as usize };
        assert!(data.batch(&order, 0).unwrap().ids.iter().any(|id| *id >= 128));
        assert_eq!(data_train_bytes(&data, &tokenizer), 20_000.max(data.bytes()));
    }
}
