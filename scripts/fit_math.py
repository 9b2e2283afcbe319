"""Fit the polynomials of crates/taipan/src/cpu/math (needs mpmath and numpy).

Each is a minimax fit by Remez exchange in 50-digit arithmetic, rounded to the type it is for.
Printed: the coefficients, lowest degree first, as they stand in the source, and the error of
the rounded polynomial in units of the unit roundoff (half an ulp of 1).
"""

import numpy as np
from mpmath import cos, erf, erfc, exp, expm1, log, log1p, lu_solve, matrix, mp, mpf, pi, polyval, sin, sqrt

mp.dps = 50
GRID = 2000


def chebyshev(lo, hi, count):
    """The `count` extrema of the Chebyshev polynomial of degree `count - 1` on [lo, hi]."""
    return [(lo + hi - (hi - lo) * cos(pi * k / (count - 1))) / 2 for k in range(count)]


def remez(f, weight, lo, hi, degree):
    """The polynomial p of that degree with the least max of weight·|f - p| on [lo, hi]."""
    nodes = chebyshev(lo, hi, degree + 2)
    grid = chebyshev(lo, hi, GRID)
    samples = [(x, f(x), weight(x)) for x in grid]
    for _ in range(20):
        # The polynomial whose weighted error is ±e, alternating, at the nodes.
        a = matrix([[weight(x) * x**i for i in range(degree + 1)] + [(-1) ** k] for k, x in enumerate(nodes)])
        b = matrix([weight(x) * f(x) for x in nodes])
        coefficients = list(lu_solve(a, b))[:-1]
        error = [w * (y - polyval(coefficients[::-1], x)) for x, y, w in samples]
        # The new nodes: where the error is largest between its changes of sign.
        peaks = []
        for j, e in enumerate(error):
            if peaks and (error[peaks[-1]] > 0) == (e > 0):
                if abs(e) > abs(error[peaks[-1]]):
                    peaks[-1] = j
            else:
                peaks.append(j)
        while len(peaks) > degree + 2:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        nodes = [grid[j] for j in peaks]
        sizes = [abs(error[j]) for j in peaks]
        if max(sizes) < mpf("1.001") * min(sizes):
            return coefficients
    raise ArithmeticError("Remez exchange did not converge")


def fit(name, kind, f, weight, lo, hi, degree):
    """Fit, round to `kind`, print."""
    lo, hi = mpf(lo), mpf(hi)
    rounded = [kind(mp.nstr(c, 30)) for c in remez(f, weight, lo, hi, degree)]
    exact = [mpf(float(c)) for c in rounded[::-1]]
    error = max(weight(x) * abs(f(x) - polyval(exact, x)) for x in chebyshev(lo, hi, GRID))
    unit = mpf(float(np.finfo(kind).eps)) / 2
    print(f"{name}: error {mp.nstr(error / unit, 2)}")
    for c in rounded:
        print(f"    {c!s},")


def split_ln2(name, kind, bits):
    """ln 2 = high + low, high having `bits` bits."""
    high = int(mp.nint(log(2) * 2**bits))
    print(f"{name}: {high} / 2^{bits} + {kind(mp.nstr(log(2) - mpf(high) / 2**bits, 30))!s}")


split_ln2("ln 2, f32", np.float32, 16)
split_ln2("ln 2, f64", np.float64, 42)

# e^r = 1 + r + r²/2 + r³·p(r), relative to e^r - 1, for |r| ≤ ln(2)/2 = 0.347 and a little
# more. The ends differ so that no node is at 0.
for kind, degree in ((np.float32, 3), (np.float64, 8)):
    fit(
        f"EXP, {kind.__name__}",
        kind,
        lambda r: (expm1(r) - r - r**2 / 2) / r**3,
        lambda r: abs(r**3 / expm1(r)),
        "-0.35",
        "0.3501",
        degree,
    )

# ln(1+f) = f - f²/2 + f³·p(f), relative, for 1+f from √½ to √2 and a little more.
fit(
    "LN",
    np.float32,
    lambda f: (log1p(f) - f + f**2 / 2) / f**3,
    lambda f: f**3 / log1p(f),
    sqrt(mpf(1) / 2) - mpf("1.0001"),
    sqrt(mpf(2)) - mpf("0.9999"),
    7,
)

# erf(x) = x + x·p(x²), relative, for x² up to 0.9².
fit(
    "ERF_SMALL",
    np.float32,
    lambda t: erf(sqrt(t)) / sqrt(t) - 1,
    lambda t: sqrt(t) / erf(sqrt(t)),
    "1e-30",
    mpf("0.9") ** 2,
    5,
)

# erf(x) = 1 - exp(p(x)), for x from 0.9 to 4.1.
fit("ERF_LARGE", np.float32, lambda x: log(erfc(x)), lambda x: erfc(x), "0.9", "4.1", 5)

# sin r = r + r³·p(r²) and cos r = 1 - r²/2 + r⁴·p(r²), relative, for |r| ≤ π/4 and a little more.
for name, f, weight in (
    ("SIN", lambda t: (sin(sqrt(t)) / sqrt(t) - 1) / t, lambda t: t * sqrt(t) / sin(sqrt(t))),
    ("COS", lambda t: (cos(sqrt(t)) - 1 + t / 2) / t**2, lambda t: t**2 / cos(sqrt(t))),
):
    fit(name, np.float32, f, weight, "1e-20", mpf("0.7855") ** 2, 2)
