"""jax: the linear layer, the selective scan and a training step. The scan is `lax.scan` or
`lax.associative_scan`, also with rematerialisation."""

import json

import jax
import jax.numpy as jnp
from jax import lax
from reference import CONV, EPSILON, LR, MAX_NORM, STEPS
from worker import SCAN_INPUTS, Repeated, Unsupported

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
# Steps between two states that are kept where others are recomputed.
SEGMENT = 64


def version(name):
    return jax.__version__


def prepare(name, case):
    if case.dtype not in DTYPES:
        raise Unsupported(case.dtype)
    if case.task == "linear":
        return Linear(case)
    selective_scan = SCANS[name.removeprefix("jax-")]
    return {"scan": Scan, "step": Step}[case.task](case, selective_scan)


def linear(x, w, bias):
    return jax.nn.gelu(x @ w + bias, approximate=True)


class Linear:
    def __init__(self, case):
        tensors = [jnp.asarray(case.input(n), DTYPES[case.dtype]) for n in ("x", "w", "bias", "dy")]
        *inputs, dy = tensors
        if case.phase == "backward":
            # What `vjp` saves is computed once.
            _, pull = jax.jit(lambda *inputs: jax.vjp(linear, *inputs))(*inputs)
            function = jax.jit(lambda pull, dy: pull(dy))
            self.names, self.once = ["dx", "dw", "dbias"], lambda: function(pull, dy)
        else:
            function = jax.jit(linear)
            self.names, self.once = ["y"], lambda: [function(*inputs)]

    def outputs(self):
        return {n: v.astype(jnp.float32) for n, v in zip(self.names, self.once())}

    def run(self, times, clock):
        with clock:
            for _ in range(times):
                jax.block_until_ready(self.once())


def discretize(u, delta, a, b):
    a_bar = jnp.exp(delta[..., None] * a)
    return a_bar, (delta * u)[..., None] * b[..., None, :]


def sequential(u, delta, a, b, c):
    """Over time, states are all that is carried: u, delta [l, b, d], b, c [l, b, n]."""

    def step(h, inputs):
        u, delta, b, c = inputs
        a_bar, inflow = discretize(u, delta, a, b)
        h = a_bar * h + inflow
        return h, jnp.einsum("bdn,bn->bd", h, c)

    h = jnp.zeros((u.shape[1], *a.shape), u.dtype)
    return step, h, (u, delta, b, c)


def scan(u, delta, a, b, c):
    step, h, inputs = sequential(u, delta, a, b, c)
    return lax.scan(step, h, inputs)[1]


