"""Golden values of Mamba-3, from its recurrence in float64.

    python3 -m pip install torch safetensors
    python3 crates/taipan-lm/tests/golden/mamba3.py

There is no such model in transformers, and the kernels of the paper's code compute in bf16. So this is the
recurrence of docs/math.md, step by step and without chunks, differentiated by torch. It writes, for each model, a
directory with `config.json` and the tensors' names as the paper's code has them, and `values.json` and
`gradients.safetensors` as make.py does.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, silu, softplus

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


class Mixer:
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


class Model:
    """A language model of such mixers, as the paper's code builds it."""

    def __init__(self, seed, config):
        self.config = config
        width, layers = config["d_model"], config["n_layer"]
        self.mixer = Mixer(width, config["ssm_cfg"])
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


def greedy(model, prompt, count):
    """Greedy decoding, and by how much the likeliest token is ahead of the next."""
    ids, margin = prompt, float("inf")
    with torch.no_grad():
        for _ in range(count):
            logits = model(ids)[:, -1]
            first, second = logits.topk(2).values[0]
            margin = min(margin, ((first - second) / logits.abs().max()).item())
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    return ids[0, prompt.shape[1] :].tolist(), margin


def values(name, seed, ssm_cfg, **config):
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
    model = Model(seed, config)
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config) + "\n")
    weights = {n: w.detach().float() for n, w in model.weights.items()}
    if config["tie_embeddings"]:
        # As the paper's code stores it.
        weights["lm_head.weight"] = weights["backbone.embedding.weight"].clone()
    save_file(weights, directory / "model.safetensors")
    generator = torch.Generator().manual_seed(seed + 1)
    rows, length = 3, 17
    ids = torch.randint(0, model.vocabulary, (rows, length + 1), generator=generator)
    logits = model(ids[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    save_file({n: w.grad.float() for n, w in model.weights.items()}, directory / "gradients.safetensors")
    prompt = ids[:1, :7]
    tokens, margin = greedy(model, prompt, 32)
    assert margin > 1e-3, f"{name}: a choice by {margin}, which rounding could change; take another seed"
    out = {
        "rows": rows,
        "length": length,
        "ids": ids.flatten().tolist(),
        "loss": loss.item(),
        "logits": logits.flatten().tolist(),
        "norms": {n: w.grad.norm().item() for n, w in model.weights.items()},
        "prompt": prompt[0].tolist(),
        "greedy": tokens,
    }
    (directory / "values.json").write_text(json.dumps(out) + "\n")
    print(name, "loss", loss.item(), "smallest margin", margin, "tokens", len(set(tokens)))


# Seeds are chosen: in f32 the gradients of "mamba3-groups" agree to 2e-5 on every instruction set with 74, 76 and 80;
# with 71, 72, 73 and 78 they do not on some (3.4e-5 was seen).
values("mamba3", 71, {"d_state": 12, "headdim": 8})
values(
    "mamba3-groups",
    76,
    {
        "d_state": 10,
        "headdim": 4,
        "ngroups": 2,
        "expand": 1.5,
        "rope_fraction": 1.0,
        "A_floor": 0.6,
        "is_outproj_norm": True,
        "A_activation": "softplus",
    },
    d_intermediate=100,
    tie_embeddings=False,
)
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
