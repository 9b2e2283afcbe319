"""Golden values of the selective scan and the other parts of a Mamba block, in float64.

    python3 -m pip install torch transformers
    python3 crates/taipan/tests/golden/scan.py

writes scan.json, mixer.json, conv.json, rms_norm.json, cross_entropy.json and embedding.json beside
this file; make.py writes the others. It was run with torch 2.15.0 and transformers 5.22.2.

Names are those of docs/math.md: `u, delta, z, y` are [b, l, d], `B, C` [b, l, n], `A_log` [d, n], `D` and
`delta_bias` [d], `h0` and `last` [b, d, n]. `dy` and `dlast` are the upstreams, `d` + a name is the gradient
by that input of Σ y·dy + Σ last·dlast. An array that is absent was not an input (`h0` is then 0, and
`dlast` too). Numbers have all their digits.

- Euler cases are transformers' own: its mixer computes what enters the recurrence, its function
  `mamba_selective_scan` the values and, through autograd, the gradients.
- For zero-order hold there is no such code; the cases come from the recurrence below, written
  step by step and differentiated by autograd. With Euler's rule it must give what transformers
  gives.
- mixer.json is transformers' whole mixer, with the gradients by its input and by all its weights.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F
from transformers import MambaConfig
from transformers.models.mamba import modeling_mamba

torch.set_default_dtype(torch.float64)
HERE = pathlib.Path(__file__).parent

# Transformers asks for float32 here and there; all of it is to be float64.
torch.Tensor.float = torch.Tensor.double

transformers_scan = modeling_mamba.mamba_selective_scan


def array(x):
    """A tensor as its shape and its numbers, row by row."""
    return {"shape": list(x.shape), "data": x.detach().flatten().tolist()}


def leaves(**inputs):
    """Copies that gradients can be asked for, without those that are None."""
    given = {name: x for name, x in inputs.items() if x is not None}
    return {name: x.detach().clone().requires_grad_() for name, x in given.items()}


def case(fields, inputs, results, upstreams):
    """Inputs, results, an upstream for each of some results, and the gradient of each input."""
    names = list(upstreams)
    grads = torch.autograd.grad(
        [results[name] for name in names], list(inputs.values()), list(upstreams.values())
    )
    arrays = inputs | results
    arrays |= {"d" + name: dy for name, dy in upstreams.items()}
    arrays |= {"d" + name: grad for name, grad in zip(inputs, grads)}
    return fields | {name: array(x) for name, x in arrays.items()}


def phi1(x):
    """(eˣ - 1)/x. The branch that is not taken must not spoil the gradient: it gets a 1 there."""
    near = x.abs() < 0.5
    far = torch.where(near, torch.ones_like(x), x)
    # Σ xʲ/(j+1)!: below 0.5 the terms left out are less than 1e-19. Further in, autograd's
    # (x·eˣ - expm1(x))/x² would lose digits.
    small = torch.where(near, x, torch.zeros_like(x))
    series = sum(small**j / math.gamma(j + 2) for j in range(16))
    return torch.where(near, series, torch.expm1(far) / far)


def recurrence(u, delta, A_log, B, C, D=None, delta_bias=None, z=None, h0=None, *, rule, softplus):
    """The scan, step by step: y and the last state."""
    if delta_bias is not None:
        delta = delta + delta_bias
    if softplus:
        delta = delta.clamp(min=0) + torch.log1p(torch.exp(-delta.abs()))
    A = -torch.exp(A_log)
    (b, l, d), n = u.shape, A.shape[1]
    h = torch.zeros(b, d, n) if h0 is None else h0
    ys = []
    for t in range(l):
        x = delta[:, t, :, None] * A  # [b, d, n]
        factor = delta[:, t, :, None] * (phi1(x) if rule == "zoh" else 1.0)
        h = torch.exp(x) * h + factor * B[:, t, None, :] * u[:, t, :, None]
        ys.append((h * C[:, t, None, :]).sum(-1))
    y = torch.stack(ys, 1)
    if D is not None:
        y = y + D * u
    if z is not None:
        y = y * z / (1 + torch.exp(-z))
    return y, h


def expect_equal(got, want):
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def mixer():
    """A mixer of transformers; its vectors are random, so that none is all ones."""
    config = MambaConfig(
        hidden_size=6, expand=2, state_size=4, conv_kernel=4, time_step_rank=2, num_hidden_layers=1
    )
    mixer = modeling_mamba.MambaMixer(config, layer_idx=0).double().eval()
    with torch.no_grad():
        mixer.D += 0.5 * torch.randn_like(mixer.D)
        mixer.A_log += 0.3 * torch.randn_like(mixer.A_log)
        mixer.dt_proj.bias += torch.randn_like(mixer.dt_proj.bias) + 2
    assert {p.dtype for p in mixer.parameters()} == {torch.float64}
    assert mixer.in_proj.weight.shape == (24, 6) and mixer.x_proj.weight.shape == (10, 12)
    return mixer


def captured(mixer, x):
    """What enters and leaves the scan of a mixer, in our layout."""
    seen = []

    def scan(u, delta, A, B, C, **others):
        y = transformers_scan(u, delta, A, B, C, **others)
        seen.append((u, delta, B, C, others["z"], y))
        return y

    modeling_mamba.mamba_selective_scan = scan
    mixer(x)
    modeling_mamba.mamba_selective_scan = transformers_scan
    (tensors,) = seen
    return [tensor.transpose(1, 2) for tensor in tensors]  # [b, l, ...]


def euler():
    """Transformers' scan of what its mixer computes, whole and without each option."""
    m = mixer()
    cases = []
    for name, l, absent in [
        ("euler, with everything", 7, []),
        ("euler, no gate", 2, ["z"]),
        ("euler, nothing optional", 1, ["D", "z", "delta_bias"]),
    ]:
        u, delta, B, C, z, y = captured(m, 2 * torch.randn(2, l, 6))
        options = {"D": m.D, "delta_bias": m.dt_proj.bias, "z": z}
        options = {name: x for name, x in options.items() if name not in absent}
        inputs = leaves(u=u, delta=delta, A_log=m.A_log, B=B, C=C, **options)
        # [b, l, ...] to [b, ..., l], as transformers has it.
        flipped = {
            name: inputs[name].transpose(1, 2) for name in "u delta B C z".split() if name in inputs
        }
        got, last = transformers_scan(
            flipped["u"],
            flipped["delta"],
            -torch.exp(inputs["A_log"]),
            flipped["B"],
            flipped["C"],
            D=inputs.get("D"),
            z=flipped.get("z"),
            delta_bias=inputs.get("delta_bias"),
            delta_softplus=True,
            return_last_state=True,
        )
        results = {"y": got.transpose(1, 2), "last": last}
        if not absent:
            expect_equal(results["y"], y)
        for ours, theirs in zip(
            recurrence(**inputs, rule="euler", softplus=True), results.values()
        ):
            expect_equal(ours, theirs)
        upstreams = {name: torch.randn_like(x) for name, x in results.items()}
        cases.append(
            case({"name": name, "rule": "euler", "softplus": True}, inputs, results, upstreams)
        )
    return cases


