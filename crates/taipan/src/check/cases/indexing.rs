//! Elements that are looked up, added, or chosen by an index or a mask.

use crate::check::{Array, Case, input, naive};
use crate::{Result, Tensor, embedding};

/// Indices below `n`, some of them often.
fn some(shape: &[usize], n: usize) -> Vec<u32> {
    (0..shape.iter().product()).map(|i: usize| (i * i * 5 % 11 % n.max(1)) as u32).collect()
}

fn on(x: &Tensor, data: &[u32], shape: &[usize]) -> Result<Tensor> {
    Tensor::new(data, shape, x.device())
}

/// An index for `x`, and its shape.
fn index_of(shape: &[usize], dim: usize, count: usize) -> (Vec<u32>, Vec<usize>) {
    let mut of_index = shape.to_vec();
    of_index[dim] = count;
    (some(&of_index, shape[dim]), of_index)
}

/// Rows of a table `[v, d]`, for ids of a shape.
pub fn rows([v, d]: [usize; 2], shape: &[usize]) -> Case {
    let count: usize = shape.iter().product();
    let ids: Vec<u32> = (0..count).map(|i| (i * i * 7 + i / 3) as u32 % v.max(1) as u32).collect();
    let (shape, known) = (shape.to_vec(), (shape.to_vec(), ids.clone()));
    Case::new(
        format!("embedding [{v}, {d}] {shape:?}"),
        [input(&[v, d])],
        move |t| embedding(&t[0], &on(&t[0], &ids, &shape)?),
        move |i: &[Array]| naive::embedding(&i[0], &known.1, &known.0),
    )
}

/// So many elements of each line of a dimension.
pub fn gather(shape: &[usize], dim: usize, count: usize) -> Case {
    let (own, of_index) = index_of(shape, dim, count);
    let (ids, out) = (own.clone(), of_index.clone());
    Case::new(
        format!("gather {shape:?} {dim} {count}"),
        [input(shape)],
        move |t| t[0].gather(dim, &on(&t[0], &own, &of_index)?),
        move |i: &[Array]| {
            let mut ids = ids.iter();
            let mut next =
                |at: &[usize]| naive::moved(&i[0], at, dim, *ids.next().unwrap() as usize);
            Array::from_fn(&out, &mut next)
        },
    )
}

/// So many elements added to each line of a dimension.
pub fn scatter_add(shape: &[usize], dim: usize, count: usize) -> Case {
    let (own, of_index) = index_of(shape, dim, count);
    let ids: Vec<f64> = own.iter().map(|&i| i as f64).collect();
    let ids = Array { shape: of_index.clone(), data: ids };
    let case = Case::new(
        format!("scatter_add {shape:?} {dim} {count}"),
        [input(shape), input(&of_index)],
        move |t| t[0].scatter_add(dim, &on(&t[0], &own, &of_index)?, &t[1]),
        move |i: &[Array]| {
            Array::from_fn(&i[0].shape, |at| {
                let terms = (0..count)
                    .filter(|&j| naive::moved(&ids, at, dim, j) == at[dim] as f64)
                    .map(|j| naive::moved(&i[1], at, dim, j));
                naive::sum(&[i[0].at(at)].into_iter().chain(terms).collect::<Vec<_>>())
            })
        },
    );
    case.cancelling(count + 1)
}

/// Indices of any shape take the place of a dimension.
pub fn index_select(shape: &[usize], dim: usize, of_ids: &[usize]) -> Case {
    let own = some(of_ids, shape[dim]);
    let (ids, of_own) = (own.clone(), of_ids.to_vec());
    let of_ids = of_ids.to_vec();
    let case = Case::new(
        format!("index_select {shape:?} {dim} {of_ids:?}"),
        [input(shape)],
        move |t| t[0].index_select(dim, &on(&t[0], &own, &of_own)?),
        move |i: &[Array]| {
            let shape = &i[0].shape;
            let out = [&shape[..dim], &of_ids, &shape[dim + 1..]].concat();
            Array::from_fn(&out, |at| {
                let inner = dim + of_ids.len();
                let flat = at[dim..inner].iter().zip(&of_ids).fold(0, |f, (i, n)| f * n + i);
                i[0].at(&[&at[..dim], &[ids[flat] as usize], &at[inner..]].concat())
            })
        },
    );
    case.cancelling(16)
}

/// A mask of a shape.
fn mask_of(shape: &[usize]) -> (Vec<u32>, Array) {
    let len: usize = shape.iter().product();
    let mask: Vec<u32> = (0..len).map(|i| (i * 7 % 3 % 2) as u32 * 5).collect();
    let data = mask.iter().map(|&x| x as f64).collect();
    (mask, Array { shape: shape.to_vec(), data })
}

/// One of two tensors, by a mask; the shapes broadcast.
pub fn where_cond(mask: &[usize], a: &[usize], b: &[usize]) -> Case {
    let (name, (own, known)) = (format!("where_cond {mask:?} {a:?} {b:?}"), mask_of(mask));
    let mask = mask.to_vec();
    let call = move |t: &[Tensor]| on(&t[0], &own, &mask)?.where_cond(&t[0], &t[1]);
    let reference = move |i: &[Array]| {
        let shape = naive::broadcast(&naive::broadcast(&i[0].shape, &i[1].shape), &known.shape);
        Array::from_fn(&shape, |at| {
            let side = &i[(known.at_broadcast(at) == 0.0) as usize];
            side.at_broadcast(at)
        })
    };
    Case::new(name, [input(a), input(b)], call, reference)
}

/// -2.5 where a mask is not 0.
pub fn masked_fill(x: &[usize], mask: &[usize]) -> Case {
    let (name, (own, known)) = (format!("masked_fill {x:?} {mask:?}"), mask_of(mask));
    let mask = mask.to_vec();
    let call = move |t: &[Tensor]| t[0].masked_fill(&on(&t[0], &own, &mask)?, -2.5);
    let reference = move |i: &[Array]| {
        naive::binary(&i[0], &known, |x, mask| if mask == 0.0 { x } else { -2.5 })
    };
    Case::new(name, [input(x)], call, reference)
}

/// What is not above a diagonal.
pub fn tril(shape: &[usize], diagonal: i64) -> Case {
    let reference = move |i: &[Array]| {
        Array::from_fn(&i[0].shape, |at| {
            let (row, column) = (at[at.len() - 2] as i128, at[at.len() - 1] as i128);
            if column <= row + diagonal as i128 { i[0].at(at) } else { 0.0 }
        })
    };
    let name = format!("tril {shape:?} {diagonal}");
    Case::new(name, [input(shape)], move |t| t[0].tril(diagonal), reference)
}

pub(super) fn list() -> Vec<Case> {
    vec![
        rows([50, 33], &[6, 43]),
        rows([300, 2], &[70]),
        gather(&[40, 1031], 1, 3),
        gather(&[2, 3, 5], 1, 4),
        scatter_add(&[7, 30, 100], 1, 29),
        scatter_add(&[3, 4], 0, 6),
        index_select(&[6, 50, 70], 1, &[101]),
        index_select(&[2, 3, 5], 1, &[2, 3]),
        where_cond(&[2051], &[9, 2051], &[9, 1]),
        where_cond(&[4], &[3, 1], &[2, 1, 1]),
        masked_fill(&[2, 3, 401], &[3, 1]),
        tril(&[2, 33, 41], 1),
    ]
}
