"""Golden values of models of the original code that transformers does not have, from their recurrences in float64:
Mamba-3, and Mamba-2 with an MLP.

    python3 -m pip install torch safetensors
    python3 crates/taipan-lm/tests/golden/original.py [NAME... | single]

The kernels of that code compute in bf16. So these are the recurrences of docs/math.md, step by step and without
chunks, differentiated by torch. It writes, for each model, a directory with `config.json` and the tensors' names as
the original code has them, and `values.json` and `gradients.safetensors` as make.py does.

With `single` it writes nothing, but measures how accurate the same recurrence is in float32.
"""

import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, silu, softplus
from values import LENGTH, ROWS, write

HERE = pathlib.Path(__file__).parent
DEFAULTS = {
    "d_state": 128,
    "expand": 2,
    "headdim": 64,
    "ngroups": 1,
    "rope_fraction": 0.5,
    "A_floor": 1e-4,
    "is_outproj_norm": False,
    "is_mimo": False,
    "mimo_rank": 4,
    "A_activation": "heavy_tail",
}


def rms_norm(x, weight):
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Mamba3:
    """The shapes of a mixer, and its recurrence."""

    def __init__(self, width, options):
        options = DEFAULTS | options
        self.options = options
        self.n, self.p, self.g = options["d_state"], options["headdim"], options["ngroups"]
        self.inner = int(options["expand"] * width)
        self.h = self.inner // self.p
        self.r = options["mimo_rank"] if options["is_mimo"] else 1
        self.s = int(self.n * options["rope_fraction"]) // 2
        bc = self.r * self.g * self.n
        self.parts = [self.inner, self.inner, bc, bc, self.h, self.h, self.h, self.s]
        self.shapes = {
            "dt_bias": [self.h],
            "B_bias": [self.h, self.r, self.n],
            "C_bias": [self.h, self.r, self.n],
            "B_norm.weight": [self.n],
            "C_norm.weight": [self.n],
            "D": [self.h],
            "in_proj.weight": [sum(self.parts), width],
            "out_proj.weight": [width, self.inner],
        }
        if options["is_mimo"]:
            self.shapes |= {name: [self.h, self.r, self.p] for name in ["mimo_x", "mimo_z", "mimo_o"]}
        if options["is_outproj_norm"]:
            self.shapes["norm.weight"] = [self.inner]

    def turned(self, x, angles):
        """Pairs of x, [b, r, h, n], turned by angles, [b, h, s]."""
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first = torch.arange(self.s)
        second = first + self.n // 2
        if not self.options["is_mimo"]:
            first, second = 2 * first, 2 * first + 1
        y = x.clone()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def keys(self, x, weight, bias):
        """[b, r·g·n] to [b, r, h, n]."""
        x = rms_norm(x.unflatten(-1, (self.r, self.g, self.n)), weight)
        return x.repeat_interleave(self.h // self.g, dim=2) + bias.transpose(0, 1)

    def __call__(self, u, w):
        """[b, l, d] to the same, by the weights w."""
        options, batch = self.options, u.shape[0]
        mimo = {name: w[name].transpose(0, 1) if name in w else 1.0 for name in ["mimo_x", "mimo_z", "mimo_o"]}
        angles = u.new_zeros(batch, self.h, self.s)
        state = u.new_zeros(batch, self.h, self.p, self.n)
        entered = torch.zeros_like(state)
        out = []
        for row in u.unbind(1):
            z, x, b, c, dt, alpha, tau, theta = (row @ w["in_proj.weight"].T).split(self.parts, dim=-1)
            delta = softplus(dt + w["dt_bias"])
            if options["A_activation"] == "softplus":
                rate = softplus(alpha)
            else:
                rate = torch.where(alpha >= 0, 1 + alpha, 1 / (1 - alpha.clamp(max=0)))
            decay = torch.exp(-rate.clamp(min=options["A_floor"]) * delta)[..., None, None]
            share = torch.sigmoid(tau)
            now, before = (share * delta)[..., None, None], ((1 - share) * delta)[..., None, None]
            angles = angles + math.pi * torch.tanh(theta)[:, None] * delta[..., None]
            k = self.turned(self.keys(b, w["B_norm.weight"], w["B_bias"]), angles)
            q = self.turned(self.keys(c, w["C_norm.weight"], w["C_bias"]), angles)
            x, z = (t.unflatten(-1, (1, self.h, self.p)) for t in (x, z))
            x, z = x * mimo["mimo_x"], z * mimo["mimo_z"]
            entering = torch.einsum("brhp,brhn->bhpn", x, k)
            state = decay * (state + before * entered) + now * entering
            entered = entering
            y = torch.einsum("bhpn,brhn->brhp", state, q) + w["D"][:, None] * x
            if options["is_outproj_norm"]:
                y = rms_norm(y, w["norm.weight"].unflatten(0, (self.h, self.p)))
            y = (y * silu(z) * mimo["mimo_o"]).sum(1)
            out.append(y.flatten(1) @ w["out_proj.weight"].T)
        return torch.stack(out, 1)


class Mamba2:
    """The same of Mamba-2."""

    def __init__(self, width, options):
        self.n, self.p, self.g = options["d_state"], options["headdim"], options["ngroups"]
        self.inner, self.taps = int(options.get("expand", 2) * width), options.get("d_conv", 4)
        self.h = self.inner // self.p
        bc = self.g * self.n
        self.parts = [self.inner, self.inner + 2 * bc, self.h]
        self.shapes = {
            "in_proj.weight": [sum(self.parts), width],
            "conv1d.weight": [self.parts[1], 1, self.taps],
            "conv1d.bias": [self.parts[1]],
            "dt_bias": [self.h],
            "A_log": [self.h],
            "D": [self.h],
            "norm.weight": [self.inner],
            "out_proj.weight": [width, self.inner],
        }

    def __call__(self, u, w):
        """[b, l, d] to the same, by the weights w."""
        batch, out = u.shape[0], []
        state = u.new_zeros(batch, self.h, self.p, self.n)
        window = u.new_zeros(batch, self.taps, self.parts[1])
        for row in u.unbind(1):
            z, xbc, dt = (row @ w["in_proj.weight"].T).split(self.parts, dim=-1)
            window = torch.cat([window[:, 1:], xbc[:, None]], 1)
            xbc = silu(torch.einsum("bkc,ck->bc", window, w["conv1d.weight"][:, 0]) + w["conv1d.bias"])
            x, b, c = xbc.split([self.inner, self.g * self.n, self.g * self.n], dim=-1)
            x = x.unflatten(-1, (self.h, self.p))
            b, c = (t.unflatten(-1, (self.g, self.n)).repeat_interleave(self.h // self.g, dim=1) for t in (b, c))
            delta = softplus(dt + w["dt_bias"])[..., None, None]
            entering = torch.einsum("bhp,bhn->bhpn", x, b)
            state = torch.exp(-delta * w["A_log"].exp()[:, None, None]) * state + delta * entering
            y = torch.einsum("bhpn,bhn->bhp", state, c) + w["D"][:, None] * x
            y = (y.flatten(1) * silu(z)).unflatten(-1, (self.g, -1))
            y = rms_norm(y, w["norm.weight"].unflatten(0, (self.g, -1)))
            out.append(y.flatten(1) @ w["out_proj.weight"].T)
        return torch.stack(out, 1)


class Model:
    """A language model of such mixers, as the original code builds it."""

    def __init__(self, seed, config):
        self.config = config
        width, layers = config["d_model"], config["n_layer"]
        self.mixer = {"Mamba2": Mamba2, "Mamba3": Mamba3}[config["ssm_cfg"]["layer"]](width, config["ssm_cfg"])
        multiple = config["pad_vocab_size_multiple"]
        self.vocabulary = -(-config["vocab_size"] // multiple) * multiple
        self.hidden = -(-config["d_intermediate"] // 128) * 128
        shapes = {"backbone.embedding.weight": [self.vocabulary, width], "backbone.norm_f.weight": [width]}
        for i in range(layers):
            layer = f"backbone.layers.{i}."
            shapes |= {layer + "norm.weight": [width]}
            shapes |= {f"{layer}mixer.{name}": shape for name, shape in self.mixer.shapes.items()}
            if self.hidden:
                shapes |= {layer + "norm2.weight": [width], layer + "mlp.fc1.weight": [2 * self.hidden, width]}
                shapes |= {layer + "mlp.fc2.weight": [width, self.hidden]}
        if not config["tie_embeddings"]:
            shapes["lm_head.weight"] = [self.vocabulary, width]
        generator = torch.Generator().manual_seed(seed)

        def values(name, shape):
            random = torch.randn(shape, generator=generator)
            if "norm" in name or "mimo" in name:
                return 1 + 0.3 * random
            return 0.3 * random if len(shape) == 1 else random * 0.3 / shape[-1] ** 0.25

        # Numbers of f32, which a file holds exactly.
        self.weights = {name: values(name, shape).double().requires_grad_() for name, shape in shapes.items()}

    def of(self, prefix):
        return {n.removeprefix(prefix): w for n, w in self.weights.items() if n.startswith(prefix)}

    def __call__(self, ids):
        r = self.weights["backbone.embedding.weight"][ids]
        for i in range(self.config["n_layer"]):
            layer = f"backbone.layers.{i}."
            r = r + self.mixer(rms_norm(r, self.weights[layer + "norm.weight"]), self.of(layer + "mixer."))
            if self.hidden:
                u = rms_norm(r, self.weights[layer + "norm2.weight"])
                value, gate = (u @ self.weights[layer + "mlp.fc1.weight"].T).chunk(2, dim=-1)
                r = r + (value * silu(gate)) @ self.weights[layer + "mlp.fc2.weight"].T
        r = rms_norm(r, self.weights["backbone.norm_f.weight"])
        head = "backbone.embedding.weight" if self.config["tie_embeddings"] else "lm_head.weight"
        return r @ self.weights[head].T


def model_of(seed, ssm_cfg, **config):
    config = {
        "d_model": 16,
        "d_intermediate": 0,
        "n_layer": 2,
        "vocab_size": 21,
        "ssm_cfg": {"layer": "Mamba3"} | ssm_cfg,
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 8,
        "tie_embeddings": True,
    } | config
    return Model(seed, config)


def values(name, seed, ssm_cfg, **config):
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    model = model_of(seed, ssm_cfg, **config)
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model.config) + "\n")
    weights = {n: w.detach().float() for n, w in model.weights.items()}
    if model.config["tie_embeddings"]:
        # As the original code stores it.
        weights["lm_head.weight"] = weights["backbone.embedding.weight"].clone()
    save_file(weights, directory / "model.safetensors")
    # What transformers has, taipan calls by its names.
    own = "embedding." if model.config["ssm_cfg"]["layer"] == "Mamba3" else "embeddings."
    named = [(n.replace("embedding.", own), w) for n, w in model.weights.items()]
    write(directory, model, named, model.vocabulary, seed + 1)


def gradients(model, seed, dtype):
    model.weights = {n: w.detach().to(dtype).requires_grad_() for n, w in model.weights.items()}
    generator = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(0, model.vocabulary, (ROWS, LENGTH + 1), generator=generator)
    cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    return {n: w.grad.double() for n, w in model.weights.items()}


def single(ssm_cfg, **config):
    """The geometric mean of the relative errors of gradients in f32, and the largest, over ten seeds."""
    errors = []
    for seed in range(71, 81):
        exact, found = (gradients(model_of(seed, ssm_cfg, **config), seed, t) for t in (torch.float64, torch.float32))
        errors += [((found[n] - exact[n]).norm() / exact[n].norm()).item() for n in exact]
    mean = math.exp(sum(map(math.log, errors)) / len(errors))
    print(f"{ssm_cfg}: gradients in f32 off by {mean:.2e} in the mean, {max(errors):.2e} at most")


# Norms of four channels: in f32 the gradients of some seeds are off by more than 2e-5, in this recurrence as well as in
# taipan's chunks (see the test of golden.rs that compares the two). 76 is one of those that are not.
GROUPS = {
    "d_state": 10,
    "headdim": 4,
    "ngroups": 2,
    "expand": 1.5,
    "rope_fraction": 1.0,
    "A_floor": 0.6,
    "is_outproj_norm": True,
    "A_activation": "softplus",
}
if sys.argv[1:] == ["single"]:
    single(GROUPS, d_intermediate=100, tie_embeddings=False)
    sys.exit()
values("mamba3", 71, {"d_state": 12, "headdim": 8})
values("mamba3-groups", 76, GROUPS, d_intermediate=100, tie_embeddings=False)
values("mamba3-mimo", 71, {"d_state": 8, "headdim": 8, "is_mimo": True, "mimo_rank": 3})
values(
    "mamba3-mimo-groups",
    77,
    {
        "d_state": 6,
        "headdim": 5,
        "ngroups": 2,
        "rope_fraction": 1.0,
        "is_outproj_norm": True,
        "is_mimo": True,
        "mimo_rank": 2,
    },
    d_model=15,
    tie_embeddings=False,
)
values(
    "mamba2-mlp",
    81,
    {"layer": "Mamba2", "d_state": 9, "headdim": 4, "ngroups": 2},
    d_intermediate=140,
    n_layer=2,
)
