"""Inputs and expected values, in f64: reference.py CASE_JSON DIRECTORY

Writes inputs/NAME.f32 (or a model in Hugging Face's layout, and ids.u32), and expected/NAME.f64.
Independent of every contestant: numpy, and torch only as an autograd in f64.
"""

import json
import sys
from pathlib import Path

import numpy as np

CONV, EXPAND, EPSILON = 4, 2, 1e-5
# Losses that a contestant of "step" reports, and its optimiser: AdamW without decay, and with a
# clip that measures the norm but never cuts.
STEPS, LR, MAX_NORM = 3, 1e-3, 1e3


def rounded(values, dtype):
    """Values of f32 that `dtype` can represent."""
    values = values.astype(np.float32)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return values


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def linear(case, inputs):
    m, k, n = (case["sizes"][name] for name in "mkn")
    rng = np.random.default_rng(1)
    shapes = {"x": (m, k), "w": (k, n), "bias": (n,), "dy": (m, n)}
    inputs |= {name: rng.normal(size=shape) for name, shape in shapes.items()}
    inputs["w"] *= k**-0.5
    inputs |= {name: rounded(value, case["dtype"]) for name, value in inputs.items()}
    x, w, bias, dy = (inputs[name].astype(np.float64) for name in shapes)
    product = x @ w
    pre = product + bias
    # gelu in its tanh form is x·σ(v)
    v = 2 * np.sqrt(2 / np.pi) * (pre + 0.044715 * pre**3)
    s, dv = sigmoid(v), 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * pre**2)
    dpre = dy * (s + pre * s * (1 - s) * dv)
    return {
        "y": pre * s,
        "dx": dpre @ w.T,
        "dw": x.T @ dpre,
        "dbias": dpre.sum(0),
        "product": product,
        "product_dx": dy @ w.T,
        "product_dw": x.T @ dy,
    }


class Scan:
    """The selective scan of Mamba: u, delta, z [b, l, d], b, c [b, l, n], a_log [d, n], d,
    delta_bias [d]. States are recomputed in segments, so that any length fits in memory."""

    SEGMENT = 512

    def __init__(self, u, delta, a_log, b, c, d, delta_bias, z):
        self.u, self.b, self.c, self.d, self.z = u, b, c, d, z
        self.a = -np.exp(a_log)
        self.pre = delta + delta_bias
        self.delta = np.logaddexp(0, self.pre)

    def a_bar(self, t):
        return np.exp(self.delta[:, t, :, None] * self.a)

    def advance(self, h, t):
        inflow = (self.delta[:, t] * self.u[:, t])[..., None] * self.b[:, t, None]
        return self.a_bar(t) * h + inflow

    def forward(self):
        rows, length, channels = self.u.shape
        h, self.saved = np.zeros((rows, *self.a.shape)), []
        self.out = self.d * self.u
        for t in range(length):
            if t % self.SEGMENT == 0:
                self.saved.append(h)
            h = self.advance(h, t)
            self.out[:, t] += np.einsum("bdn,bn->bd", h, self.c[:, t])
        return self.out * self.z * sigmoid(self.z)

    def backward(self, dy):
        """The gradients in the order of the arguments."""
        s = sigmoid(self.z)
        dz = dy * self.out * s * (1 + self.z * (1 - s))
        dout = dy * self.z * s
        du, dd = dout * self.d, np.einsum("bld,bld->d", dout, self.u)
        ddelta, da = np.zeros_like(du), np.zeros_like(self.a)
        db, dc = np.zeros_like(self.b), np.zeros_like(self.c)
        g = np.zeros_like(self.saved[0])
        for segment in reversed(range(len(self.saved))):
            start = segment * self.SEGMENT
            states = [self.saved[segment]]
            for t in range(start, min(start + self.SEGMENT, self.u.shape[1])):
                states.append(self.advance(states[-1], t))
            for i in reversed(range(len(states) - 1)):
                t = start + i
                g += dout[:, t, :, None] * self.c[:, t, None]
                dc[:, t] = np.einsum("bd,bdn->bn", dout[:, t], states[i + 1])
                db[:, t] = np.einsum("bdn,bd->bn", g, self.delta[:, t] * self.u[:, t])
                into = np.einsum("bdn,bn->bd", g, self.b[:, t])
                du[:, t] += self.delta[:, t] * into
                a_bar = self.a_bar(t)
                decay = g * states[i] * a_bar
                da += np.einsum("bdn,bd->dn", decay, self.delta[:, t])
                ddelta[:, t] = np.einsum("bdn,dn->bd", decay, self.a) + into * self.u[:, t]
                g *= a_bar
        ddelta *= sigmoid(self.pre)
        return du, ddelta, da * self.a, db, dc, dd, ddelta.sum((0, 1)), dz


