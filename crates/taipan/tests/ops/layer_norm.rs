//! Layer norm, with and without a bias.

use taipan::check::cases::norms::layer;
use taipan::check::check;
use taipan::{DType, Device, Result, Tensor, layer_norm};

#[test]
fn rows() {
    for shape in [&[5][..], &[1, 6], &[3, 4], &[0, 3], &[2, 3, 33], &[7, 1030]] {
        for eps in [1e-5, 0.5] {
            layer(shape, eps).iter().for_each(check);
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
