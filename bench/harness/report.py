"""Results as text, as Markdown, and as JSON."""

import math
from dataclasses import asdict

from .contest import ratios

BASELINE = "taipan"


def seconds(value):
    for unit, size in ("s", 1), ("ms", 1e-3), ("µs", 1e-6):
        if value >= size:
            break
    return f"{value / size:.3g} {unit}" if value < 100 * size else f"{value / size:.0f} {unit}"


def size(value):
    return f"{value / 2**20:.0f} MiB" if value >= 10 * 2**20 else f"{value / 2**20:.1f} MiB"


def ratio(value):
    return f"{value:.3g}×" if value < 0.1 else f"{value:.2f}×" if value < 10 else f"{value:.0f}×"


def rows(results):
    """Contestant, time, spread, CPU time, memory, ratio to taipan's time, error. Of one without
    a time, the second says why."""
    relative = ratios(results, BASELINE)
    table = []
    for result in sorted(results, key=order):
        name = f"{result.name} ({result.note})" if result.note else result.name
        if result.status != "ok":
            why = f"{result.status}: {result.detail}" if result.detail else result.status
            table.append([name, why])
            continue
        table.append(
            [
                name,
                seconds(result.seconds),
                f"+{100 * result.spread:.0f} %",
                seconds(result.cpu_seconds),
                size(result.memory),
                ratio(relative[result.name]) if relative else "",
                f"{result.error:.0e}",
            ]
        )
    return table


def order(result):
    """taipan first, then by time, then those without."""
    timed = result.status == "ok"
    return result.name != BASELINE, not timed, result.seconds if timed else 0, result.name


HEADER = ["", "time", "median", "CPU time", "memory", "ratio", "error"]


def text(title, results):
    table = rows(results)
    whole = [row for row in table if len(row) > 2]
    width = max(len(row[0]) for row in table)
    columns = [max(len(row[i]) for row in [HEADER, *whole]) for i in range(1, len(HEADER))]
    lines = [title, "  " + " " * width]
    lines[1] += "".join(f"  {name:>{w}}" for name, w in zip(HEADER[1:], columns))
    for name, *cells in table:
        if len(cells) == 1:
            lines.append(f"  {name:<{width}}  {cells[0]}")
        else:
            cells = "".join(f"  {cell:>{w}}" for cell, w in zip(cells, columns))
            lines.append(f"  {name:<{width}}{cells}")
    return "\n".join(lines) + "\n"


def markdown(title, results):
    lines = [f"### {title}", "", f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for row in rows(results):
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append(f"| {' | '.join(cells + [''] * (len(HEADER) - len(cells)))} |")
    return "\n".join(lines) + "\n"


def heading(machine, command, threads):
    """A paragraph on the machine and the versions."""
    lines = [
        f"`{command}` on {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory'] / 2**30:.0f} GiB, {machine['system']}; {threads} "
        f"{'thread' if threads == 1 else 'threads'}. taipan {machine['taipan']}, "
        f"Rust {machine['rustc']}, Python {machine['python']}."
    ]
    bounds = machine.get("bounds")
    if bounds:
        lines.append(
            f"Measured bounds: {bounds['flops'] / 1e9:.0f} GF/s of multiply-adds in f32, "
            f"{bounds['memory'] / 1e9:.0f} GB/s of reading memory."
        )
    return "\n".join(lines)


def versions(contests):
    """The versions of the peers that took part."""
    found = {
        result.name: result.version
        for _, results in contests
        for result in results
        if result.version and result.name != BASELINE
    }
    return "Versions: " + ", ".join(f"{name} {found[name]}" for name in sorted(found)) + "."


EXPLANATION = """\
Time is that of the fastest round, in which contestants take turns; "median" is how far the median
is above it. Memory is the peak while it ran, above that of the idle process. The ratio is to
taipan's time: above 1, taipan is faster. The error is the largest, against f64."""


def as_json(machine, command, threads, contests):
    return {
        "machine": machine,
        "command": command,
        "threads": threads,
        "cases": [
            {
                "case": asdict(case) | {"name": case.name, "sizes": dict(case.sizes)},
                "results": [result_json(result, results) for result in results],
            }
            for case, results in contests
        ],
    }


def result_json(result, results):
    fields = asdict(result)
    # JSON has neither NaN nor infinity.
    fields["error"] = result.error if math.isfinite(result.error) else None
    if result.status == "ok":
        fields["seconds"], fields["cpu_seconds"] = result.seconds, result.cpu_seconds
        fields["ratio"] = ratios(results, BASELINE).get(result.name)
    return fields
