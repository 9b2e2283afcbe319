"""What every contestant in Python shares: worker.py NAME

It answers the messages of harness/worker.py. A module of this directory prepares a case: its
function `prepare(name, case)` returns an object with `outputs()`, arrays by name, and
`run(times, clock)`, which does the timed part inside `with clock:`.
"""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

MODULES = {
    "torch": "torch_peers",
    "torch-compile": "torch_peers",
    "jax": "jax_peers",
    "jax-scan": "jax_peers",
    "jax-scan-remat": "jax_peers",
    "jax-associative": "jax_peers",
    "jax-associative-remat": "jax_peers",
    "transformers": "huggingface",
    "transformers-mambapy": "huggingface",
    "mambapy": "mambapy_peer",
    "llama.cpp": "llama_cpp",
}


class Unsupported(Exception):
    """The contestant cannot do the case."""


class Clock:
    """Sums the wall and CPU time inside `with clock:`; of a process, its threads included."""

    def __init__(self):
        self.wall = self.cpu = 0.0

    def __enter__(self):
        self.started = time.perf_counter(), time.process_time()

    def __exit__(self, *_):
        wall, cpu = self.started
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


class Repeated:
    """A contestant that does the same, `once()`, each time."""

    def run(self, times, clock):
        with clock:
            for _ in range(times):
                self.once()


# What the scan reads, in the order of its arguments.
SCAN_INPUTS = "u", "delta", "a_log", "b", "c", "d", "delta_bias", "z"


class Case:
    """The case, and its inputs."""

    def __init__(self, message):
        self.task, self.phase = message["task"], message["phase"]
        self.dtype, self.sizes = message["dtype"], message["sizes"]
        self.inputs, self.threads = Path(message["inputs"]), message["threads"]
        # Of a run of decoding.
        self.tokens = message["tokens"]

    def input(self, name):
        """As an array of f32, in the shape that follows from the sizes."""
        import numpy as np

        s = self.sizes
        if self.task == "linear":
            shapes = {"x": "mk", "w": "kn", "bias": "n", "dy": "mn"}
        else:
            shapes = dict.fromkeys(["u", "delta", "z", "dy"], "bld")
            shapes |= {"b": "bln", "c": "bln", "a_log": "dn", "d": "d", "delta_bias": "d"}
        values = np.fromfile(self.inputs / f"{name}.f32", np.float32)
        return values.reshape([s[letter] for letter in shapes[name]])

    def ids(self):
        """Of "step", its rows and their targets: [batch, length] each. Else the tokens."""
        import numpy as np

        ids = np.fromfile(self.inputs / "ids.u32", np.uint32).astype(np.int64)
        if self.task != "step":
            return ids[:-1]
        shape = self.sizes["batch"], self.sizes["length"]
        return ids[:-1].reshape(shape), ids[1:].reshape(shape)


def answer(contestant, module, name, message):
    do = message["do"]
    if do == "hello":
        return contestant, {"version": module.version(name)}
    if do == "prepare":
        return module.prepare(name, Case(message["case"])), {}
    if do == "check":
        import numpy as np

        for output, values in contestant.outputs().items():
            np.asarray(values, np.float32).tofile(Path(message["out"]) / f"{output}.f32")
        return contestant, {}
    clock = Clock()
    contestant.run(message["times"], clock)
    return contestant, {"wall": clock.wall, "cpu": clock.cpu}


def main():
    # Only answers go to stdout: what libraries print goes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name = sys.argv[1]
    module, contestant = importlib.import_module(MODULES[name]), None
    for line in sys.stdin:
        try:
            contestant, fields = answer(contestant, module, name, json.loads(line))
            fields["ok"] = True
        except Unsupported as reason:
            fields = {"ok": False, "unsupported": str(reason)}
        except Exception as error:
            traceback.print_exc()
            fields = {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(fields), file=out, flush=True)


if __name__ == "__main__":
    # Modules import from here by the name of the file.
    sys.modules["worker"] = sys.modules["__main__"]
    main()
