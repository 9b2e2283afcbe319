//! Layer norm, with and without a bias.

use taipan::check::{Array, Case, Values, check, input_of};
use taipan::{DType, Device, Result, Tensor, layer_norm};

use crate::naive;

/// `(x − mean)·weight / √(variance + eps) + bias` along the last dimension.
fn reference(i: &[Array], eps: f64) -> Array {
    let (x, n) = (&i[0], *i[0].shape.last().unwrap());
    Array::from_fn(&x.shape, |at| {
        let last = at.len() - 1;
        let row: Vec<f64> = (0..n).map(|j| naive::moved(x, at, last, j)).collect();
        let mean = naive::mean(&row);
        let squares: Vec<f64> = row.iter().map(|x| (x - mean).powi(2)).collect();
        let y = (x.at(at) - mean) * i[1].data[at[last]] / (naive::mean(&squares) + eps).sqrt();
        y + i.get(2).map_or(0.0, |bias| bias.data[at[last]])
    })
}

#[test]
fn rows() {
    for shape in [&[5][..], &[1, 6], &[3, 4], &[0, 3], &[2, 3, 33], &[7, 1030]] {
        let n = *shape.last().unwrap();
        for eps in [1e-5, 0.5] {
            let x = input_of(shape, Values::Between(-1.0, 3.0));
            let weight = input_of(&[n], Values::Either(0.5, 1.5));
            let case = Case::new(
                format!("layer_norm {shape:?} {eps}"),
                [x.clone(), weight.clone()],
                move |t| layer_norm(&t[0], &t[1], None, eps),
                move |i: &[Array]| reference(i, eps),
            );
            check(&case.cancelling(64));
            let case = Case::new(
                format!("layer_norm with bias {shape:?} {eps}"),
                [x, weight, input_of(&[n], Values::Between(-1.0, 1.0))],
                move |t| layer_norm(&t[0], &t[1], Some(&t[2]), eps),
                move |i: &[Array]| reference(i, eps),
            );
            check(&case.cancelling(64));
        }
    }
}

#[test]
fn errors() -> Result<()> {
    let cpu = &Device::Cpu;
    let x = Tensor::ones(&[2, 3], DType::F32, cpu)?;
    let (w, other) = (Tensor::ones(&[3], DType::F32, cpu)?, Tensor::ones(&[2], DType::F32, cpu)?);
    let half = Tensor::ones(&[3], DType::F16, cpu)?;
    let cases = [
        (layer_norm(&x, &other, None, 0.0), "layer_norm: the weight is [2], expected [3]"),
        (layer_norm(&x, &w, Some(&other), 0.0), "layer_norm: the bias is [2], expected [3]"),
        (layer_norm(&x, &w, Some(&half), 0.0), "layer_norm: the bias is f16, expected f32"),
        (layer_norm(&x.sum()?, &w, None, 0.0), "layer_norm: the input is [], expected […, n]"),
    ];
    for (found, expected) in cases {
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
    Ok(())
}
