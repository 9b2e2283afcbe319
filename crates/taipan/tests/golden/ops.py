"""Golden values of the general ops, from PyTorch in float64.

    python3 -m pip install torch
    python3 crates/taipan/tests/golden/ops.py

writes ops.json beside this file: for each case the inputs, indices if it has some, an upstream, the
result and the gradient of each input. tests/golden_ops.rs feeds the inputs to taipan and compares.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
HERE = pathlib.Path(__file__).parent

CASES = []


def array(x):
    """A tensor as its shape and its numbers, row by row."""
    return {"shape": list(x.shape), "data": x.detach().flatten().tolist()}


def case(name, f, *inputs, index=None):
    """The value of f and the gradient of each input, for a random upstream."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = f(*inputs) if index is None else f(*inputs, index)
    entry = {"name": name, "inputs": [array(x) for x in inputs], "y": array(y)}
    if index is not None:
        entry["index"] = array(index)
    if y.requires_grad:
        dy = torch.randn(y.shape)
        y.backward(dy)
        entry |= {"dy": array(dy), "grads": [array(x.grad) for x in inputs]}
    CASES.append(entry)


def randn(*shape):
    return torch.randn(shape)


# Functions of one number, kinks included.
grid, positive = torch.linspace(-4, 4, 17), torch.linspace(0.25, 4, 16)
angles = torch.tensor([0.0, 0.1, -1.0, 3.0, 100.0, -12345.0, 1e8])
case("abs", torch.abs, grid)
case("recip", torch.reciprocal, positive)
case("rsqrt", torch.rsqrt, positive)
case("sin", torch.sin, angles)
case("cos", torch.cos, angles)
case("pow 3", lambda x: x.pow(3), grid)
case("pow -1.5", lambda x: x.pow(-1.5), positive)
case("pow 0.3", lambda x: x.pow(0.3), positive)
case("clamp", lambda x: x.clamp(-1, 2), grid)
case("1 / x", lambda x: 1 / x, positive)
case("2 - 3 x", lambda x: 2 - 3 * x, grid)

# Two operands, with equal elements.
a, b = torch.tensor([1.0, 2.0, 3.0, -1.0]), torch.tensor([[2.0], [-1.0], [3.5]])
case("maximum", torch.maximum, a, b)
case("minimum", torch.minimum, a, b)
case("where", lambda a, b: torch.where(a > b, a * a, b), a, b)
for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
    with torch.no_grad():
        case(name, lambda a, b: getattr(torch, name)(a, b).double(), a, b)
case("masked_fill", lambda x: x.masked_fill(x > 0.5, -7), randn(3, 4))
case("tril", lambda x: x.tril(-1), randn(2, 3, 4))

# Reductions and what is made of them; the minimum with equal elements.
x = randn(2, 3, 4)
case("min", lambda x: x.amin(1), torch.tensor([[1.0, 2.0, 1.0], [0.0, -1.0, -2.0]]))
case("sum_keepdim", lambda x: x.sum((0, 2), keepdim=True), x)
case("var", lambda x: x.var((0, 2), correction=1), x)
case("std", lambda x: x.std(1, correction=0), x)
case("logsumexp", lambda x: x.logsumexp((0, 2)), x)
case("log_softmax", lambda x: x.log_softmax(1), 3 * x)
case("cumsum", lambda x: x.cumsum(1), x)

# By index.
case("gather", lambda x, i: x.gather(1, i), x, index=torch.randint(3, (2, 5, 4)))
case("index_select", lambda x, i: x.index_select(2, i), x, index=torch.tensor([3, 0, 3, 1, 3]))
index = torch.randint(3, (2, 5, 4))
case("scatter_add", lambda x, s, i: x.scatter_add(1, i, s), x, randn(2, 5, 4), index=index)
case("one_hot", lambda i: F.one_hot(i, 4).double(), index=torch.tensor([[3, 0], [1, 3]]))

