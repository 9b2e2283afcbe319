//! Files that somebody made to do harm, or that were damaged: an error, never a panic, a hang or
//! memory out of proportion to the file. In a process of its own, which counts allocations.

#[path = "../../../taipan/tests/harness/allocator.rs"]
mod allocator;
mod targets;

use std::path::Path;
use std::sync::Mutex;

use allocator::usage;
use taipan_lm::torch::TorchFile;
use taipan_lm::{Config, Snapshot, Tokenizer};
use targets::TARGETS;

/// One test counts at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Run a reader on bytes, and check what it allocates at most at a time: some for itself, and some
/// for each byte. What a file says of sizes has no part in it.
fn run(target: &str, bytes: &[u8]) {
    let (_, reader) = TARGETS.iter().find(|(name, _)| *name == target).expect("one of them");
    // A number is a byte or two in a file, and eight in memory; a value of a tree, a tensor's name
    // and shape, or what a pickle leaves on its stack take more, and twice that while a list grows.
    let (least, per_byte) = match target {
        // The text with its unusual numbers replaced, and its keys.
        "config" => (16 << 10, 12),
        "safetensors" | "state" => (16 << 10, 12),
        // The notes of a program, as a tree.
        "trainer_json" => (16 << 10, 64),
        // A value takes 24 bytes, however short the instruction.
        "torch" => (64 << 10, 80),
        // Tables and regular expressions of Hugging Face's library.
        "tokenizer" => (2 << 20, 64),
        other => unreachable!("{other}"),
    };
    // Its memory is not the reader's.
    targets::model();
    let taken = usage(|| reader(bytes)).1.peak;
    let most = least + per_byte * bytes.len();
    assert!(taken <= most, "{target}: {taken} bytes for a file of {}", bytes.len());
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % count.max(1) as u64) as usize
    }
}

/// What breaks readers: extremes of numbers, in binary and in text.
const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 62, u64::MAX];
const TEXTS: [&str; 10] = [
    "99999999999999999999",
    "-1",
    "1e308",
    "0",
    "null",
    "NaN",
    "[[[[[[[[",
    "\"",
    "{\"a\":",
    "\u{e9}",
];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    let length = random.below(bytes.len() - at).min(random.below(64));
    match random.below(8) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 if at < bytes.len() => bytes[at] = random.below(256) as u8,
        3 => {
            let width = [1, 2, 4, 8][random.below(4)];
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let end = (at + width).min(bytes.len());
            let width = end - at;
            bytes[at..end].copy_from_slice(&number[..width]);
        }
        4 => drop(bytes.splice(at..at + length, TEXTS[random.below(TEXTS.len())].bytes())),
        5 => drop(bytes.drain(at..at + length)),
        6 => {
            let part = bytes[at..at + length].to_vec();
            let to = random.below(bytes.len());
            drop(bytes.splice(to..to, part));
        }
        _ => bytes.truncate(at),
    }
}

#[test]
fn no_damage_makes_a_reader_panic() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, _) in TARGETS {
        let seeds = std::fs::read_dir(corpus.join(target)).expect("each has a corpus");
        let mut paths: Vec<_> = seeds.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{target} has no corpus");
        for path in paths {
            let seed = std::fs::read(&path).unwrap();
            run(target, &seed);
            for round in 0..4000 {
                let mut random = Random(round);
                let mut bytes = seed.clone();
                for _ in 0..=random.below(4) {
                    mutate(&mut bytes, &mut random);
                }
                run(target, &bytes);
            }
        }
    }
}

/// A zip archive with this pickle, made of a file of torch by replacing its own: what lies behind
/// the pickle stays, and the directory says how long it is.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let name = b"a/data.pkl";
    let length = (pickle.len() as u32).to_le_bytes();
    let sizes = [[0; 4], length, length].concat();
    let names = [&(name.len() as u16).to_le_bytes()[..], &[0, 0]].concat();
    out.extend([b"PK\x03\x04", &[0; 10][..], &sizes, &names, name, pickle].concat());
    let start = out.len() as u32;
    out.extend([b"PK\x01\x02", &[0; 12][..], &sizes, &names, &[0; 14], name].concat());
    let size = out.len() as u32 - start;
    out.extend([&b"PK\x05\x06\0\0\0\0\x01\0\x01\0"[..], &size.to_le_bytes()].concat());
    out.extend([&start.to_le_bytes()[..], &[0, 0]].concat());
    out
}

