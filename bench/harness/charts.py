"""Charts of results as SVG, for light and dark pages."""

import math
from xml.sax.saxutils import escape

from .cases import PRODUCT_ONLY
from .contest import ratios
from .report import BASELINE

WIDTH, RIGHT, TOP, ROW = 860, 24, 60, 24
PLOT_HEIGHT = 360
# Of an overview: the width of the names, and the colour of peers.
NEAREST, PEER = 150, "#8b949e"

# Of the peers in a chart; taipan's colour stands out.
PALETTE = [
    "#8c6bb1", "#2b8cbe", "#31a354", "#d9a400", "#7f7f7f", "#c51b7d", "#17a2a2", "#a6611a",
    "#5e6fd1", "#e08214",
]  # fmt: skip

STYLE = """\
<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.right { text-anchor: end }
.middle { text-anchor: middle }
.grid { stroke: #d0d7de; stroke-width: 1 }
.one { stroke: #cf222e; stroke-width: 1.5 }
path { fill: none; stroke-width: 2 }
.page { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.grid { stroke: #30363d }
.page { fill: #0d1117 }
}
</style>"""


def colours(names):
    peers = [name for name in names if name != BASELINE]
    return {BASELINE: "#e5484d"} | {n: PALETTE[i % len(PALETTE)] for i, n in enumerate(peers)}


class Log:
    """A logarithmic axis from `low` to `high`, in values, drawn from `start` to `end`. Its ticks
    are powers of ten, or of two where the values are."""

    def __init__(self, values, start, end, base=10):
        low = math.floor(math.log(min(values), base) + 1e-9)
        high = max(math.ceil(math.log(max(values), base) - 1e-9), low + 1)
        self.base, self.exponents = base, range(low, high + 1)
        self.start, self.end = start, end

    def at(self, value):
        low, high = self.exponents[0], self.exponents[-1]
        fraction = (math.log(value, self.base) - low) / (high - low)
        return self.start + fraction * (self.end - self.start)

    def ticks(self):
        return [self.base**e for e in self.exponents]


def line(css, x1, y1, x2, y2):
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(css, x, y, words):
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def dot(x, y, colour, title):
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>{escape(title)}</title>'
        "</circle>"
    )


def document(title, height, parts):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}">'
    )
    page = f'<rect class="page" width="{WIDTH}" height="{height:.0f}"/>'
    return "\n".join([head, STYLE, page, text("title", 16, 26, title), *parts, "</svg>", ""])


def legend(names, palette, y):
    """Names in rows below a chart, and the height of them."""
    parts, x = [], 16
    for name in names:
        width = 34 + 7 * len(name)
        if x + width > WIDTH:
            x, y = 16, y + 20
        parts.append(f'<circle cx="{x + 6}" cy="{y - 4:.1f}" r="5" fill="{palette[name]}"/>')
        parts.append(text("", x + 16, y, name))
        x += width
    return parts, y + 16


def shown(value, unit=""):
    return f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}{unit}"


def times_over_taipan(title, contests, overview=False):
    """A row for each case, a dot for each contestant: how many times taipan's time it took. An
    overview names the fastest peer in each row instead of all by their colours, and leaves out
    those that compute less."""
    rows = [(case.name, ratios(results, BASELINE)) for case, results in contests]
    if overview:
        rows = [
            (name, {peer: found[peer] for peer in found if peer not in PRODUCT_ONLY})
            for name, found in rows
        ]
    rows = [(name, found) for name, found in rows if found]
    if not rows:
        return None
    names = list(dict.fromkeys(name for _, found in rows for name in found))
    palette = colours(names)
    if overview:
        palette |= {name: PEER for name in names if name != BASELINE}
    values = [value for _, found in rows for value in found.values()]
    left = 30 + 6.6 * max(len(name) for name, _ in rows)
    right = WIDTH - RIGHT - (NEAREST if overview else 0)
    axis, bottom = Log([*values, 1.0], left, right), TOP + ROW * len(rows)
    parts = []
    for tick in axis.ticks():
        css = "one" if tick == 1 else "grid"
        parts.append(line(css, axis.at(tick), TOP - 8, axis.at(tick), bottom))
        parts.append(text("middle", axis.at(tick), bottom + 16, shown(tick, "×")))
    for i, (name, found) in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        parts.append(text("right", left - 12, y + 4, name))
        parts.append(line("grid", left, y, right, y))
        peers = [name for name in found if name != BASELINE]
        if overview and peers:
            nearest = min(peers, key=found.get)
            parts.append(text("", right + 14, y + 4, f"{nearest} {shown(found[nearest], '×')}"))
        for contestant in [*peers, BASELINE]:
            value = found[contestant]
            hint = f"{contestant}: {shown(value, '×')}"
            parts.append(dot(axis.at(value), y, palette[contestant], hint))
    if overview:
        names = [BASELINE, "peers; at the right, the fastest"]
        palette = dict(zip(names, [palette[BASELINE], PEER]))
    labels, height = legend(names, palette, bottom + 44)
    return document(title, height, parts + labels)


