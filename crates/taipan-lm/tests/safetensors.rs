//! The file format: what is written is read, and nothing else is.

use half::{bf16, f16};
use taipan::{DType, Device, Element, Tensor};
use taipan_lm::safetensors::{Safetensors, Stored, write};

fn bytes_of(tensors: &[Stored<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = pollster::block_on(write(tensors, |part| {
        bytes.extend_from_slice(part);
        Ok::<_, taipan_lm::Error>(())
    }));
    written.unwrap();
    bytes
}

fn tensor<T: Element>(values: &[T], shape: &[usize]) -> Tensor {
    Tensor::new(values, shape, &Device::Cpu).unwrap()
}

/// A file with this header and this many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; data]].concat()
}

fn error(bytes: &[u8]) -> String {
    match Safetensors::parse("f", bytes) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_type_comes_back() {
    let half = tensor(&[f16::from_f32(0.5), f16::NAN, f16::MIN], &[3]);
    let (a, b) = (tensor(&[1.5f32, f32::NAN], &[1, 2]), tensor(&[-0.0f32, 1e-40], &[1, 2]));
    let stored = |name: &str, shape: &[usize], parts: Vec<&Tensor>| {
        let parts = parts.into_iter().cloned().collect::<Vec<_>>();
        (name.to_owned(), shape.to_vec(), parts)
    };
    let all = [
        stored("half", &[3], vec![&half]), // six bytes: what follows is not aligned
        stored("joined", &[2, 1, 2], vec![&a, &b]),
        stored("bf", &[1], vec![&tensor(&[bf16::from_f32(-3.0)], &[1])]),
        stored("double", &[], vec![&tensor(&[std::f64::consts::PI], &[])]),
        stored("ids", &[2], vec![&tensor(&[1u32, u32::MAX], &[2])]),
        stored("long \"é\"", &[1], vec![&tensor(&[i64::MIN], &[1])]),
        stored("none", &[0, 4], vec![&tensor::<f32>(&[], &[0, 4])]),
    ];
    let tensors: Vec<_> = all
        .iter()
        .map(|(name, shape, parts)| Stored {
            name: name.clone(),
            shape: shape.clone(),
            tensors: parts.iter().collect(),
        })
        .collect();
    let bytes = bytes_of(&tensors);
    assert_eq!(bytes, bytes_of(&tensors), "the same bytes each time");

    let read = Safetensors::parse("f", &bytes).unwrap();
    assert_eq!(read.names().count(), all.len());
    let bits = |t: &Tensor| t.read_blocking::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
    let joined: Vec<u32> = bits(&read.tensor("joined", &[2, 1, 2]).unwrap());
    assert_eq!(joined, [bits(&a), bits(&b)].concat());
    let half_read = read.tensor("half", &[3]).unwrap().read_blocking::<f16>().unwrap();
    assert_eq!(half_read.map_bits(), half.read_blocking::<f16>().unwrap().map_bits());
    let one = |name: &str, shape: &[usize]| read.tensor(name, shape).unwrap();
    assert_eq!(one("bf", &[1]).read_blocking::<bf16>().unwrap(), [bf16::from_f32(-3.0)]);
    assert_eq!(one("double", &[]).read_blocking::<f64>().unwrap(), [std::f64::consts::PI]);
    assert_eq!(one("ids", &[2]).read_blocking::<u32>().unwrap(), [1, u32::MAX]);
    assert_eq!(one("long \"é\"", &[1]).read_blocking::<i64>().unwrap(), [i64::MIN]);
    assert_eq!((one("none", &[0, 4]).len(), one("none", &[0, 4]).dtype()), (0, DType::F32));
}

trait Bits {
    fn map_bits(self) -> Vec<u16>;
}

impl Bits for Vec<f16> {
    fn map_bits(self) -> Vec<u16> {
        self.into_iter().map(f16::to_bits).collect()
    }
}

#[test]
fn a_file_is_laid_out_as_the_format_says() {
    let w = tensor(&[1f32], &[1]);
    let bytes = bytes_of(&[Stored { name: "w".into(), shape: vec![1], tensors: vec![&w] }]);
    let header =
        r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let padded = header.len().next_multiple_of(8);
    assert_eq!(bytes[..8], (padded as u64).to_le_bytes());
    assert_eq!(bytes[8..8 + padded], *format!("{header:padded$}").as_bytes());
    assert_eq!(bytes[8 + padded..], 1f32.to_le_bytes());
}

#[test]
fn tensors_must_cover_the_file_once() {
    let one = |offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}}}"#)
    };
    let two = |b: &str| {
        let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        format!(r#"{{{a},"b":{{"dtype":"U32","shape":[1],"data_offsets":{b}}}}}"#)
    };
    assert!(Safetensors::parse("f", file(&one("[0,8]"), 8)).is_ok());
    assert!(Safetensors::parse("f", file(&two("[8,12]"), 12)).is_ok());
    assert_eq!(error(&file(&one("[0,8]"), 7)), "f: 7 bytes of tensors found, expected 8");
    assert_eq!(error(&file(&one("[0,8]"), 9)), "f: 9 bytes of tensors found, expected 8");
    assert_eq!(error(&file(&one("[4,12]"), 12)), "f: invalid offset for tensor `a`");
    assert_eq!(error(&file(&one("[8,0]"), 8)), "f: invalid offset for tensor `a`");
    let size = "f: invalid shape, data type, or offset for tensor";
    assert_eq!(error(&file(&one("[0,12]"), 12)), size);
    assert_eq!(error(&file(&two("[4,8]"), 8)), "f: invalid offset for tensor `b`");
    assert_eq!(error(&file(&two("[12,16]"), 16)), "f: invalid offset for tensor `b`");
}

