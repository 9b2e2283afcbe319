//! The gated product.

use taipan::check::cases::elementwise::gate;
use taipan::check::{Array, Case, Values, array, check, devices, input_of};
use taipan::{Activation, DType, Result, Tensor, gated};

use crate::naive;

#[test]
fn every_activation() {
    for &activation in Activation::ALL {
        check(&gate(&[3, 7], activation));
    }
}

#[test]
fn every_shape() {
    for shape in [&[][..], &[1], &[0], &[2, 0, 3], &[1023], &[1025], &[2, 3, 171], &[16385]] {
        check(&gate(shape, Activation::Silu));
    }
}

/// Both sides are one tensor: both gradients count.
#[test]
fn a_tensor_gates_itself() {
    check(&Case::new(
        "gated by itself",
        [input_of(&[40], Values::Between(-3.0, 3.0))],
        |t| gated(&t[0], &t[0], Activation::Silu),
        |i: &[Array]| i[0].map(|x| x * naive::phi(Activation::Silu, x)),
    ));
}

/// A gate far out is shut or open, and so is the way back.
#[test]
fn gates_far_out() -> Result<()> {
    for device in devices() {
        let gates = [1e30f32, f32::INFINITY, -1e30, f32::NEG_INFINITY, f32::NAN];
        for activation in [Activation::Sigmoid, Activation::Relu, Activation::Silu] {
            let gate = Tensor::new(&gates, &[5], &device)?.tracked();
            let x = Tensor::full(&[5], 3.0, DType::F32, &device)?.tracked();
            let y = gated(&x, &gate, activation)?;
            let open = if activation == Activation::Sigmoid { 1.0 } else { 1e30f32 };
            let widest = if activation == Activation::Sigmoid { 1.0 } else { f32::INFINITY };
            let derivative = if activation == Activation::Sigmoid { 0.0 } else { 3.0 };
            let grads = y.backward_from(&Tensor::ones(&[5], DType::F32, &device)?)?;
            let want = [
                (array(&y).data, [3.0 * open, 3.0 * widest, 0.0, 0.0, f32::NAN]),
                (array(grads.of(&x)?).data, [open, widest, 0.0, 0.0, f32::NAN]),
                (array(grads.of(&gate)?).data, [derivative, derivative, 0.0, 0.0, f32::NAN]),
            ];
            for (got, want) in want {
                for (got, want) in got.iter().zip(want) {
                    let same = *got as f32 == want || got.is_nan() && want.is_nan();
                    assert!(same, "{activation:?} on {}: {got}, want {want}", device.name());
                }
            }
        }
    }
    Ok(())
}
