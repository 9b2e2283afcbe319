//! Values and gradients of PyTorch in f64: `tests/golden/make.py` made them and says how.

mod harness;

use serde_json::Value;
use taipan::{
    Activation, DType, Device, Hold, Result, Scan, Step, Tensor, Weight, linear, selective_scan,
};

use harness::{Array, array, tensor};

/// The cases of a file.
fn cases(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
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

/// The method with a name.
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

/// An input of a case.
fn leaf(case: &Value, name: &str) -> Tensor {
    tensor(&golden(case, name), DType::F64, &Device::Cpu).tracked()
}

#[test]
fn functions_and_slopes() -> Result<()> {
    let cases = cases(include_str!("golden/activations.json"));
    assert_eq!(cases.len(), 13);
    for case in &cases {
        let x = leaf(case, "x");
        let y = function(case["name"].as_str().unwrap())(&x)?;
        expect(case, "y", &y);
        let ones = Tensor::ones(y.shape(), DType::F64, &Device::Cpu)?;
        expect(case, "slope", y.backward_from(&ones)?.of(&x)?);
    }
    Ok(())
}

#[test]
fn linear_and_its_gradients() -> Result<()> {
    let cases = cases(include_str!("golden/linear.json"));
    assert_eq!(cases.len(), 7 * 3);
    for case in &cases {
        let [x, w, bias] = ["x", "w", "bias"].map(|name| leaf(case, name));
        let activation = activation(case["name"].as_str().unwrap());
        let dy = leaf(case, "dy").detached();

        let y = linear(&x, &w, Some(&bias), activation)?;
        expect(case, "y", &y);
        let grads = y.backward_from(&dy)?;
        expect(case, "dx", grads.of(&x)?);
        expect(case, "dw", grads.of(&w)?);
        expect(case, "dbias", grads.of(&bias)?);

        let nk = w.detached().transpose(w.rank() - 2, w.rank() - 1)?.tracked();
        let y = linear(&x, Weight::nk(&nk), Some(&bias), activation)?;
        expect(case, "y", &y);
        let grads = y.backward_from(&dy)?;
        expect(case, "dx", grads.of(&x)?);
        expect(case, "dw", &grads.of(&nk)?.transpose(w.rank() - 2, w.rank() - 1)?);
        expect(case, "dbias", grads.of(&bias)?);
    }
    Ok(())
}

#[test]
fn softmax_and_its_gradient() -> Result<()> {
    let cases = cases(include_str!("golden/softmax.json"));
    assert_eq!(cases.len(), 6);
    for case in &cases {
        let x = leaf(case, "x");
        let y = x.softmax(case["dim"].as_u64().unwrap() as usize)?;
        expect(case, "y", &y);
        expect(case, "dx", y.backward_from(&leaf(case, "dy").detached())?.of(&x)?);
    }
    Ok(())
}

/// An input of a case that may be absent.
fn optional(case: &Value, name: &str) -> Option<Tensor> {
    case.get(name).map(|_| leaf(case, name))
}

/// Euler's rule by transformers, zero-order hold by a recurrence in PyTorch.
#[test]
fn selective_scan_and_its_gradients() -> Result<()> {
    let cases = cases(include_str!("golden/scan.json"));
    assert_eq!(cases.len(), 11);
    for case in &cases {
        let [u, delta, a_log, b, c] = ["u", "delta", "A_log", "B", "C"].map(|x| leaf(case, x));
        let names = ["D", "delta_bias", "z", "h0"];
        let [d, delta_bias, z, state] = names.map(|name| optional(case, name));
        let (y, last) = selective_scan(&Scan {
            d: d.as_ref(),
            delta_bias: delta_bias.as_ref(),
            z: z.as_ref(),
            state: state.as_ref(),
            hold: if case["rule"] == "euler" { Hold::Euler } else { Hold::ZeroOrder },
            step: if case["softplus"] == true { Step::Softplus } else { Step::Plain },
            ..Scan::new(&u, &delta, &a_log, &b, &c)
        })?;
        expect(case, "y", &y);
        expect(case, "last", &last);
        let mut loss = y.mul(&leaf(case, "dy").detached())?.sum()?;
        if let Some(dlast) = optional(case, "dlast") {
            loss = loss.add(&last.mul(&dlast.detached())?.sum()?)?;
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
