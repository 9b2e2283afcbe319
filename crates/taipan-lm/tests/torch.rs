//! Files of `torch.save`: tensors of every kind are read, and nothing else is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use taipan::{DType, Tensor};
use taipan_lm::torch::TorchFile;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

fn error(bytes: &[u8]) -> String {
    match TorchFile::parse("f", bytes) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.cast(DType::F64).unwrap().read_blocking().unwrap()
}

#[derive(Deserialize)]
struct Expected {
    shape: Vec<usize>,
    values: Vec<f64>,
}

#[test]
fn tensors_of_every_kind_are_read() {
    let text = std::fs::read_to_string(path("expected.json")).unwrap();
    let expected: BTreeMap<String, Expected> = serde_json::from_str(&text).unwrap();
    for name in ["ordered.bin", "protocol4.bin"] {
        let file = TorchFile::open(&path(name)).unwrap();
        assert!(file.names().eq(expected.keys()), "{name}");
        for (tensor, expected) in &expected {
            let view = file.view(tensor).unwrap();
            assert_eq!(view.shape, expected.shape, "{tensor}");
            assert_eq!((view.dtype, view.shape), file.spec(tensor).unwrap());
            assert_eq!(read(&view.tensor().unwrap()), expected.values, "{tensor} of {name}");
        }
        let dtype = |name: &str| file.spec(name).unwrap().0;
        let dtypes = ["f32", "f64", "f16", "bf16", "i64"].map(dtype);
        assert_eq!(dtypes, [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64]);
        file.verify().unwrap();
        assert_eq!(
            file.view("x").unwrap_err().to_string().rsplit(": ").next().unwrap(),
            "x is missing"
        );
    }
    let module = TorchFile::parse("m", bytes("module.bin")).unwrap();
    assert_eq!(module.spec("weight").unwrap(), (DType::F32, &[3, 2][..]));
}

/// The header of an entry of zip; the central one has more.
fn zip_header(signature: u32, name: &str, data: &[u8], offset: u32) -> Vec<u8> {
    let mut out = signature.to_le_bytes().to_vec();
    let central = signature == 0x0201_4b50;
    if central {
        out.extend([0, 0]);
    }
    out.extend([0; 6]); // version, flags, method: stored
    out.extend([0; 8]); // time, date, checksum
    let size = (data.len() as u32).to_le_bytes();
    out.extend([size, size].concat());
    out.extend((name.len() as u16).to_le_bytes());
    out.extend([0, 0]);
    if central {
        out.extend([0; 10]);
        out.extend(offset.to_le_bytes());
    }
    out.extend(name.bytes());
    out
}

/// A zip archive of stored entries, without checksums.
fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        directory.extend(zip_header(0x0201_4b50, name, data, out.len() as u32));
        out.extend(zip_header(0x0403_4b50, name, data, 0));
        out.extend(*data);
    }
    let (start, count) = (out.len() as u32, entries.len() as u16);
    out.extend(&directory);
    out.extend(0x0605_4b50u32.to_le_bytes());
    out.extend([0; 4]);
    out.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// A file with this pickle and a storage of four floats, named 0.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/data/0", &[0; 16])])
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn int(number: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &number.to_le_bytes()].concat()
}

fn numbers(numbers: &[i64]) -> Vec<u8> {
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| int(*number)).collect();
    [b"(", &numbers[..], b"t"].concat()
}

/// A dict with one tensor `w` of the storage of four floats.
fn one_tensor(offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let storage = [&b"("[..], &text("storage"), b"ctorch\nFloatStorage\n", &text("0")].concat();
    let storage = [storage, text("cpu"), int(4), b"tQ".to_vec()].concat();
    let rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    let hooks = b"\x89ccollections\nOrderedDict\n)RtR".to_vec();
    let tensor = [rebuild, storage, int(offset), numbers(shape), numbers(strides), hooks].concat();
    [b"\x80\x02}".to_vec(), text("w"), tensor, b"s.".to_vec()].concat()
}

