"""Golden values of AdamW and SGD with clipping by the global norm, from PyTorch in float64.

    python3 -m pip install torch
    python3 crates/taipan/tests/golden/optim.py

writes optim.json and sgd.json beside this file; tests/optim/formulas.rs and sgd.rs replay them. It was run with torch 2.15.0.

Three parameters in groups of their own, with and without weight decay and one at half the learning rate, take
20 steps on random gradients under a warm-up and a cosine. Gradients have sizes from far below to far
above the clip's limit. Of each step: learning rate, gradients, their norm, and the parameters after it. Numbers
have all their digits.
"""

import json
import math
import pathlib

import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
HERE = pathlib.Path(__file__).parent

STEPS, WARMUP, PEAK, MIN, MAX_NORM = 20, 4, 0.05, 0.005, 1.0


def array(x):
    """A tensor as its shape and its numbers, row by row."""
    return {"shape": list(x.shape), "data": x.detach().flatten().tolist()}


def learning_rate(step):
    if step < WARMUP:
        return PEAK * (step + 1) / (WARMUP + 1)
    done = (step - WARMUP) / (STEPS - WARMUP)
    return MIN + (PEAK - MIN) * 0.5 * (1 + math.cos(math.pi * done))


# The factor of the learning rate, and the weight decay, of each parameter.
groups = [(1.0, 0.1), (1.0, 0.0), (0.5, 0.01)]


def advance(optimizer, parameters, step, scale):
    """One step on random gradients of this scale: their norm, and what is recorded of it."""
    for p in parameters:
        p.grad = scale * torch.randn(p.shape)
    grads = [array(p.grad) for p in parameters]
    lr = learning_rate(step)
    for group, (lr_scale, _) in zip(optimizer.param_groups, groups):
        group["lr"] = lr * lr_scale
    norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    optimizer.step()
    return norm.item(), {"lr": lr, "grads": grads, "parameters": [array(p) for p in parameters]}


parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in [[3, 4], [5], []]]
optimizer = torch.optim.AdamW(
    [{"params": [p], "weight_decay": decay} for p, (_, decay) in zip(parameters, groups)]
)
start = [array(p) for p in parameters]
steps = []
for step in range(STEPS):
    norm, record = advance(optimizer, parameters, step, 10 ** (step % 5 - 3))
    steps.append({**record, "norm": norm})

case = {
    "schedule": {"peak": PEAK, "min": MIN, "warmup": WARMUP, "total": STEPS},
    "max_norm": MAX_NORM,
    "groups": [{"lr_scale": lr_scale, "weight_decay": decay} for lr_scale, decay in groups],
    "parameters": start,
    "steps": steps,
}
(HERE / "optim.json").write_text(json.dumps(case, separators=(",", ":")) + "\n")

sgd = []
for nesterov in [False, True]:
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in [[3, 4], [5], []]]
    settings = [{"params": [p], "weight_decay": decay} for p, (_, decay) in zip(parameters, groups)]
    optimizer = torch.optim.SGD(settings, momentum=0.9, nesterov=nesterov)
    case = {"nesterov": nesterov, "parameters": [array(p) for p in parameters], "steps": []}
    for step in range(8):
        case["steps"].append(advance(optimizer, parameters, step, 10 ** (step % 3 - 1))[1])
    sgd.append(case)
(HERE / "sgd.json").write_text(json.dumps(sgd, separators=(",", ":")) + "\n")