def zoh():
    """The recurrence with zero-order hold: options, and steps from tiny to long."""
    cases = []
    for name, softplus, optional, scale in [
        ("zoh, with everything", True, ["D", "delta_bias", "z", "h0", "dlast"], 1.0),
        ("zoh, nothing optional", True, [], 1.0),
        ("zoh, no gate", True, ["D", "delta_bias", "h0", "dlast"], 1.0),
        ("zoh, no bias, no skip", True, ["z", "h0"], 1.0),
        ("zoh, no softplus", False, ["D", "z", "h0", "dlast"], 1.0),
        ("zoh, no softplus, a bias", False, ["D", "delta_bias", "dlast"], 1.0),
        ("zoh, tiny steps", False, ["D", "h0", "dlast"], 1e-6),
        ("zoh, from tiny to long steps", False, ["D", "h0", "dlast"], None),
    ]:
        b, l, d, n = (2, 5, 3, 3) if "everything" in name else (2, 4, 3, 2)
        delta = torch.randn(b, l, d)
        if not softplus:
            # Steps as they are: they should not be negative.
            delta = 0.1 + torch.rand(b, l, d)
            delta = 10 ** (torch.rand(b, l, d) * 10 - 8) if scale is None else scale * delta
        options = {
            "D": torch.randn(d),
            "delta_bias": 0.5 * torch.rand(d),
            "z": torch.randn(b, l, d),
            "h0": torch.randn(b, d, n),
        }
        inputs = leaves(
            u=torch.randn(b, l, d),
            delta=delta,
            A_log=0.7 * torch.randn(d, n),
            B=torch.randn(b, l, n),
            C=torch.randn(b, l, n),
            **{name: x for name, x in options.items() if name in optional},
        )
        y, last = recurrence(**inputs, rule="zoh", softplus=softplus)
        upstreams = {"y": torch.randn_like(y)}
        if "dlast" in optional:
            upstreams["last"] = torch.randn_like(last)
        cases.append(
            case(
                {"name": name, "rule": "zoh", "softplus": softplus},
                inputs,
                {"y": y, "last": last},
                upstreams,
            )
        )
    return cases


def check_phi1():
    """φ₁ and its gradient, on both sides of the border, against a longer series."""
    x = torch.tensor([-2.0, -0.51, -0.49, -1e-5, -1e-300, 0.0, 1e-4, 0.5]).requires_grad_()
    y = phi1(x)
    (dy,) = torch.autograd.grad(y.sum(), x)
    terms = range(40)
    torch.testing.assert_close(y, sum(x**j / math.gamma(j + 2) for j in terms), rtol=1e-15, atol=0)
    derivative = sum(j * x ** (j - 1) / math.gamma(j + 2) for j in terms[1:])
    torch.testing.assert_close(dy, derivative, rtol=2e-15, atol=0)