def scan(case, inputs):
    b, l, d, n = (case["sizes"][name] for name in "bldn")
    rng = np.random.default_rng(2)
    shapes = {"u": (b, l, d), "delta": (b, l, d), "b": (b, l, n), "c": (b, l, n), "z": (b, l, d)}
    inputs |= {name: rounded(rng.normal(size=shape), "f32") for name, shape in shapes.items()}
    # As a model starts: A = −1 … −n, and steps around softplus(−4) = 0.018.
    inputs["a_log"] = rounded(np.log(np.tile(np.arange(1, n + 1), (d, 1))), "f32")
    inputs["d"] = np.ones(d, np.float32)
    inputs["delta_bias"] = np.full(d, -4, np.float32)
    inputs["dy"] = rounded(rng.normal(size=(b, l, d)), "f32")
    order = "u", "delta", "a_log", "b", "c", "d", "delta_bias", "z"
    values = Scan(*(inputs[name].astype(np.float64) for name in order))
    expected = {"y": values.forward()}
    gradients = values.backward(inputs["dy"].astype(np.float64))
    return expected | {f"d{name}": gradient for name, gradient in zip(order, gradients)}


def weights(sizes):
    """The tensors of a model by their names in Hugging Face's files, in f32."""
    rng = np.random.default_rng(3)
    d, state = sizes["d"], 16
    inner, rank = EXPAND * d, -(-d // 16)

    def uniform(*shape):
        return rng.uniform(-1, 1, shape) * shape[-1] ** -0.5

    tensors = {"backbone.embeddings.weight": rng.normal(0, d**-0.5, (sizes["vocab"], d))}
    for i in range(sizes["layers"]):
        layer = {
            "norm.weight": np.ones(d),
            "mixer.in_proj.weight": uniform(2 * inner, d),
            "mixer.conv1d.weight": uniform(inner, 1, CONV),
            "mixer.conv1d.bias": uniform(inner),
            "mixer.x_proj.weight": uniform(rank + 2 * state, inner),
            "mixer.dt_proj.weight": uniform(inner, rank),
            "mixer.dt_proj.bias": np.log(np.expm1(rng.uniform(1e-3, 0.1, inner))),
            "mixer.A_log": np.log(np.tile(np.arange(1, state + 1), (inner, 1))),
            "mixer.D": np.ones(inner),
            "mixer.out_proj.weight": uniform(d, inner),
        }
        tensors |= {f"backbone.layers.{i}.{name}": tensor for name, tensor in layer.items()}
    tensors["backbone.norm_f.weight"] = np.ones(d)
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def config(sizes):
    d = sizes["d"]
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "vocab_size": sizes["vocab"],
        "hidden_size": d,
        "intermediate_size": EXPAND * d,
        "num_hidden_layers": sizes["layers"],
        "state_size": 16,
        "conv_kernel": CONV,
        "expand": EXPAND,
        "time_step_rank": -(-d // 16),
        "layer_norm_epsilon": EPSILON,
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "residual_in_fp32": True,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def token_ids(count, vocab):
    """No two neighbours are equal, and none is 0, which some models take for padding."""
    return (1 + np.arange(count) * 7919 % (vocab - 1)).astype(np.uint32)


def scan_in_torch():
    import torch

    class ScanFunction(torch.autograd.Function):
        @staticmethod
        def forward(context, *tensors):
            context.scan = Scan(*(tensor.detach().numpy() for tensor in tensors))
            return torch.from_numpy(context.scan.forward())

        @staticmethod
        def backward(context, dy):
            return tuple(torch.from_numpy(g) for g in context.scan.backward(dy.numpy()))

    return ScanFunction.apply


def hidden(p, sizes, ids, selective_scan):
    """The states before the head, [b, l, d], of the tokens `ids` [b, l]."""
    import torch.nn.functional as F

    def norm(x, weight):
        return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight

    h = p["backbone.embeddings.weight"][ids]
    rank = -(-sizes["d"] // 16)
    for i in range(sizes["layers"]):
        w = {k.split(".", 3)[3]: v for k, v in p.items() if k.startswith(f"backbone.layers.{i}.")}
        x = norm(h, w["norm.weight"]) @ w["mixer.in_proj.weight"].T
        x, z = x.chunk(2, -1)
        x = F.pad(x.transpose(1, 2), (CONV - 1, 0))
        x = F.conv1d(x, w["mixer.conv1d.weight"], w["mixer.conv1d.bias"], groups=x.shape[1])
        x = F.silu(x).transpose(1, 2)
        dt, b, c = (x @ w["mixer.x_proj.weight"].T).split([rank, 16, 16], -1)
        delta = dt @ w["mixer.dt_proj.weight"].T
        a_log, d, bias = w["mixer.A_log"], w["mixer.D"], w["mixer.dt_proj.bias"]
        h = h + selective_scan(x, delta, a_log, b, c, d, bias, z) @ w["mixer.out_proj.weight"].T
    return norm(h, p["backbone.norm_f.weight"])


def model(case, inputs):
    """Weights, tokens, and what a training or a prompt gives."""
    import torch
    import torch.nn.functional as F
    from safetensors.numpy import save_file

    sizes, directory = case["sizes"], inputs.pop("directory")
    tensors = weights(sizes)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config(sizes)))
    rows = sizes.get("batch", 1)
    ids = token_ids(rows * sizes["length"] + 1, sizes["vocab"])
    ids.tofile(directory / "ids.u32")
    ids = torch.from_numpy(ids.astype(np.int64))
    p = {name: torch.from_numpy(value.astype(np.float64)) for name, value in tensors.items()}
    selective_scan = scan_in_torch()
    if case["task"] != "step":
        with torch.no_grad():
            last = hidden(p, sizes, ids[None, :-1], selective_scan)[0, -1]
            logits = p["backbone.embeddings.weight"] @ last
            return {"logprobs": logits.log_softmax(-1).numpy()}
    for parameter in p.values():
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(p.values(), lr=LR, weight_decay=0)
    x, y = ids[:-1].reshape(rows, -1), ids[1:]
    losses = []
    for _ in range(STEPS):
        states = hidden(p, sizes, x, selective_scan)
        logits = states.reshape(len(y), -1) @ p["backbone.embeddings.weight"].T
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": np.array(losses)}


def main():
    case, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    (directory / "inputs").mkdir(parents=True)
    (directory / "expected").mkdir()
    if case["task"] in ("linear", "scan"):
        inputs = {}
        expected = (linear if case["task"] == "linear" else scan)(case, inputs)
        for name, value in inputs.items():
            value.astype(np.float32).tofile(directory / "inputs" / f"{name}.f32")
    else:
        expected = model(case, {"directory": directory / "inputs"})
    for name, value in expected.items():
        value.astype(np.float64).tofile(directory / "expected" / f"{name}.f64")


if __name__ == "__main__":
    main()
