//! Gradients that cannot be computed.

use taipan::{DType, Result};

use crate::{refuses, zeros, zeros_of};

#[test]
fn backward() -> Result<()> {
    let x = zeros(&[2, 3]).tracked();
    refuses(
        x.exp()?.backward(),
        "backward: the tensor is [2, 3], expected one element (or an upstream: backward_from)",
    );
    refuses(x.exp()?.backward_from(&zeros(&[3])), "backward: the upstream is [3], expected [2, 3]");
    refuses(
        x.exp()?.backward_from(&zeros_of(DType::F64, &[2, 3])),
        "backward: the upstream is f64, expected f32",
    );
    refuses(zeros(&[]).backward(), "backward: the tensor does not depend on any tracked tensor");
    let y = x.exp()?.sum()?;
    y.backward()?;
    refuses(y.backward(), "backward: the graph of sum was used by an earlier backward");
    Ok(())
}

#[test]
fn gradients_that_do_not_exist() -> Result<()> {
    let x = zeros(&[2]).tracked();
    let y = x.exp()?;
    let grads = y.sum()?.backward()?;
    refuses(grads.of(&zeros(&[2])), "grads: the tensor is not tracked");
    refuses(
        grads.of(&y),
        "grads: the tensor is not a leaf; gradients are kept for tracked leaves only",
    );
    refuses(grads.of(&zeros(&[2]).tracked()), "grads: the result does not depend on the tensor");
    Ok(())
}
