//! Text in lines of JSON and in compressed files.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    compress_to_vec(text, CompressionLevel::Fastest)
}

/// The documents, in their order.
fn documents(sources: &Sources) -> Vec<String> {
    let tokenizer = Tokenizer::bytes();
    let text = |document| {
        let chunks = sources.encoded(document, &tokenizer).unwrap();
        chunks.map(|chunk| tokenizer.decode(&chunk.unwrap().0).unwrap()).collect()
    };
    (0..sources.len()).map(text).collect()
}

const LINES: &str = "{\"text\": \"one\\nand é \\ud83d\\ude42\", \"id\": 7}\n\
                     \n  {\"id\": [1, {}], \"text\": \"two\"}\r\n\
                     {\"text\": \"\"}\n{\"body\": \"x\", \"text\": \"three\"}";

#[test]
fn lines_of_json_are_documents() {
    let directory = Directory::new("json");
    let path = directory.write("a.jsonl", LINES);
    let expected = ["one\nand é 🙂", "two", "three"];
    assert_eq!(documents(&Sources::find([&path]).unwrap()), expected);
    assert_eq!(documents(&Sources::read("a.ndjson", LINES.as_bytes(), "text").unwrap()), expected);
    let options = FindOptions { text_key: "body".into(), ..FindOptions::default() };
    let shown = path.display();
    assert_eq!(
        error(options.find([&path])),
        format!("{shown}:1: no key \"body\", found \"id\", \"text\"")
    );
}

#[test]
fn lines_that_are_no_text_are_errors_with_their_place() {
    let read =
        |text: &str| error(Sources::read("a.jsonl", Vec::from(text).leak() as &[u8], "text"));
    assert_eq!(
        read("{\"text\": \"a\"}\n{\"id\": 1}\n"),
        "a.jsonl:2: no key \"text\", found \"id\""
    );
    assert_eq!(read("{}"), "a.jsonl:1: no key \"text\", found none");
    assert_eq!(read("{\"text\": null}"), "a.jsonl:1: \"text\" is no text: not a string");
    assert_eq!(read("\n{\"text\": 3}"), "a.jsonl:2: \"text\" is no text: not a string");
    assert!(read("{\"text\": \"\\ud83d\"}").starts_with("a.jsonl:1: \"text\" is no text: "));
    for text in ["{\"text\": \"a\"", "plain text", "[\"text\"]", "{\"text\": \"a\"} {}"] {
        assert!(read(text).starts_with("a.jsonl:1: not a JSON object: "), "{}", read(text));
    }
    assert_eq!(read(" \n"), "a.jsonl: empty, expected UTF-8 text");
}

#[test]
fn json_without_text_is_skipped_where_it_was_not_named() {
    let directory = Directory::new("no-key");
    directory.write("a.txt", "a");
    let metrics = directory.write("metrics.jsonl", "{\"loss\": 1}\n");
    let sources = Sources::find([&directory.0]).unwrap();
    assert_eq!(documents(&sources), ["a"]);
    assert_eq!(sources.skipped()[0].reason, Reason::NoTextKey);
    assert!(error(Sources::find([metrics])).ends_with("no key \"text\", found \"loss\""));
    // Not the whole file is without it.
    directory.write("metrics.jsonl", "{\"text\": \"b\"}\n{\"loss\": 1}\n");
    assert!(error(Sources::find([&directory.0])).contains("metrics.jsonl:2: no key"));
}

