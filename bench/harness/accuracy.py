"""How far results are from those in f64. Plain Python: it also runs where there is no numpy."""

from array import array
from math import inf, isfinite, sqrt
from operator import add, mul, sub, truediv
from pathlib import Path


class Expected:
    """The values of one tensor in f64."""

    def __init__(self, values):
        self.values = values
        rms = sqrt(sum(map(mul, values, values)) / max(len(values), 1)) or 1.0
        # An error counts against the value itself, and against what is usual in the tensor.
        self.scale = array("d", map(add, map(abs, values), [rms] * len(values)))

    def error(self, found):
        """The largest error, relative; infinite if a value is not finite or the length differs."""
        if len(found) != len(self.values) or not all(map(isfinite, found)):
            return inf
        differences = map(abs, map(sub, found, self.values))
        return max(map(truediv, differences, self.scale), default=0.0)


def read(path, kind):
    """A file of little-endian numbers: of f32 ("f") or f64 ("d")."""
    values = array(kind)
    values.frombytes(Path(path).read_bytes())
    return values


class Reference:
    """Expected tensors by name: the files NAME.f64 of a directory, each read once."""

    def __init__(self, directory):
        self.directory, self.tensors = Path(directory), {}

    def errors(self, names, found):
        """The error of each tensor NAME.f32 of the directory `found`; infinite if it is missing."""
        return {name: self.error(name, Path(found) / f"{name}.f32") for name in names}

    def error(self, name, path):
        if name not in self.tensors:
            self.tensors[name] = Expected(read(self.directory / f"{name}.f64", "d"))
        return self.tensors[name].error(read(path, "f")) if path.exists() else inf