UNITS = {"seconds": ("s", 1), "memory": ("MiB", 2**20)}


def growth(title, contests, quantity):
    """A line for each contestant over what grows; it ends with the last size that it survived."""
    unit, divisor = UNITS[quantity]
    lines = {}
    for case, results in contests:
        x = dict(case.sizes)[case.axis]
        for result in results:
            points = lines.setdefault(result.name, [])
            value = getattr(result, quantity) / divisor if result.status == "ok" else 0
            # Less than a page of memory is none.
            if value > 0:
                points.append((x, value))
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    palette, bottom = colours(lines), TOP + PLOT_HEIGHT
    xs = [x for points in lines.values() for x, _ in points]
    x_axis = Log(xs, 80, WIDTH - RIGHT, base=2)
    y_axis = Log([y for points in lines.values() for _, y in points], bottom, TOP)
    parts = []
    for tick in y_axis.ticks():
        parts.append(line("grid", x_axis.start, y_axis.at(tick), x_axis.end, y_axis.at(tick)))
        parts.append(text("right", x_axis.start - 8, y_axis.at(tick) + 4, f"{tick:g} {unit}"))
    for tick in sorted(set(xs)):
        parts.append(line("grid", x_axis.at(tick), TOP, x_axis.at(tick), bottom))
        parts.append(text("middle", x_axis.at(tick), bottom + 18, str(tick)))
    for name, points in lines.items():
        corners = " L".join(f"{x_axis.at(x):.1f} {y_axis.at(y):.1f}" for x, y in points)
        parts.append(f'<path d="M{corners}" stroke="{palette[name]}"/>')
        for x, y in points:
            hint = f"{name}: {shown(y, ' ' + unit)} at {x}"
            parts.append(dot(x_axis.at(x), y_axis.at(y), palette[name], hint))
    labels, height = legend(list(lines), palette, bottom + 46)
    return document(title, height, parts + labels)


AXES = {"l": "length", "length": "length", "d": "width"}


def write(directory, contests, threads):
    """A chart for each task, two for each series of growth, and one of the first case of each task
    and phase."""
    directory.mkdir(parents=True, exist_ok=True)
    groups = {}
    for case, results in contests:
        axis = AXES.get(case.axis, "")
        groups.setdefault((case.task, case.phase if axis else "", axis), []).append((case, results))
    count = "1 thread" if threads == 1 else f"{threads} threads"
    for (task, phase, axis), members in groups.items():
        if axis:
            for quantity, word in ("seconds", "Time"), ("memory", "Memory"):
                chart = growth(f"{word} of {task} over {axis}, {count}", members, quantity)
                put(directory / f"{task}-{axis}-{word.lower()}.svg", chart)
        else:
            chart = times_over_taipan(f"{task}: time over taipan's, {count}", members)
            put(directory / f"{task}.svg", chart)
    first = {}
    for case, results in contests:
        if not case.axis:
            first.setdefault((case.task, case.phase), (case, results))
    if len({task for task, _ in first}) > 1:
        title = f"Time over taipan's, {count}"
        chart = times_over_taipan(title, list(first.values()), overview=True)
        put(directory / "overview.svg", chart)


def put(path, chart):
    """Nothing was timed: there is no chart."""
    if chart is not None:
        path.write_text(chart)