#[test]
fn compressed_files_are_decompressed() {
    let directory = Directory::new("compressed");
    let text = words(3, 300_000);
    let (left, right) = text.split_at(text.find('\n').unwrap() + 1);
    // As by `cat a.gz b.gz`, and as parallel compressors write.
    let gz = [gzip(left.as_bytes()), gzip(right.as_bytes())].concat();
    let skippable = [&0x184d_2a50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let zst = [zstd(left.as_bytes()), skippable, zstd(right.as_bytes())].concat();
    for (name, bytes) in [
        ("1.txt", text.clone().into_bytes()),
        ("2.txt.gz", gz),
        ("3.zst", zst),
        ("4.jsonl.gz", gzip(LINES.as_bytes())),
        ("5.JSONL.ZST", zstd(LINES.as_bytes())),
    ] {
        directory.write(name, bytes);
    }
    let sources = Sources::find([&directory.0]).unwrap();
    let documents = documents(&sources);
    assert_eq!(documents.len(), 9);
    assert!(documents[1] == text && documents[2] == text);
    assert_eq!(documents[3..6], documents[6..]);

    // The cache is that of the same text in plain files, whatever is held out.
    let plain = Sources::texts(documents.into_iter().map(|text| ("text", text)));
    for held_out in [0.0, 0.3, 0.49] {
        let split = Split { held_out, ..ALL };
        let fingerprint = |sources| build(&directory, sources, &split).fingerprint().to_owned();
        assert_eq!(fingerprint(&sources), fingerprint(&plain), "{held_out}");
    }
}

#[test]
fn what_is_damaged_is_an_error_and_what_is_no_text_is_skipped() {
    let directory = Directory::new("damaged");
    let good = directory.write("a.txt", "a");
    let text = words(5, 100_000);
    for (name, bytes) in [("b.gz", gzip(text.as_bytes())), ("b.zst", zstd(text.as_bytes()))] {
        for end in [3, 20, bytes.len() / 2, bytes.len() - 1] {
            let path = directory.write(name, &bytes[..end]);
            let message = error(Sources::find([&good, &path]));
            assert!(message.contains(name), "{name} cut to {end}: {message}");
        }
        let mut wrong = bytes.clone();
        let last = wrong.len() - 2;
        wrong[last] ^= 1;
        let path = directory.write(name, wrong);
        assert!(Sources::find([&path]).is_err(), "{name} with another checksum");
        fs::remove_file(path).unwrap();
    }
    directory.write("archive.tar.gz", gzip(b"a.txt\0\0\0\0"));
    directory.write("empty.gz", gzip(b""));
    directory.write("latin.jsonl.zst", zstd(b"{\"text\": \"a\"}\n{\"text\": \"caf\xe9\"}\n"));
    let kept = directory.write("z.gz", gzip(b"last"));
    let sources = Sources::find([&directory.0]).unwrap();
    let reasons: Vec<String> =
        sources.skipped().iter().map(|skipped| skipped.reason.to_string()).collect();
    assert_eq!(reasons, ["binary", "empty", "not valid UTF-8: byte at offset 27"]);
    assert_eq!(documents(&sources), ["a", "last"], "nothing remains of a file that is skipped");
    // It was read once and for all.
    fs::remove_file(kept).unwrap();
    assert_eq!(documents(&sources), ["a", "last"]);
}

#[test]
fn a_column_of_a_parquet_file_has_documents() {
    let file = |name: &str| {
        let files = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/parquet");
        files.join(format!("{name}.parquet"))
    };
    let text = |i: usize| match i {
        7..60 => "the same".to_owned(),
        _ => format!("text {i}: café {}", "la ".repeat(i % 7)),
    };
    let expected: Vec<String> = (0..200).filter(|i| ![3, 5].contains(i)).map(text).collect();
    for name in ["snappy", "zstd-v2", "gzip-plain", "none-groups", "required"] {
        assert!(documents(&Sources::find([file(name)]).unwrap()) == expected, "{name}");
        let bytes = fs::read(file(name)).unwrap();
        let sources = Sources::read("a.parquet.gz", std::io::Cursor::new(gzip(&bytes)), "text");
        assert!(documents(&sources.unwrap()) == expected, "{name}");
        // Whatever is damaged, it is an error or another text, and no more than that.
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0xff;
            let _ = Sources::read("a.parquet", std::io::Cursor::new(wrong), "text");
            let cut = bytes[..at].to_vec();
            assert!(Sources::read("a.parquet", std::io::Cursor::new(cut), "text").is_err());
        }
    }
    let with = |name: &str, text_key: &str| {
        let options = FindOptions { text_key: text_key.into(), ..FindOptions::default() };
        let path = file(name).display().to_string();
        error(options.find([file(name)])).replace(&path, "F")
    };
    assert_eq!(with("snappy", "body"), "F: no column \"body\", found \"nested\", \"id\", \"text\"");
    assert_eq!(with("snappy", "id"), "F: the column \"id\" has no texts, expected strings");
    assert_eq!(
        with("brotli", "text"),
        "F: cannot be read as Parquet: compression 4, expected 0 (none), 1 (Snappy), 2 (gzip) or \
         6 (Zstandard)"
    );
}