def scan_remat(u, delta, a, b, c):
    """Keeps one state per segment."""
    step, h, inputs = sequential(u, delta, a, b, c)
    length = u.shape[0]
    size = SEGMENT if length % SEGMENT == 0 else length
    segment = jax.checkpoint(lambda h, inputs: lax.scan(step, h, inputs))
    inputs = jax.tree.map(lambda x: x.reshape(length // size, size, *x.shape[1:]), inputs)
    return lax.scan(segment, h, inputs)[1].reshape(u.shape)


def associative(u, delta, a, b, c):
    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, h = lax.associative_scan(combine, discretize(u, delta, a, b))
    return jnp.einsum("lbdn,lbn->lbd", h, c)


SCANS = {
    "scan": scan,
    "scan-remat": scan_remat,
    "associative": associative,
    "associative-remat": jax.checkpoint(associative),
}


def selective_scan(recurrence, u, delta, a_log, b, c, d, delta_bias, z):
    delta = jax.nn.softplus(delta + delta_bias)
    first = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    y = recurrence(first(u), first(delta), -jnp.exp(a_log), first(b), first(c))
    return (first(y) + d * u) * jax.nn.silu(z)


class Scan:
    def __init__(self, case, recurrence):
        inputs = [jnp.asarray(case.input(name)) for name in SCAN_INPUTS]
        dy = jnp.asarray(case.input("dy"))

        def forward(*inputs):
            return selective_scan(recurrence, *inputs)

        def train(dy, *inputs):
            y, pull = jax.vjp(forward, *inputs)
            return y, *pull(dy)

        if case.phase == "train":
            function = jax.jit(train)
            self.names = ["y", *(f"d{name}" for name in SCAN_INPUTS)]
            self.once = lambda: function(dy, *inputs)
        else:
            function = jax.jit(forward)
            self.names, self.once = ["y"], lambda: [function(*inputs)]

    def outputs(self):
        return dict(zip(self.names, self.once()))

    def run(self, times, clock):
        with clock:
            for _ in range(times):
                jax.block_until_ready(self.once())


def norm(x, weight):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + EPSILON) * weight


def layer(recurrence, rank, h, w):
    x = norm(h, w["norm.weight"]) @ w["mixer.in_proj.weight"].T
    x, z = jnp.split(x, 2, -1)
    padded = jnp.pad(x, ((0, 0), (CONV - 1, 0), (0, 0)))
    taps = w["mixer.conv1d.weight"][:, 0]
    x = sum(padded[:, i : i + x.shape[1]] * taps[:, i] for i in range(CONV))
    x = jax.nn.silu(x + w["mixer.conv1d.bias"])
    dt, b, c = jnp.split(x @ w["mixer.x_proj.weight"].T, [rank, rank + 16], -1)
    delta = dt @ w["mixer.dt_proj.weight"].T
    rest = w["mixer.D"], w["mixer.dt_proj.bias"], z
    y = selective_scan(recurrence, x, delta, w["mixer.A_log"], b, c, *rest)
    return h + y @ w["mixer.out_proj.weight"].T


class Step(Repeated):
    """Forward, backward, clipping and AdamW, in one compiled function."""

    def __init__(self, case, recurrence):
        from safetensors.numpy import load_file

        config = json.loads((case.inputs / "config.json").read_text())
        layers, rank = config["num_hidden_layers"], config["time_step_rank"]
        stored = load_file(case.inputs / "model.safetensors")
        names = [n.split(".", 3)[3] for n in stored if n.startswith("backbone.layers.0.")]
        # Layers are stacked, so that one is compiled.
        weights = {
            "layers": {
                name: jnp.stack([stored[f"backbone.layers.{i}.{name}"] for i in range(layers)])
                for name in names
            },
            "embeddings": jnp.asarray(stored["backbone.embeddings.weight"]),
            "norm_f": jnp.asarray(stored["backbone.norm_f.weight"]),
        }
        zeros = lambda: jax.tree.map(jnp.zeros_like, weights)  # noqa: E731
        self.state = weights, zeros(), zeros(), jnp.zeros((), jnp.int32)
        x, y = (jnp.asarray(ids) for ids in case.ids())
        body = layer
        if recurrence is scan_remat:
            body = jax.checkpoint(layer, static_argnums=(0, 1))

        def loss(weights):
            h = weights["embeddings"][x]
            h, _ = lax.scan(lambda h, w: (body(recurrence, rank, h, w), None), h, weights["layers"])
            logits = norm(h, weights["norm_f"]) @ weights["embeddings"].T
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
            return -picked.mean()

        def step(state):
            weights, m, v, t = state
            value, grads = jax.value_and_grad(loss)(weights)
            total = sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads))
            factor = jnp.minimum(1, MAX_NORM / (jnp.sqrt(total) + 1e-6))
            t = t + 1
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g * factor, m, grads)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * jnp.square(g * factor), v, grads)

            def update(w, m, v):
                return w - LR * m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

            return value, (jax.tree.map(update, weights, m, v), m, v, t)

        self.step = jax.jit(step, donate_argnums=0)

    def once(self):
        loss, self.state = self.step(self.state)
        return float(loss)

    def outputs(self):
        return {"losses": [self.once() for _ in range(STEPS)]}
