//! Elements looked up by index, added by index, and counted up.

use taipan::check::{Array, Case, array, check, devices, input};
use taipan::{DType, Device, Result, Tensor};

use crate::naive;

/// Indices below `n`, some of them often.
fn some(shape: &[usize], n: usize) -> Vec<u32> {
    (0..shape.iter().product()).map(|i: usize| (i * i * 5 % 11 % n.max(1)) as u32).collect()
}

fn index(data: &[u32], shape: &[usize], x: &Tensor) -> Result<Tensor> {
    Tensor::new(data, shape, x.device())
}

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

/// An index for `x`, and its shape.
fn index_of(shape: &[usize], dim: usize, count: usize) -> (Vec<u32>, Vec<usize>) {
    let mut of_index = shape.to_vec();
    of_index[dim] = count;
    (some(&of_index, shape[dim]), of_index)
}

#[test]
fn gather() {
    for (shape, dim, count) in SHAPES {
        let (own, of_index) = index_of(shape, dim, count);
        let (ids, out) = (own.clone(), of_index.clone());
        check(&Case::new(
            format!("gather {shape:?} {dim} {count}"),
            [input(shape)],
            move |t| t[0].gather(dim, &index(&own, &of_index, &t[0])?),
            move |i: &[Array]| {
                let mut ids = ids.iter();
                let mut next =
                    |at: &[usize]| naive::moved(&i[0], at, dim, *ids.next().unwrap() as usize);
                Array::from_fn(&out, &mut next)
            },
        ));
    }
}

#[test]
fn scatter_add() {
    for (shape, dim, count) in SHAPES {
        let (own, of_index) = index_of(shape, dim, count);
        let (ids, from) = (own.clone(), of_index.clone());
        let case = Case::new(
            format!("scatter_add {shape:?} {dim} {count}"),
            [input(shape), input(&of_index)],
            move |t| t[0].scatter_add(dim, &index(&own, &of_index, &t[0])?, &t[1]),
            move |i: &[Array]| {
                let ids =
                    Array { shape: from.clone(), data: ids.iter().map(|&i| i as f64).collect() };
                Array::from_fn(&i[0].shape, |at| {
                    let terms = (0..count)
                        .filter(|&j| naive::moved(&ids, at, dim, j) == at[dim] as f64)
                        .map(|j| naive::moved(&i[1], at, dim, j));
                    naive::sum(&[i[0].at(at)].into_iter().chain(terms).collect::<Vec<_>>())
                })
            },
        );
        check(&case.cancelling(count + 1));
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
        let own = some(of_ids, shape[dim]);
        let ids = own.clone();
        let case = Case::new(
            format!("index_select {shape:?} {dim} {of_ids:?}"),
            [input(shape)],
            move |t| t[0].index_select(dim, &index(&own, of_ids, &t[0])?),
            move |i: &[Array]| {
                let out = [&shape[..dim], of_ids, &shape[dim + 1..]].concat();
                Array::from_fn(&out, |at| {
                    let inner = dim + of_ids.len();
                    let flat = at[dim..inner].iter().zip(of_ids).fold(0, |f, (i, n)| f * n + i);
                    i[0].at(&[&at[..dim], &[ids[flat] as usize], &at[inner..]].concat())
                })
            },
        );
        check(&case.cancelling(16));
    }
}

#[test]
fn flip() {
    for shape in [&[1][..], &[0], &[5], &[3, 4], &[2, 3, 5], &[70, 300]] {
        for dim in 0..shape.len() {
            let reference = move |i: &[Array]| {
                Array::from_fn(shape, |at| naive::moved(&i[0], at, dim, shape[dim] - 1 - at[dim]))
            };
            let name = format!("flip {shape:?} {dim}");
            check(&Case::new(name, [input(shape)], move |t| t[0].flip(dim), reference));
        }
    }
}

#[test]
fn cumsum() {
    let shapes: [&[usize]; 9] =
        [&[1], &[0], &[7], &[3, 4], &[3, 0], &[2, 3, 5], &[3, 513], &[2050, 2], &[33, 1, 40]];
    for shape in shapes {
        for dim in 0..shape.len() {
            let reference = move |i: &[Array]| {
                Array::from_fn(shape, |at| {
                    let terms = (0..=at[dim]).map(|j| naive::moved(&i[0], at, dim, j));
                    naive::sum(&terms.collect::<Vec<_>>())
                })
            };
            let name = format!("cumsum {shape:?} {dim}");
            let case = Case::new(name, [input(shape)], move |t| t[0].cumsum(dim), reference);
            check(&case.cancelling(2 * shape[dim]));
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