#[test]
fn pickle_bombs_take_no_more_than_their_length() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let many = 200_000;
    let reasons = [
        // A tuple of two of the one before, again and again: 2^200000 values, if they were copied.
        (b"Nq\0".to_vec(), b"h\0h\0\x86q\0".to_vec(), "it ends early"),
        // Nested without end.
        (Vec::new(), b"(".to_vec(), "it ends early"),
        (b"N".to_vec(), b"\x85".to_vec(), "it ends early"),
        // Wide.
        (b"(".to_vec(), b"N".to_vec(), "it ends early"),
        (Vec::new(), b"}".to_vec(), "it ends early"),
        // Places of the memo that are far apart.
        (b"N".to_vec(), b"r\xff\xff\xff\x7f".to_vec(), "it ends early"),
        // A dict in itself.
        (b"}q\0".to_vec(), b"K\x01h\0s".to_vec(), "it ends early"),
    ];
    for (start, repeated, expected) in reasons {
        let bytes = with_pickle(&[start, repeated.repeat(many)].concat());
        run("torch", &bytes);
        let error = TorchFile::parse("f", &bytes).err().expect("refused").to_string();
        assert_eq!(error, format!("f: data.pkl: {expected}"));
    }
}

#[test]
fn deep_or_huge_json_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for open in ["[", "{\"a\":"] {
        let deep = open.repeat(100_000);
        for target in ["config", "tokenizer", "trainer_json"] {
            run(target, deep.as_bytes());
            run(target, format!("{{\"model_type\": \"mamba\", \"x\": {deep}").as_bytes());
        }
        let header = [&(deep.len() as u64).to_le_bytes()[..], deep.as_bytes()].concat();
        run("safetensors", &header);
    }
    let many = |part: &dyn Fn(usize) -> String| (0..20_000).map(part).collect::<Vec<_>>().join(",");
    let tensors = many(&|i| format!(r#""{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#));
    let zeros = many(&|_| "0".into());
    let shape = format!(r#""a":{{"dtype":"F32","shape":[{zeros}],"data_offsets":[0,0]}}"#);
    let keys = many(&|i| format!(r#""{i}":{i}"#));
    let metadata = many(&|i| format!(r#""{i}":"""#));
    let metadata = format!(r#""__metadata__":{{{metadata}}}"#);
    for text in [&tensors, &shape, &keys, &metadata] {
        let text = format!("{{{text}}}");
        let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        ["safetensors", "state"].iter().for_each(|target| run(target, &header));
        ["config", "tokenizer", "trainer_json"].iter().for_each(|t| run(t, text.as_bytes()));
    }
    for notes in [format!(r#"{{{keys}}}"#), format!(r#"{{"a":[{zeros}]}}"#)] {
        run("trainer_json", format!(r#"{{"notes":{notes}}}"#).as_bytes());
    }
    let wide = format!("{{\"model_type\": \"mamba\", \"x\": [{}0]}}", "0,".repeat(100_000));
    run("config", wide.as_bytes());
    assert!(Config::from_json(&wide).is_ok(), "what is not known is not kept");
}

#[test]
fn files_that_are_not_text_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json"] {
        let path = directory.path().join(name);
        std::fs::write(&path, b"{\"a\": \"\xff\xfe\"}").unwrap();
        let error = match name {
            "config.json" => Config::from_file(&path).map(drop),
            _ => Tokenizer::from_file(&path).map(drop),
        };
        let error = error.unwrap_err().to_string();
        assert_eq!(error, format!("{}: stream did not contain valid UTF-8", path.display()));
    }
}

#[test]
#[cfg(unix)]
fn what_is_not_a_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("config.json");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a plain call with a string that outlives it.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // Opening it would wait for somebody to write.
    let error = taipan_lm::ModelFiles::open(directory.path()).err().unwrap().to_string();
    assert_eq!(error, format!("{}: not a file", pipe.display()));
}

/// The corpus is of states that are accepted: otherwise only refusals would be tested.
#[test]
fn states_of_the_corpus_are_read() {
    let model = targets::small_model();
    for name in ["one", "two"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/state").join(name);
        let snapshot = Snapshot::load(&path, &model, targets::FINGERPRINT).unwrap();
        assert_eq!(snapshot.state.position(), 4);
    }
}
