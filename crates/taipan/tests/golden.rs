//! Values and gradients of PyTorch in f64: `tests/golden/make.py` made them and says how.

use serde_json::Value;
use taipan::check::{Array, array, tensor};
use taipan::{
    Activation, CausalConv1d, DType, Device, Discretization, Result, Scan, StepSize, Tensor,
    Weight, add_rms_norm, causal_conv1d, cross_entropy, embedding, linear, rms_norm,
    selective_scan,
};

/// The `N` cases of a file.
fn cases<const N: usize>(text: &str) -> [Value; N] {
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    cases.try_into().unwrap_or_else(|cases: Vec<_>| panic!("{} cases", cases.len()))
}

/// An array of a case.
fn golden(case: &Value, name: &str) -> Array {
    let list = |value: &Value| value.as_array().unwrap().clone();
    Array {
        shape: list(&case[name]["shape"]).iter().map(|n| n.as_u64().unwrap() as usize).collect(),
        data: list(&case[name]["data"]).iter().map(|x| x.as_f64().unwrap()).collect(),
    }
}

/// Expect an array of a case, each number to 1e-12 of the larger of itself and the array's root
/// mean square: where terms cancel, PyTorch's last digits are no better than ours.
fn expect(case: &Value, name: &str, got: &Tensor) {
    let (got, want) = (array(got), golden(case, name));
    assert_eq!(got.shape, want.shape, "{name} of {}", case["name"]);
    let rms = want.rms();
    for (i, (got, want)) in got.data.iter().zip(&want.data).enumerate() {
        let within = 1e-12 * want.abs().max(rms);
        assert!(
            (got - want).abs() <= within,
            "{name} of {}, element {i}: got {got:e}, PyTorch has {want:e}, tolerance {within:e}",
            case["name"]
        );
    }
}

fn activation(name: &str) -> Activation {
    match name {
        "none" => Activation::None,
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "gelu_erf" => Activation::GeluErf,
        "silu" => Activation::Silu,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        other => panic!("an activation called {other}"),
    }
}

/// The method of this name.
fn function(name: &str) -> fn(&Tensor) -> Result<Tensor> {
    match name {
        "none" => |x| Ok(x.clone()),
        "relu" => Tensor::relu,
        "gelu" => Tensor::gelu,
        "gelu_erf" => Tensor::gelu_erf,
        "silu" => Tensor::silu,
        "sigmoid" => Tensor::sigmoid,
        "tanh" => Tensor::tanh,
        "exp" => Tensor::exp,
        "exp_m1" => Tensor::expm1,
        "softplus" => Tensor::softplus,
        "ln" => Tensor::log,
        "ln_1p" => Tensor::log1p,
        "sqrt" => Tensor::sqrt,
        other => panic!("a function called {other}"),
    }
}

/// Expect the result `y` of a case and, given its `dy`, the gradients of inputs by their names.
fn expect_with_grads(case: &Value, y: &Tensor, inputs: &[(&str, &Tensor)]) -> Result<()> {
    expect(case, "y", y);
    let grads = y.backward_from(&leaf(case, "dy").detached())?;
    for (name, x) in inputs {
        expect(case, &format!("d{name}"), grads.of(x)?);
    }
    Ok(())
}

/// An input of a case.
fn leaf(case: &Value, name: &str) -> Tensor {
    tensor(&golden(case, name), DType::F64, &Device::Cpu).tracked()
}

#[test]
fn functions_and_derivatives() -> Result<()> {
    for case in &cases::<13>(include_str!("golden/activations.json")) {
        let x = leaf(case, "x");
        let y = function(case["name"].as_str().unwrap())(&x)?;
        expect(case, "y", &y);
        let ones = Tensor::ones(y.shape(), DType::F64, &Device::Cpu)?;
        expect(case, "derivative", y.backward_from(&ones)?.of(&x)?);
    }
    Ok(())
}

