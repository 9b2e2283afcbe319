"""torch, eager and compiled: the linear layer and the selective scan."""

import torch
import torch.nn.functional as F
from torch._functorch import config as functorch
from worker import SCAN_INPUTS, Repeated, Unsupported

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Steps of the scan in one compiled function: whole sequences take minutes to compile.
CHUNK = 16


def version(name):
    return torch.__version__


def prepare(name, case):
    torch.set_num_threads(case.threads)
    # A compiled backward pass may otherwise reuse the memory of what it saved, and run only once.
    functorch.donated_buffer = False
    compiled = name == "torch-compile"
    return {"linear": Linear, "scan": Recurrence}[case.task](case, compiled)


def linear(x, w, bias):
    return F.gelu(torch.addmm(bias, x, w), approximate="tanh")


class Linear(Repeated):
    def __init__(self, case, compiled):
        self.phase = case.phase
        tensors = {n: torch.from_numpy(case.input(n)) for n in ("x", "w", "bias", "dy")}
        tensors = {n: tensor.to(DTYPES[case.dtype]) for n, tensor in tensors.items()}
        self.dy = tensors.pop("dy")
        self.inputs = list(tensors.values())
        self.function = torch.compile(linear) if compiled else linear
        if self.phase == "backward":
            for tensor in self.inputs:
                tensor.requires_grad_()
            self.y = self.function(*self.inputs)

    def once(self):
        if self.phase == "backward":
            return torch.autograd.grad(self.y, self.inputs, self.dy, retain_graph=True)
        with torch.inference_mode():
            return self.function(*self.inputs)

    def outputs(self):
        if self.phase == "backward":
            return {n: g.float() for n, g in zip(["dx", "dw", "dbias"], self.once())}
        return {"y": self.once().float()}


def chunk(h, a_bar, inflow, c):
    """Steps of the recurrence: states [b, d, n], outputs [b, steps, d]."""
    ys = []
    for t in range(a_bar.shape[1]):
        h = a_bar[:, t] * h + inflow[:, t]
        ys.append((h @ c[:, t, :, None])[..., 0])
    return h, torch.stack(ys, 1)


def discretize(u, delta, a_log, b, delta_bias):
    delta = F.softplus(delta + delta_bias)
    a_bar = torch.exp(delta[..., None] * -torch.exp(a_log))
    return a_bar, (delta * u)[..., None] * b[:, :, None]


def gate(y, u, d, z):
    return (y + d * u) * F.silu(z)


class Scan(Repeated):
    """A selective scan, `forward()` of its inputs, and its gradients by torch."""

    def __init__(self, case):
        if case.dtype != "f32":
            raise Unsupported(case.dtype)
        self.phase = case.phase
        self.inputs = [torch.from_numpy(case.input(name)) for name in SCAN_INPUTS]
        self.dy = torch.from_numpy(case.input("dy"))
        if self.phase == "train":
            for tensor in self.inputs:
                tensor.requires_grad_()

    def once(self):
        if self.phase == "forward":
            with torch.inference_mode():
                return [self.forward()]
        y = self.forward()
        return [y.detach(), *torch.autograd.grad(y, self.inputs, self.dy)]

    def outputs(self):
        return dict(zip(["y", *(f"d{name}" for name in SCAN_INPUTS)], self.once()))


class Recurrence(Scan):
    """The recurrence step by step, as the reference implementation of Mamba has it; compiled, in
    chunks."""

    def __init__(self, case, compiled):
        super().__init__(case)
        parts = [discretize, chunk, gate]
        self.parts = [torch.compile(part) for part in parts] if compiled else parts
        self.steps = CHUNK if compiled else self.inputs[0].shape[1]

    def forward(self):
        u, delta, a_log, b, c, d, delta_bias, z = self.inputs
        discretize, chunk, gate = self.parts
        a_bar, inflow = discretize(u, delta, a_log, b, delta_bias)
        h, ys = torch.zeros_like(a_bar[:, 0]), []
        spans = (tensor.split(self.steps, 1) for tensor in (a_bar, inflow, c))
        for span in zip(*spans):
            h, y = chunk(h, *span)
            ys.append(y)
        return gate(torch.cat(ys, 1), u, d, z)
