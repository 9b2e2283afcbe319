//! Elements looked up by index, added by index, and counted up.

use taipan::check::cases::{indexing, layout, reductions};
use taipan::check::{array, check, devices};
use taipan::{DType, Device, Result, Tensor};

/// The shape of `x`, a dimension, and its size in the index.
const SHAPES: [(&[usize], usize, usize); 10] = [
    (&[5], 0, 3),
    (&[5], 0, 0),
    (&[3, 4], 0, 6),
    (&[3, 4], 1, 1),
    (&[3, 4], 1, 9),
    (&[2, 3, 5], 1, 4),
    (&[0, 3], 1, 2),
    (&[1, 1], 0, 7),
    (&[40, 1031], 1, 3),
    (&[7, 30, 100], 1, 29),
];

#[test]
fn gather() {
    SHAPES.into_iter().for_each(|(shape, dim, count)| check(&indexing::gather(shape, dim, count)));
}

#[test]
fn scatter_add() {
    for (shape, dim, count) in SHAPES {
        check(&indexing::scatter_add(shape, dim, count));
    }
}

/// Indices of any shape take the place of the dimension.
#[test]
fn index_select() {
    let shapes: [(&[usize], usize, &[usize]); 8] = [
        (&[5], 0, &[3]),
        (&[5], 0, &[]),
        (&[3, 4], 0, &[7]),
        (&[3, 4], 1, &[7]),
        (&[2, 3, 5], 1, &[2, 3]),
        (&[2, 3, 5], 2, &[0]),
        (&[0, 3], 1, &[4]),
        (&[6, 50, 70], 1, &[101]),
    ];
    for (shape, dim, of_ids) in shapes {
        check(&indexing::index_select(shape, dim, of_ids));
    }
}

#[test]
fn flip() {
    for shape in [&[1][..], &[0], &[5], &[3, 4], &[2, 3, 5], &[70, 300]] {
        for dim in 0..shape.len() {
            check(&layout::flip(shape, dim));
        }
    }
}

#[test]
fn cumsum() {
    let shapes: [&[usize]; 9] =
        [&[1], &[0], &[7], &[3, 4], &[3, 0], &[2, 3, 5], &[3, 513], &[2050, 2], &[33, 1, 40]];
    for shape in shapes {
        for dim in 0..shape.len() {
            check(&reductions::cumsum(shape, dim));
        }
    }
}

/// Indices on every device, any float type; also of a single index.
#[test]
fn one_hot() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F16, DType::F32].into_iter().filter(|&t| device.supports(t)) {
            let ids = Tensor::new(&[2u32, 0, 1, 2], &[2, 2], &device)?;
            let found = array(&ids.one_hot(3, dtype)?);
            assert_eq!(found.shape, [2, 2, 3]);
            let rows = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
            assert_eq!(found.data, rows.concat());
            let one = Tensor::new(&[1u32], &[], &device)?.one_hot(2, dtype)?;
            assert_eq!(array(&one).data, [0.0, 1.0]);
        }
    }
    Ok(())
}

/// On a GPU, where the next read is an error, `tests/gpu/index_errors.rs` checks it.
#[test]
fn indices_out_of_range() -> Result<()> {
    let x = Tensor::ones(&[2, 3], DType::F32, &Device::Cpu)?;
    let wide = Tensor::new(&[1u32, 3, 0, 2], &[2, 2], &Device::Cpu)?;
    let ids = Tensor::new(&[0u32, 7], &[2], &Device::Cpu)?;
    let source = Tensor::ones(&[2, 2], DType::F32, &Device::Cpu)?;
    for (found, expected) in [
        (x.gather(1, &wide), "gather: index 3"),
        (x.scatter_add(1, &wide, &source), "scatter_add: index 3"),
        (x.index_select(1, &ids), "index_select: id 7"),
        (ids.one_hot(3, DType::F32), "scatter_add: index 7"),
    ] {
        let error = found.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}, expected {expected}");
        assert!(error.contains("expected less than 3"), "{error}");
    }
    Ok(())
}

#[test]
fn errors() -> Result<()> {
    let cpu = &Device::Cpu;
    let x = Tensor::ones(&[2, 3], DType::F32, cpu)?;
    let ids = Tensor::zeros(&[2, 3], DType::U32, cpu)?;
    let wrong = Tensor::zeros(&[3, 3], DType::U32, cpu)?;
    let none = Tensor::ones(&[2, 0], DType::F32, cpu)?;
    let sizes = "expected the sizes of [2, 3] in all dimensions but 1";
    let cases = [
        (x.gather(1, &x), "gather: the index is f32, expected u32".to_owned()),
        (x.gather(1, &wrong), format!("gather: the index is [3, 3], {sizes}")),
        (x.gather(2, &ids), "gather: dimension 2 of [2, 3] does not exist".to_owned()),
        (
            none.gather(1, &ids),
            "gather: dimension 1 of [2, 0] is empty, expected an index or more".to_owned(),
        ),
        (x.scatter_add(1, &wrong, &x), format!("scatter_add: the index is [3, 3], {sizes}")),
        (
            x.scatter_add(1, &ids, &none),
            "scatter_add: the source is [2, 0], expected [2, 3]".to_owned(),
        ),
        (x.index_select(0, &x), "index_select: the tensor of ids is f32, expected u32".to_owned()),
        (
            taipan::embedding(&none.reshape(&[0, 2])?, &ids),
            "embedding: dimension 0 of [0, 2] is empty, expected an index or more".to_owned(),
        ),
        (x.flip(2), "flip: dimension 2 of [2, 3] does not exist".to_owned()),
        (x.cumsum(2), "cumsum: dimension 2 of [2, 3] does not exist".to_owned()),
        (x.one_hot(3, DType::F32), "one_hot: the input is f32, expected u32".to_owned()),
    ];
    for (found, expected) in cases {
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
    Ok(())
}
