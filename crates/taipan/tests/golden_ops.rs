//! Values and gradients of the general ops against PyTorch in f64: `tests/golden/ops.py` made them
//! and says how.

use serde_json::Value;
use taipan::check::{Array, array, tensor};
use taipan::{
    DType, Device, Pairs, Result, Tensor, TurnSum, binary_cross_entropy_with_logits, layer_norm,
    linear_residual, mse_loss, rotate, stack, turn_sum,
};

fn golden(value: &Value) -> Array {
    let list = |value: &Value| value.as_array().unwrap().clone();
    Array {
        shape: list(&value["shape"]).iter().map(|n| n.as_u64().unwrap() as usize).collect(),
        data: list(&value["data"]).iter().map(|x| x.as_f64().unwrap()).collect(),
    }
}

/// Each number to 1e-12 of the larger of itself and the array's root mean square.
fn expect(name: &str, what: &str, got: &Tensor, want: &Value) {
    let (got, want) = (array(got), golden(want));
    assert_eq!(got.shape, want.shape, "{what} of {name}");
    let rms = want.rms();
    for (i, (got, want)) in got.data.iter().zip(&want.data).enumerate() {
        let within = 1e-12 * want.abs().max(rms);
        assert!(
            (got - want).abs() <= within,
            "{what} of {name}, element {i}: got {got:e}, PyTorch has {want:e}"
        );
    }
}

/// The op of a case: its inputs are `t`, its indices `i`.
fn call(name: &str, t: &[Tensor], i: &Tensor) -> Result<Tensor> {
    let mask = |mask: Result<Tensor>| mask?.cast(DType::F64);
    match name {
        "abs" => t[0].abs(),
        "recip" => t[0].recip(),
        "rsqrt" => t[0].rsqrt(),
        "sin" => t[0].sin(),
        "cos" => t[0].cos(),
        "pow 3" => t[0].pow(3.0),
        "pow -1.5" => t[0].pow(-1.5),
        "pow 0.3" => t[0].pow(0.3),
        "clamp" => t[0].clamp(-1.0, 2.0),
        "1 / x" => 1.0 / &t[0],
        "2 - 3 x" => 2.0 - (3.0 * &t[0])?,
        "maximum" => t[0].maximum(&t[1]),
        "minimum" => t[0].minimum(&t[1]),
        "where" => t[0].gt(&t[1])?.where_cond(&(&t[0] * &t[0])?, &t[1]),
        "eq" => mask(t[0].eq(&t[1])),
        "ne" => mask(t[0].ne(&t[1])),
        "lt" => mask(t[0].lt(&t[1])),
        "le" => mask(t[0].le(&t[1])),
        "gt" => mask(t[0].gt(&t[1])),
        "ge" => mask(t[0].ge(&t[1])),
        "masked_fill" => t[0].masked_fill(&t[0].gt(0.5)?, -7.0),
        "tril" => t[0].tril(-1),
        "min" => t[0].min_dims(&[1]),
        "sum_keepdim" => t[0].sum_keepdim(&[0, 2]),
        "var" => t[0].var_dims(&[0, 2], 1),
        "std" => t[0].std_dims(&[1], 0),
        "logsumexp" => t[0].logsumexp(&[0, 2]),
        "log_softmax" => t[0].log_softmax(1),
        "cumsum" => t[0].cumsum(1),
        "gather" => t[0].gather(1, i),
        "index_select" => t[0].index_select(2, i),
        "scatter_add" => t[0].scatter_add(1, i, &t[1]),
        "one_hot" => i.one_hot(4, DType::F64),
        "stack" => stack(&[&t[0], &t[1]], 1),
        "squeeze" => t[0].unsqueeze(1)?.squeeze(0),
        "flip" => t[0].flip(1),
        "repeat" => t[0].repeat(&[2, 1, 3]),
        "expand" => t[0].broadcast_to(&[2, 3, 4]),
        "pad" => t[0].pad(1, [1, 2], -1.5),
        "split" => Ok(t[0].split(1, &[1, 2])?.swap_remove(1)),
        "layer_norm" => layer_norm(&t[0], &t[1], Some(&t[2]), 1e-5),
        "mse_loss" => mse_loss(&t[0], &t[1]),
        "bce" => binary_cross_entropy_with_logits(&t[0], &t[1]),
        "linear_residual" => linear_residual(&t[0], &t[1], Some(&t[2]), &t[3]),
        "rotate" => rotate(&t[0], &t[1], Pairs::Adjacent),
        "rotate halves" => rotate(&t[0], &t[1], Pairs::Halves),
        "turn_sum" => turn_sum(&TurnSum { turns: &t[0], initial: Some(&t[1]), seq_start: None }),
        "heavy_tail" => t[0].heavy_tail(),
        "neg" => -&t[0],
        "mean_keepdim" => t[0].mean_keepdim(&[0, 2]),
        "max_keepdim" => t[0].max_keepdim(&[0, 2]),
        "min_keepdim" => t[0].min_keepdim(&[1]),
        "var_keepdim" => t[0].var_keepdim(&[2], 1),
        "std_keepdim" => t[0].std_keepdim(&[0, 1], 0),
        "logsumexp_keepdim" => t[0].logsumexp_keepdim(&[1]),
        "dropout" => t[0].dropout(0.25, 7 << 32 | 5),
        other => panic!("an op called {other}"),
    }
}

#[test]
fn values_and_gradients() -> Result<()> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/ops.json")).unwrap();
    assert_eq!(cases.len(), 56);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let inputs = case["inputs"].as_array().unwrap();
        let leaf = |x: &Value| tensor(&golden(x), DType::F64, &Device::Cpu).tracked();
        let inputs: Vec<Tensor> = inputs.iter().map(leaf).collect();
        let Array { shape, data } =
            case.get("index").map_or_else(|| Array { shape: vec![0], data: vec![] }, golden);
        let index: Vec<u32> = data.iter().map(|&i| i as u32).collect();
        let y = call(name, &inputs, &Tensor::new(&index, &shape, &Device::Cpu)?)?;
        expect(name, "the value", &y, &case["y"]);
        let Some(dy) = case.get("dy") else {
            assert!(!y.is_tracked(), "{name} has no gradient");
            continue;
        };
        let grads = y.backward_from(&leaf(dy).detached())?;
        for (i, (x, want)) in inputs.iter().zip(case["grads"].as_array().unwrap()).enumerate() {
            expect(name, &format!("gradient {i}"), grads.of(x)?, want);
        }
    }
    Ok(())
}