def scan():
    check_phi1()
    return euler() + zoh()


def whole_mixer():
    """Transformers' mixer: x [b, l, d_model] to y, weights under the names of checkpoints."""
    m = mixer()
    x, dy = torch.randn(2, 5, 6).requires_grad_(), torch.randn(2, 5, 6)
    inputs = {"x": x} | dict(m.named_parameters())
    return [case({"name": "mixer"}, inputs, {"y": m(x)}, {"y": dy})]


def conv():
    """Causal depthwise convolution of x [b, l, d] by w [d, k], with and without silu and bias."""
    cases = []
    for name, (b, l, d, k), silu, with_bias in [
        ("conv", (2, 6, 3, 4), False, True),
        ("conv and silu", (2, 6, 3, 4), True, True),
        ("conv and silu, no bias", (1, 5, 3, 3), True, False),
        ("shorter than its kernel", (2, 2, 3, 4), True, True),
        ("one tap", (2, 3, 2, 1), True, True),
    ]:
        bias = torch.randn(d) if with_bias else None
        inputs = leaves(x=torch.randn(b, l, d), w=torch.randn(d, k), bias=bias)
        padded = F.pad(inputs["x"].transpose(1, 2), (k - 1, 0))
        y = F.conv1d(padded, inputs["w"][:, None, :], inputs.get("bias"), groups=d).transpose(1, 2)
        y = F.silu(y) if silu else y
        cases.append(
            case({"name": name, "silu": silu}, inputs, {"y": y}, {"y": torch.randn(b, l, d)})
        )
    return cases


def rms_norm():
    """x·w/√(mean x² + eps), alone and behind a residual: sum = x + residual, y = norm of sum."""
    cases, eps = [], 1e-5
    for name, shape, scale in [
        ("rms_norm", [3, 7], 1.0),
        ("small", [2, 5], 1e-3),
        ("batch", [2, 2, 3], 4.0),
    ]:
        inputs = leaves(x=scale * torch.randn(shape), w=torch.randn(shape[-1]))
        y = F.rms_norm(inputs["x"], shape[-1:], inputs["w"], eps)
        cases.append(case({"name": name, "eps": eps}, inputs, {"y": y}, {"y": torch.randn(shape)}))
    shape = [2, 3, 4]
    inputs = leaves(x=torch.randn(shape), residual=torch.randn(shape), w=torch.randn(shape[-1]))
    total = inputs["x"] + inputs["residual"]
    results = {"y": F.rms_norm(total, shape[-1:], inputs["w"], eps), "sum": total}
    upstreams = {name: torch.randn(shape) for name in results}
    cases.append(case({"name": "behind a residual", "eps": eps}, inputs, results, upstreams))
    return cases


def cross_entropy():
    """The mean over targets that are not `ignore`; `loss` is a scalar, its upstream `dloss`."""
    cases = []
    for name, shape, scale, ignore, targets in [
        ("cross_entropy", [4, 7], 2.0, -100, [3, 0, 6, 2]),
        ("an ignored target", [5, 6], 2.0, -100, [1, -100, 5, 5, -100]),
        ("an ignored token", [2, 3, 5], 2.0, 0, [[1, 0, 4], [0, 0, 2]]),
        ("large logits", [3, 5], 200.0, -100, [4, 2, -100]),
    ]:
        inputs = leaves(logits=scale * torch.randn(shape))
        targets = torch.tensor(targets)
        loss = F.cross_entropy(
            inputs["logits"].flatten(0, -2), targets.flatten(), ignore_index=ignore
        )
        fields = {"name": name, "ignore": ignore, "targets": array(targets)}
        cases.append(case(fields, inputs, {"loss": loss}, {"loss": torch.randn([])}))
    return cases


def embedding():
    """Rows of `table` [v, d]; ids repeat, and some rows are not looked up."""
    cases = []
    for name, (v, d), ids in [
        ("embedding", (6, 3), [[2, 5, 2, 2], [0, 5, 1, 2]]),
        ("one id", (3, 4), [1, 1, 1, 1, 1]),
    ]:
        inputs, ids = leaves(table=torch.randn(v, d)), torch.tensor(ids)
        y = F.embedding(ids, inputs["table"])
        cases.append(
            case({"name": name, "ids": array(ids)}, inputs, {"y": y}, {"y": torch.randn_like(y)})
        )
    return cases


FILES = {
    "scan": scan,
    "mixer": whole_mixer,
    "conv": conv,
    "rms_norm": rms_norm,
    "cross_entropy": cross_entropy,
    "embedding": embedding,
}

for number, (name, make) in enumerate(FILES.items()):
    torch.manual_seed(100 + number)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in make())
    (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")