#[test]
fn tensors_lie_within_their_storage() {
    let fits = |offset, shape: &[i64], strides: &[i64]| {
        let bytes = with_pickle(&one_tensor(offset, shape, strides));
        let file = TorchFile::parse("f", bytes);
        file.map(|file| file.view("w").unwrap().tensor().unwrap().len()).map_err(|e| e.to_string())
    };
    assert_eq!(fits(0, &[4], &[1]), Ok(4));
    assert_eq!(fits(0, &[2, 2], &[1, 2]), Ok(4));
    assert_eq!(fits(3, &[], &[]), Ok(1));
    assert_eq!(fits(4, &[0, 9], &[9, 1]), Ok(0));
    assert_eq!(fits(1, &[3, 1], &[1, 900]), Ok(3), "the stride of a single one is never taken");
    for (offset, shape, strides) in [
        (1, vec![4], vec![1]),
        (0, vec![5], vec![1]),
        (0, vec![2, 2], vec![3, 1]),
        (4, vec![1], vec![1]),
        (5, vec![0], vec![1]),
        (0, vec![i64::MAX], vec![i64::MAX]),
        (i64::MAX, vec![2], vec![1]),
        // A huge tensor of few elements.
        (0, vec![1 << 40], vec![0]),
        (0, vec![5, 1], vec![0, 1]),
        (0, vec![i64::MAX, 3, 0], vec![1, 1, 1]),
    ] {
        let error = fits(offset, &shape, &strides).unwrap_err();
        assert_eq!(
            error,
            format!("f: w: shape {shape:?}, strides {strides:?} and offset {offset} in 4 elements")
        );
    }
    assert_eq!(fits(-1, &[1], &[1]).unwrap_err(), "f: data.pkl: a size is -1");
    // A number in as many bytes as it needs: the last has its sign.
    let mut short = one_tensor(0, &[4], &[1]);
    let at = short.windows(10).position(|bytes| bytes == int(0)).unwrap();
    short.splice(at..at + 10, [0x8a, 1, 0xfe]);
    assert_eq!(error(&with_pickle(&short)), "f: data.pkl: a size is -2");
    assert_eq!(fits(0, &[1], &[-1]).unwrap_err(), "f: data.pkl: a size is -1");
    assert_eq!(
        fits(0, &[1], &[]).unwrap_err(),
        "f: data.pkl: a tensor of shape [1] with strides []"
    );
    let many = "f: data.pkl: a tensor of 9 dimensions, expected at most 8";
    assert_eq!(fits(0, &[1; 9], &[1; 9]).unwrap_err(), many);
    let short = zip(&[("a/data.pkl", &one_tensor(0, &[4], &[1])), ("a/data/0", &[0; 12])]);
    assert_eq!(error(&short), "f: w: a storage of 12 bytes, expected 4 elements of f32");
    let none = zip(&[("a/data.pkl", &one_tensor(0, &[4], &[1]))]);
    assert_eq!(error(&none), "f: w: its storage is missing");
}

#[test]
fn pickles_that_would_run_code_are_refused_by_name() {
    let refused = |name: &str| {
        format!("f: data.pkl: it names {name}, which is not part of a dict of tensors: refused")
    };
    let system = |name: &str| [b"c", name.as_bytes(), b"\n(X\x02\0\0\0lstR."].concat();
    for (name, shown) in [
        ("posix\nsystem", "posix.system"),
        ("builtins\neval", "builtins.eval"),
        ("torch\nload", "torch.load"),
        ("collections\nCounter", "collections.Counter"),
        (
            "torch._utils\n_rebuild_tensor_v2.__globals__",
            "torch._utils._rebuild_tensor_v2.__globals__",
        ),
    ] {
        assert_eq!(error(&with_pickle(&system(name))), refused(shown));
    }
    let stacked = [b"\x80\x04".to_vec(), text("os"), text("system"), b"\x93.".to_vec()].concat();
    assert_eq!(error(&with_pickle(&stacked)), refused("os.system"));
    let long = format!("c{}\nsystem\n.", "x".repeat(1 << 20));
    assert!(error(&with_pickle(long.as_bytes())).len() < 300);
    // INST, OBJ, NEWOBJ, EXT1, PERSID, and text where a function is expected.
    for code in [b"(iposix\nsystem\n.".to_vec(), b"(cposix\nsystem\no.".to_vec()] {
        assert!(error(&with_pickle(&code)).starts_with("f: data.pkl: i"), "{code:?}");
    }
    for code in [0x81, 0x82, b'P', b'I', b'F', b'S', b'g', b'p', b'0', b'2', b']', 0x96] {
        let expected = format!("instruction {code:#04x}, which a dict of tensors does not need");
        assert_eq!(error(&with_pickle(&[code])), format!("f: data.pkl: {expected}"));
    }
    let call = [text("eval"), b")R.".to_vec()].concat();
    assert_eq!(error(&with_pickle(&call)), "f: data.pkl: it calls text, which is not a function");
}