#[test]
fn linear_and_its_gradients() -> Result<()> {
    for case in &cases::<{ 7 * 3 }>(include_str!("golden/linear.json")) {
        let [x, w, bias] = ["x", "w", "bias"].map(|name| leaf(case, name));
        let activation = activation(case["name"].as_str().unwrap());
        let y = linear(&x, &w, Some(&bias), activation)?;
        expect_with_grads(case, &y, &[("x", &x), ("w", &w), ("bias", &bias)])?;

        let nk = w.transpose(w.rank() - 2, w.rank() - 1)?;
        let y = linear(&x, Weight::nk(&nk), Some(&bias), activation)?;
        expect_with_grads(case, &y, &[("x", &x), ("w", &w), ("bias", &bias)])?;
    }
    Ok(())
}

#[test]
fn softmax_and_its_gradient() -> Result<()> {
    for case in &cases::<6>(include_str!("golden/softmax.json")) {
        let x = leaf(case, "x");
        let y = x.softmax(case["dim"].as_u64().unwrap() as usize)?;
        expect_with_grads(case, &y, &[("x", &x)])?;
    }
    Ok(())
}

/// An input of a case that may be absent.
fn optional(case: &Value, name: &str) -> Option<Tensor> {
    case.get(name).map(|_| leaf(case, name))
}

/// Euler's method by transformers, zero-order hold by a recurrence in PyTorch.
#[test]
fn selective_scan_and_its_gradients() -> Result<()> {
    for case in &cases::<11>(include_str!("golden/scan.json")) {
        let [u, delta, a_log, b, c] = ["u", "delta", "A_log", "B", "C"].map(|x| leaf(case, x));
        let names = ["D", "delta_bias", "z", "h0"];
        let [d, delta_bias, z, state] = names.map(|name| optional(case, name));
        let (y, final_state) = selective_scan(&Scan {
            d: d.as_ref(),
            delta_bias: delta_bias.as_ref(),
            z: z.as_ref(),
            initial_state: state.as_ref(),
            discretization: if case["rule"] == "euler" {
                Discretization::Euler
            } else {
                Discretization::ZeroOrderHold
            },
            step: if case["softplus"] == true { StepSize::Softplus } else { StepSize::Plain },
            ..Scan::new(&u, &delta, &a_log, &b, &c)
        })?;
        expect(case, "y", &y);
        expect(case, "last", &final_state);
        let mut loss = y.mul(&leaf(case, "dy").detached())?.sum()?;
        if let Some(dfinal_state) = optional(case, "dlast") {
            loss = loss.add(&final_state.mul(&dfinal_state.detached())?.sum()?)?;
        }
        let grads = loss.backward()?;
        for (name, x) in [("u", &u), ("delta", &delta), ("A_log", &a_log), ("B", &b), ("C", &c)] {
            expect(case, &format!("d{name}"), grads.of(x)?);
        }
        for (name, x) in names.iter().zip([&d, &delta_bias, &z, &state]) {
            if let Some(x) = x {
                expect(case, &format!("d{name}"), grads.of(x)?);
            }
        }
    }
    Ok(())
}

/// Integers of a case, as indices.
fn indices(case: &Value, name: &str) -> Tensor {
    let Array { shape, data } = golden(case, name);
    // An ignored target may be negative: it is replaced by a u32 that is not used.
    let data: Vec<u32> = data.iter().map(|&x| if x < 0.0 { u32::MAX } else { x as u32 }).collect();
    Tensor::new(&data, &shape, &Device::Cpu).unwrap()
}

#[test]
fn causal_convolution_and_its_gradients() -> Result<()> {
    for case in &cases::<5>(include_str!("golden/conv.json")) {
        let (x, w, bias) = (leaf(case, "x"), leaf(case, "w"), optional(case, "bias"));
        let activation = if case["silu"] == true { Activation::Silu } else { Activation::None };
        let conv = CausalConv1d { bias: bias.as_ref(), activation, ..CausalConv1d::new(&x, &w) };
        let (y, _) = causal_conv1d(&conv)?;
        let inputs = [("x", &x), ("w", &w)].into_iter().chain(bias.as_ref().map(|b| ("bias", b)));
        expect_with_grads(case, &y, &inputs.collect::<Vec<_>>())?;
    }
    Ok(())
}