#[test]
fn headers_that_make_no_sense_are_refused() {
    assert_eq!(error(b"1234567"), "f: 7 bytes found, expected a header's length in 8");
    assert_eq!(
        error(&[255; 20]),
        format!("f: a header of {} bytes, expected at most 12", u64::MAX)
    );
    let one = r#""a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    assert!(
        error(&file(&format!("{{{one},{one}}}"), 0)).starts_with("f: the header: a is there twice")
    );
    let of = |dtype: &str, shape: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,8]}}}}"#)
    };
    assert_eq!(error(&file(&of("I8", "[8]"), 8)), "f: a is of type I8, which is not supported");
    assert!(error(&file(&of("F33", "[8]"), 8)).starts_with("f: the header: unknown variant `F33`"));
    assert!(error(&file(&of("F32", "[-2]"), 8)).starts_with("f: the header: invalid value"));
    let huge = of("F64", "[4294967296,4294967296,2]");
    let overflow = "f: the size of a, [4294967296, 4294967296, 2], overflows";
    assert_eq!(error(&file(&huge, 8)), overflow);
    // A size of 0 in a shape whose other sizes overflow, in any order.
    for shape in ["[4294967296,4294967296,0]", "[0,4294967296,4294967296]"] {
        let empty = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
        assert!(error(&file(&empty, 0)).ends_with(", overflows"), "{shape}");
    }
    let deep = of("F32", &format!("[{}2]", "1,".repeat(64)));
    assert_eq!(error(&file(&deep, 8)), "f: a has 65 dimensions, expected at most 64");
    let unknown = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":0}}"#;
    assert!(error(&file(unknown, 8)).starts_with("f: the header: unknown field `x`"));
    assert!(error(&file("{", 0)).starts_with("f: the header: EOF"));
    assert!(error(&file("{} x", 0)).starts_with("f: the header: trailing characters"));
}

#[test]
fn a_tensor_is_asked_for_by_name_and_shape() {
    let w = tensor(&[1f32, 2.0], &[2]);
    let bytes = bytes_of(&[Stored { name: "w".into(), shape: vec![2], tensors: vec![&w] }]);
    let file = Safetensors::parse("model.safetensors", bytes).unwrap();
    assert_eq!(file.tensor("v", &[2]).unwrap_err().to_string(), "model.safetensors: v is missing");
    assert_eq!(
        file.tensor("w", &[1, 2]).unwrap_err().to_string(),
        "model.safetensors: w is [2], expected [1, 2]"
    );
}

#[test]
fn parts_that_do_not_make_the_tensor_are_refused() {
    let (a, b) = (tensor(&[1f32], &[1]), tensor(&[1f64], &[1]));
    for parts in [vec![&a], vec![&a, &b]] {
        let stored = [Stored { name: "w".into(), shape: vec![2], tensors: parts }];
        let result = pollster::block_on(write(&stored, |_| Ok::<_, taipan_lm::Error>(())));
        assert!(result.unwrap_err().to_string().starts_with("w: tensors [([1], "));
    }
}

#[test]
fn damaged_files_are_refused_or_read_but_never_a_panic() {
    let (a, b) = (tensor(&[1f32, 2.0, 3.0], &[3]), tensor(&[f16::ONE; 5], &[5]));
    let whole = bytes_of(&[
        Stored { name: "b".into(), shape: vec![5], tensors: vec![&b] },
        Stored { name: "a".into(), shape: vec![1, 3], tensors: vec![&a] },
    ]);
    for len in 0..whole.len() {
        error(&whole[..len]);
    }
    // Every byte changed in every bit: what still is a file of tensors must be readable as one.
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            if let Ok(file) = Safetensors::parse("f", &bytes) {
                for name in file.names() {
                    file.view(name).unwrap().tensor().unwrap();
                }
            }
        }
    }
}
