"""What is compared: the cases of each task and who takes part."""

from dataclasses import dataclass

# Tolerances of the largest relative error, by the type that is computed in. Some round to it
# between ops, which adds up to a few units of its last place.
TOLERANCE = {"f32": 1e-4, "bf16": 5e-2, "f16": 2e-2, "int8": 1e-1}

# Contestants in the Rust program; the others are in Python.
RUST = {"taipan", "candle", "numr", "mamba-rs", "burn", "gemm", "faer", "tile16", "naive"}
# They compute the product alone, without bias, activation and their gradients.
PRODUCT_ONLY = {"gemm", "faer", "tile16", "naive"}

CONTESTANTS = {
    "linear": ["taipan", "torch", "torch-compile", "jax", "candle", "numr", "gemm", "faer"],
    "scan": [
        "taipan", "torch", "torch-compile", "jax-scan", "jax-scan-remat", "jax-associative",
        "jax-associative-remat", "transformers", "transformers-mambapy", "candle",
    ],
    "step": [
        "taipan", "mamba-rs", "transformers", "transformers-mambapy", "mambapy", "jax-scan",
        "jax-scan-remat",
    ],
    "decode": ["taipan", "llama.cpp", "mamba-rs", "transformers", "mambapy"],
    "prefill": ["taipan", "llama.cpp", "mamba-rs", "transformers", "mambapy"],
    "gpu": ["taipan", "numr", "burn", "tile16", "naive"],
}  # fmt: skip
TASKS = list(CONTESTANTS)

# Tokens of a run of decoding; times are those of one.
DECODED = 32

GRADIENTS = ["du", "ddelta", "da_log", "db", "dc", "dd", "ddelta_bias", "dz"]
OUTPUTS = {
    ("linear", "forward"): ["y"],
    ("linear", "backward"): ["dx", "dw", "dbias"],
    ("scan", "forward"): ["y"],
    ("scan", "train"): ["y", *GRADIENTS],
    ("step", "train"): ["losses"],
    ("decode", "forward"): ["logprobs"],
    ("prefill", "forward"): ["logprobs"],
}
PRODUCT_OUTPUTS = {"forward": ["product"], "backward": ["product_dx", "product_dw"]}


@dataclass(frozen=True)
class Case:
    """`what` is the computation, a key of `OUTPUTS`; `sizes` are its sizes by name."""

    task: str
    what: str
    phase: str
    dtype: str
    sizes: tuple
    device: str = "cpu"
    # Of a series that shows growth: what grows.
    axis: str = ""

    @property
    def name(self):
        sizes = dict(self.sizes)
        shape = (
            "x".join(str(size) for size in sizes.values())
            if self.what in ("linear", "scan")
            else " ".join(f"{name}={size}" for name, size in sizes.items())
        )
        return f"{self.task} {self.phase} {shape} {self.dtype}"

    @property
    def tolerance(self):
        # Losses are those of three steps of AdamW; every step adds to the error. A scan sums over
        # up to 65536 steps, and its gradients over all channels.
        return {"step": 3e-5, "scan": 1e-3}.get(self.what, TOLERANCE[self.dtype])

    def outputs(self, contestant):
        if contestant in PRODUCT_ONLY:
            return PRODUCT_OUTPUTS[self.phase]
        return OUTPUTS[self.what, self.phase]

    def message(self):
        """What workers and the reference are told."""
        return {
            "task": self.what,
            "phase": self.phase,
            "dtype": self.dtype,
            "device": self.device,
            "sizes": dict(self.sizes),
            "tolerance": self.tolerance,
            "tokens": DECODED if self.what == "decode" else 1,
        }

    def inputs_key(self):
        """Cases with the same key have the same inputs and expected values."""
        dtype = self.dtype if self.what in ("linear", "scan") else "f32"
        sizes = "-".join(f"{name}{size}" for name, size in self.sizes)
        return f"{self.what}-{dtype}-{sizes}"


def linear(m, k, n, dtype, task="linear", device="cpu"):
    sizes = (("m", m), ("k", k), ("n", n))
    return [
        Case(task, "linear", phase, dtype, sizes, device) for phase in ("forward", "backward")
    ]


def scan(b, l, d, n, phases=("forward", "train"), axis=""):
    sizes = (("b", b), ("l", l), ("d", d), ("n", n))
    return [Case("scan", "scan", phase, "f32", sizes, axis=axis) for phase in phases]


def step(d, layers, batch, length, axis=""):
    sizes = (("d", d), ("layers", layers), ("vocab", 256), ("batch", batch), ("length", length))
    return [Case("step", "step", "train", "f32", sizes, axis=axis)]


def run(task, d, layers, vocab, length, dtypes, axis=""):
    """Decoding after `length` tokens, or a prompt of them."""
    sizes = (("d", d), ("layers", layers), ("vocab", vocab), ("length", length))
    return [Case(task, task, "forward", dtype, sizes, axis=axis) for dtype in dtypes]


def flat(lists):
    return [case for cases in lists for case in cases]


def full(task):
    types = ("f32", "f16", "int8")
    if task == "linear":
        shapes = [(2048, 768, 3072), (8192, 256, 1024), (512, 512, 512), (128,) * 3, (64,) * 3]
        return flat(linear(*shape, dtype) for shape in shapes for dtype in ("f32", "bf16"))
    if task == "scan":
        return scan(4, 1024, 1536, 16)
    if task == "step":
        return step(256, 4, 8, 256) + step(64, 4, 8, 256)
    if task == "gpu":
        shapes = [(512, 512, 512), (1024, 1024, 1024), (2048, 256, 1024)]
        return flat(linear(*shape, "f32", "gpu", "gpu") for shape in shapes)
    length = {"decode": 16, "prefill": 512}[task]
    return run(task, 768, 24, 50280, length, types) + run(task, 128, 4, 256, length, types)


def quick(task):
    """Small sizes: to see that everything works, not to measure."""
    if task == "linear":
        return flat(linear(64, 48, 80, dtype) for dtype in ("f32", "bf16"))
    if task == "scan":
        return scan(2, 64, 48, 16)
    if task == "step":
        return step(32, 2, 2, 32)
    if task == "gpu":
        return linear(64, 64, 64, "f32", "gpu", "gpu")
    return run(task, 64, 2, 256, 16, ("f32", "f16", "int8"))


def growth(small):
    """How time and memory grow: over the length of sequences, and over the width."""
    lengths = [64, 256] if small else [256, 1024, 4096, 16384, 65536]
    widths = [32, 64] if small else [64, 128, 256, 512, 1024]
    d, layers = (32, 2) if small else (256, 4)
    length = 64 if small else 256
    decode = ("decode", d, layers, 256)
    return (
        flat(scan(1, l, d, 16, ("train",), "l") for l in lengths)
        + flat(scan(1, 4 * length, d, 16, ("train",), "d") for d in widths)
        + flat(step(d, layers, 1, l, "length") for l in lengths)
        + flat(step(d, layers, 1, length, "d") for d in widths)
        + flat(run(*decode, l, ("f32",), "length") for l in lengths)
        + flat(run("decode", d, layers, 256, 16, ("f32",), "d") for d in widths)
    )


def select(task, small):
    if task == "growth":
        return growth(small)
    return quick(task) if small else full(task)
