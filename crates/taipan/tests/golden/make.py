"""Golden values of activations, linear and softmax, from PyTorch in float64.

    python3 -m pip install torch
    python3 crates/taipan/tests/golden/make.py

writes activations.json, linear.json and softmax.json beside this file. Inputs and results are
stored; tests/golden.rs feeds the inputs to taipan and compares. Numbers have all their digits.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
HERE = pathlib.Path(__file__).parent

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}

FUNCTIONS = {
    "exp": torch.exp,
    "exp_m1": torch.expm1,
    "softplus": lambda x: F.softplus(x, threshold=1e9),
    "ln": torch.log,
    "ln_1p": torch.log1p,
    "sqrt": torch.sqrt,
}


def array(x):
    """A tensor as its shape and its numbers, row by row."""
    return {"shape": list(x.shape), "data": x.detach().flatten().tolist()}


def gradients(f, inputs, dy):
    """The value of f and the gradient of each input, given dy."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = f(*inputs)
    y.backward(dy)
    return y, [x.grad for x in inputs]


def activations():
    """Value and derivative on a grid."""
    grid = torch.linspace(-8, 8, 33)
    positive = torch.linspace(0.25, 8, 32)
    cases = []
    for name, f in (ACTIVATIONS | FUNCTIONS).items():
        x = positive if name in ("ln", "ln_1p", "sqrt") else grid
        y, (dx,) = gradients(f, [x], torch.ones_like(x))
        cases.append({"name": name, "x": array(x), "y": array(y), "derivative": array(dx)})
    return cases


def linear():
    """`f(x·w + bias)` with a random upstream; w as [k, n], one for all or one per batch entry."""
    cases = []
    for name, f in ACTIVATIONS.items():
        for x_shape, w_shape in [([3, 4], [4, 2]), ([2, 2, 3], [3, 2]), ([2, 2, 3], [2, 3, 2])]:
            x, w, bias = torch.randn(x_shape), torch.randn(w_shape), torch.randn(w_shape[-1])
            dy = torch.randn(x_shape[:-1] + w_shape[-1:])
            y, (dx, dw, dbias) = gradients(lambda x, w, b: f(x @ w + b), [x, w, bias], dy)
            names = ["x", "w", "bias", "dy", "y", "dx", "dw", "dbias"]
            arrays = [x, w, bias, dy, y, dx, dw, dbias]
            cases.append({"name": name} | {n: array(a) for n, a in zip(names, arrays)})
    return cases


def softmax():
    """Along each dimension, with a random upstream."""
    cases = []
    for shape in [[5], [3, 4], [2, 3, 2]]:
        for dim in range(len(shape)):
            x, dy = 3 * torch.randn(shape), torch.randn(shape)
            y, (dx,) = gradients(lambda x: torch.softmax(x, dim), [x], dy)
            names, arrays = ["x", "dy", "y", "dx"], [x, dy, y, dx]
            cases.append({"dim": dim} | {n: array(a) for n, a in zip(names, arrays)})
    return cases


for number, make in enumerate([activations, linear, softmax]):
    torch.manual_seed(number)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in make())
    (HERE / f"{make.__name__}.json").write_text(f"[\n{lines}\n]\n")