#[test]
fn rms_norm_and_its_gradients() -> Result<()> {
    for case in &cases::<4>(include_str!("golden/rms_norm.json")) {
        let (x, w, eps) = (leaf(case, "x"), leaf(case, "w"), case["eps"].as_f64().unwrap());
        let dy = leaf(case, "dy").detached();
        let grads = match optional(case, "residual") {
            None => {
                let y = rms_norm(&x, &w, eps)?;
                expect(case, "y", &y);
                y.backward_from(&dy)?
            }
            Some(residual) => {
                let (y, sum) = add_rms_norm(&x, &residual, &w, eps)?;
                expect(case, "y", &y);
                expect(case, "sum", &sum);
                let dsum = leaf(case, "dsum").detached();
                let loss = y.mul(&dy)?.sum()?.add(&sum.mul(&dsum)?.sum()?)?;
                let grads = loss.backward()?;
                expect(case, "dresidual", grads.of(&residual)?);
                grads
            }
        };
        expect(case, "dx", grads.of(&x)?);
        expect(case, "dw", grads.of(&w)?);
    }
    Ok(())
}

#[test]
fn cross_entropy_and_its_gradient() -> Result<()> {
    for case in &cases::<4>(include_str!("golden/cross_entropy.json")) {
        let (logits, targets) = (leaf(case, "logits"), indices(case, "targets"));
        let ignore = case["ignore"].as_i64().unwrap();
        let loss =
            cross_entropy(&logits, &targets, Some(u32::try_from(ignore).unwrap_or(u32::MAX)))?;
        expect(case, "loss", &loss);
        let grads = loss.backward_from(&leaf(case, "dloss").detached())?;
        expect(case, "dlogits", grads.of(&logits)?);
    }
    Ok(())
}

#[test]
fn embedding_and_its_gradient() -> Result<()> {
    for case in &cases::<2>(include_str!("golden/embedding.json")) {
        let table = leaf(case, "table");
        let y = embedding(&table, &indices(case, "ids"))?;
        expect_with_grads(case, &y, &[("table", &table)])?;
    }
    Ok(())
}

/// Transformers' whole mixer, the heart of a Mamba block, made of the ops above: its result, and
/// the gradients of its input and of every weight.
#[test]
fn a_mamba_mixer_and_its_gradients() -> Result<()> {
    let [case] = &cases(include_str!("golden/mixer.json"));
    let x = leaf(case, "x");
    let names = [
        "in_proj.weight",
        "conv1d.weight",
        "conv1d.bias",
        "x_proj.weight",
        "dt_proj.weight",
        "dt_proj.bias",
        "A_log",
        "D",
        "out_proj.weight",
    ];
    let weights = names.map(|name| leaf(case, name));
    let [in_proj, conv, conv_bias, x_proj, dt_proj, dt_bias, a_log, d, out_proj] = &weights;
    let (inner, n, rank) = (a_log.shape()[0], a_log.shape()[1], dt_proj.shape()[1]);
    let linear = |x: &Tensor, w: &Tensor| linear(x, Weight::nk(w), None, Activation::None);

    let both = linear(&x, in_proj)?;
    let (u, z) = (both.slice(2, 0..inner)?, both.slice(2, inner..2 * inner)?);
    let conv = conv.reshape(&[inner, conv.shape()[2]])?;
    let (u, _) = causal_conv1d(&CausalConv1d {
        bias: Some(conv_bias),
        activation: Activation::Silu,
        ..CausalConv1d::new(&u, &conv)
    })?;
    let parts = linear(&u, x_proj)?;
    let delta = linear(&parts.slice(2, 0..rank)?, dt_proj)?;
    let (b, c) = (parts.slice(2, rank..rank + n)?, parts.slice(2, rank + n..rank + 2 * n)?);
    let (y, _) = selective_scan(&Scan {
        d: Some(d),
        delta_bias: Some(dt_bias),
        z: Some(&z),
        ..Scan::new(&u, &delta, a_log, &b, &c)
    })?;
    let y = linear(&y, out_proj)?;
    let inputs: Vec<_> = [("x", &x)].into_iter().chain(names.into_iter().zip(&weights)).collect();
    expect_with_grads(case, &y, &inputs)
}