# Rearrangements.
case("stack", lambda a, b: torch.stack([a, b], 1), randn(2, 3), randn(2, 3))
case("squeeze", lambda x: x.unsqueeze(1).squeeze(0), randn(1, 3))
case("flip", lambda x: x.flip(1), x)
case("repeat", lambda x: x.repeat(2, 1, 3), randn(2, 3))
case("expand", lambda x: x.expand(2, 3, 4), randn(3, 1))
case("pad", lambda x: F.pad(x, (0, 0, 1, 2), value=-1.5), x)
case("split", lambda x: x.split([1, 2], 1)[1], x)

# Layers and losses.
case("layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b), randn(2, 3, 5), randn(5), randn(5))
case("mse_loss", F.mse_loss, randn(3, 4), randn(3, 4))
case("bce", F.binary_cross_entropy_with_logits, 5 * randn(3, 4), torch.rand(3, 4))
case("linear_residual", lambda x, w, b, r: x @ w + b + r, randn(3, 4), randn(4, 2), randn(2), randn(3, 2))

# Of Mamba-3: pairs of channels as complex numbers, of which the first two are turned.
def rotate(x, turns):
    x = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    turn = torch.polar(torch.ones_like(turns), 2 * torch.pi * turns)[:, :, None]
    turned = torch.cat([x[..., :2] * turn, x[..., 2:]], -1)
    return torch.view_as_real(turned).flatten(-2)


def rotate_halves(x, turns):
    """The same, with the real parts first."""
    pairs = x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return rotate(pairs, turns).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def turn_sum(x, before):
    y = x.cumsum(1) + before[:, None]
    return y - y.round().detach()


case("rotate", rotate, randn(2, 3, 2, 2, 6), randn(2, 3, 2, 2))
case("rotate halves", rotate_halves, randn(2, 3, 2, 2, 6), randn(2, 3, 2, 2))
case("turn_sum", turn_sum, randn(2, 7, 3), randn(2, 3))
case("heavy_tail", lambda x: torch.where(x < 0, 1 / (1 - x.clamp(max=0)), 1 + x), grid + 0.1)


def threefry(rounds, key, counter):
    """Threefry-2x32 (Salmon and others, 2011)."""
    keys = [*key, 0x1BD11BDA ^ key[0] ^ key[1]]
    x0, x1 = ((c + k) % 2**32 for c, k in zip(counter, key))
    for r in range(rounds):
        rotation = (13, 15, 26, 6, 17, 29, 16, 24)[r % 8]
        x0 = (x0 + x1) % 2**32
        x1 = (x1 << rotation | x1 >> 32 - rotation) % 2**32 ^ x0
        if r % 4 == 3:
            i = r // 4 + 1
            x0, x1 = (x0 + keys[i % 3]) % 2**32, (x1 + keys[(i + 1) % 3] + i) % 2**32
    return x0, x1


def dropout(x, p=0.25, key=(5, 7)):
    """PyTorch's formula, with the mask of docs/math.md."""
    words = [threefry(13, key, (i // 128 * 64 + i % 64, 0))[i // 64 % 2] for i in range(x.numel())]
    kept = torch.tensor([word >= p * 2**32 for word in words]).view_as(x)
    return torch.where(kept, x, 0) / (1 - p)


case("neg", lambda x: -x, grid)
case("mean_keepdim", lambda x: x.mean((0, 2), keepdim=True), x)
case("max_keepdim", lambda x: x.amax((0, 2), keepdim=True), x)
case("min_keepdim", lambda x: x.amin(1, keepdim=True), x)
case("var_keepdim", lambda x: x.var(2, correction=1, keepdim=True), x)
case("std_keepdim", lambda x: x.std((0, 1), correction=0, keepdim=True), x)
case("logsumexp_keepdim", lambda x: x.logsumexp(1, keepdim=True), x)
case("dropout", dropout, randn(2, 80))

lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in CASES)
(HERE / "ops.json").write_text(f"[\n{lines}\n]\n")