#[test]
fn pickles_that_make_no_sense_are_refused() {
    let cases: [(Vec<u8>, &str); 15] = [
        (b"".to_vec(), "it ends early"),
        (b"X\xff\xff\xff\xffab".to_vec(), "it ends early"),
        (b".".to_vec(), "it takes a value from an empty stack"),
        (b"(t".to_vec(), "it ends early"),
        (b"t".to_vec(), "it takes values to a mark that is not there"),
        (b"N(\x85".to_vec(), "it takes values from an empty stack"),
        (b"N(.".to_vec(), "it takes a value from an empty stack"),
        (b"NNb".to_vec(), "it sets attributes of what is not a dict"),
        (b"h\x05".to_vec(), "value 5 of its memo is not there"),
        (b"NNs".to_vec(), "it sets an item of what is not a dict"),
        (b"}(Nu".to_vec(), "it sets a key without a value"),
        (b"NQ".to_vec(), "a reference to data that is not a storage of floats or integers"),
        (b"N.".to_vec(), "None found, expected a dict of tensors"),
        (b"}K\x01Ns.".to_vec(), "a key is a number, expected text"),
        (b"\x8a\x09123456789".to_vec(), "a number of more than 64 bits"),
    ];
    for (pickle, expected) in cases {
        assert_eq!(error(&with_pickle(&pickle)), format!("f: data.pkl: {expected}"), "{pickle:?}");
    }
    let nested = [b"}".to_vec(), text("model"), b"}s.".to_vec()].concat();
    assert_eq!(error(&with_pickle(&nested)), "f: data.pkl: model is a dict, expected a tensor");
    let one = one_tensor(0, &[4], &[1]);
    let (start, end) = (&one[..one.len() - 1], b"}.");
    let two = error(&with_pickle(&[start, end].concat()));
    assert_eq!(two, "f: data.pkl: it leaves more than one value");
    let item = &one[3..one.len() - 1];
    let twice = [&one[..one.len() - 1], item, b"."].concat();
    assert_eq!(error(&with_pickle(&twice)), "f: w is there twice");
    let long = error(&with_pickle(&vec![b'N'; (4 << 20) + 1]));
    assert_eq!(long, "f: data.pkl has 4194305 bytes, expected at most 4194304");
}

#[test]
fn archives_that_lie_are_refused() {
    let whole = with_pickle(&one_tensor(0, &[4], &[1]));
    assert!(TorchFile::parse("f", &whole).is_ok());
    let end = whole.len() - 22;
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        error(&bytes)
    };
    assert_eq!(changed(end, 0), "f: no end of a zip archive, which torch writes since 1.6");
    assert_eq!(error(b"\x80\x02\x8a\nl\xfc"), changed(end, 0), "as torch wrote before");
    assert_eq!(changed(end + 13, 0xff), "f: the zip archive's end record is damaged");
    assert_eq!(changed(end + 10, 3), "f: an entry of the zip archive's directory is damaged");
    let short = "f: the zip archive's directory has another length than it says";
    assert_eq!(changed(end + 10, 1), short);
    let find = |signature: u32| {
        whole.windows(4).position(|bytes| bytes == signature.to_le_bytes()).unwrap()
    };
    let central = find(0x0201_4b50);
    let stored = "f: a/data.pkl is compressed or encrypted, which torch never does";
    assert_eq!(changed(central + 10, 8), stored);
    assert_eq!(changed(central + 8, 1), stored);
    assert_eq!(changed(central + 24, 1), stored);
    let place = "f: a/data.pkl is not where the archive's directory says";
    assert_eq!(changed(central + 42, 1), place);
    assert_eq!(changed(30, b'b'), place, "another name at its place");
    assert_eq!(changed(0, 0), place, "another header");
    let damaged = "f: an entry of the zip archive's directory is damaged";
    assert_eq!(changed(central, 0), damaged);
    assert_eq!(changed(central + 33, 0xff), damaged, "a comment beyond the directory");
    // Behind the end may be a comment, which may look like another end.
    let comment = [&0x0605_4b50u32.to_le_bytes()[..], &[0xff; 30]].concat();
    let mut commented = [&whole[..], &comment].concat();
    commented[end + 20] = comment.len() as u8;
    assert!(TorchFile::parse("f", commented).is_ok());
    let mut long = whole.clone();
    for at in [central + 22, central + 26] {
        long[at] = 1; // 65536 bytes more, of both sizes
    }
    assert_eq!(error(&long), place);
    let pickle = one_tensor(0, &[4], &[1]);
    let twice = zip(&[("a/data.pkl", &pickle), ("a/data.pkl", &pickle)]);
    assert_eq!(error(&twice), "f: a/data.pkl is in the archive twice");
    let two = zip(&[("a/data.pkl", &pickle), ("b/data.pkl", &pickle)]);
    assert_eq!(error(&two), "f: more than one data.pkl in the archive");
    let none = zip(&[("a/data", &pickle)]);
    assert_eq!(error(&none), "f: no data.pkl in the archive, expected what torch.save writes");
    let big = zip(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 16]), ("a/byteorder", b"big")]);
    assert_eq!(error(&big), "f: its numbers are not little-endian");
}

#[test]
fn bytes_that_were_changed_are_found() {
    let whole = bytes("ordered.bin");
    let file = TorchFile::parse("f", &whole).unwrap();
    let first = file.view("f32").unwrap().bytes.as_ptr() as usize - whole.as_ptr() as usize;
    let mut changed = whole.clone();
    changed[first + 3] ^= 1;
    let error = TorchFile::parse("f", changed).unwrap().verify().unwrap_err().to_string();
    assert!(error.starts_with("f: the checksum of ordered/data/0 is "), "{error}");
}
