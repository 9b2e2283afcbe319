// Curves on a canvas: axes, a log scale, a cursor for pointer and keyboard. And sparklines.
import { css, format, onTheme, perFrame } from "./dom.js";

const MARGIN = { left: 46, right: 10, top: 8, bottom: 22 };

/** Sizes a canvas to its box in device pixels, and returns its context in CSS pixels. */
function context(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = devicePixelRatio;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return { g, width, height };
}

/** Between `low` and `high`, round numbers, about `count` of them. */
function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-12); i++) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high) {
  const all = [];
  for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p++) {
    for (const m of [1, 2, 5]) all.push(m * 10 ** p);
  }
  const inside = all.filter((t) => t >= low && t <= high);
  return inside.length > 6 ? inside.filter((t) => /^1/.test(t.toExponential())) : inside;
}

/**
 * A chart of curves. `set({ lines, xMax, log, xName })` shows them; a line is
 * { x, y, colour, width?, alpha?, dash? } with columns of numbers. `onCursor(x | null)` follows
 * pointer and arrow keys; `mark` draws a vertical line at x.
 */
export class Curve {
  #data = { lines: [], xMin: 0, xMax: 1, log: false };
  #scale = null;
  #cursor = null;
  mark = null;

  constructor(plot, { onCursor }) {
    this.plot = plot;
    this.canvas = plot.querySelector("canvas");
    this.onCursor = onCursor;
    this.draw = perFrame(() => this.#draw());
    new ResizeObserver(this.draw).observe(plot);
    onTheme(this.draw);
    plot.addEventListener("pointermove", (event) => this.#point(event));
    plot.addEventListener("pointerdown", (event) => this.#point(event));
    plot.addEventListener("pointerleave", () => this.moveTo(null));
    plot.addEventListener("blur", () => this.moveTo(null));
    plot.addEventListener("keydown", (event) => this.#key(event));
  }

  set(data) {
    this.#data = { xMin: 0, ...data };
    this.plot.classList.toggle(
      "has",
      data.lines.some((line) => line.x.length > 0),
    );
    this.draw();
  }

  /** The x of the first line that the cursor stands at. */
  get cursor() {
    return this.#cursor;
  }

  moveTo(x) {
    this.#cursor = x;
    this.onCursor?.(x);
    this.draw();
  }

  #main() {
    return this.#data.lines.find((line) => line.main)?.x ?? [];
  }

  #point(event) {
    const xs = this.#main();
    if (!this.#scale || !xs.length) return;
    const wanted = this.#scale.xOf(event.clientX - this.canvas.getBoundingClientRect().left);
    this.moveTo(xs[nearest(xs, wanted)]);
  }

  #key(event) {
    const xs = this.#main();
    if (!xs.length) return;
    const at = this.#cursor === null ? xs.length - 1 : nearest(xs, this.#cursor);
    const page = Math.max(1, Math.round(xs.length / 10));
    const next = {
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      PageDown: at - page,
      PageUp: at + page,
      Home: 0,
      End: xs.length - 1,
    }[event.key];
    if (event.key === "Escape") return this.moveTo(null);
    if (next === undefined) return;
    event.preventDefault();
    this.moveTo(xs[Math.min(xs.length - 1, Math.max(0, next))]);
  }

  #draw() {
    const { g, width, height } = context(this.canvas);
    const { lines, xMin, xMax, log } = this.#data;
    const drawn = lines.filter((line) => line.x.length);
    if (width < 60) return;
    if (!drawn.length) return ghost(g, width, height);
    let [low, high] = range(drawn, log);
    if (log) [low, high] = [low / 1.15, high * 1.08];
    else {
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      [low, high] = [Math.max(low >= 0 ? 0 : -Infinity, low - room), high + room];
    }
    const f = log ? Math.log : (v) => v;
    const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
    const px = (x) => MARGIN.left + ((x - xMin) / (xMax - xMin || 1)) * (right - MARGIN.left);
    const py = (y) => bottom - ((f(y) - f(low)) / (f(high) - f(low))) * (bottom - MARGIN.top);
    this.#scale = {
      xOf: (p) => xMin + ((p - MARGIN.left) / (right - MARGIN.left)) * (xMax - xMin),
    };

    g.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
    g.lineWidth = 1;
    g.textBaseline = "middle";
    g.textAlign = "right";
    for (const tick of log ? logTicks(low, high) : linearTicks(low, high, height / 55)) {
      g.strokeStyle = css("line");
      stroke(g, [
        [MARGIN.left, Math.round(py(tick)) + 0.5],
        [right, Math.round(py(tick)) + 0.5],
      ]);
      g.fillStyle = css("muted");
      g.fillText(format.number(tick), MARGIN.left - 8, py(tick));
    }
    g.textBaseline = "alphabetic";
    for (const tick of linearTicks(xMin, xMax, Math.max(2, width / 110))) {
      if (!Number.isInteger(tick)) continue;
      g.textAlign = px(tick) > right - 14 ? "right" : "center";
      g.fillText(format.count(tick), Math.min(px(tick), right), height - 5);
    }
    for (const line of drawn) {
      g.strokeStyle = css(line.colour, line.alpha ?? 1);
      g.lineWidth = line.width ?? 1.5;
      g.setLineDash(line.dash ?? []);
      g.lineJoin = "round";
      stroke(g, columns(line, px, py));
      g.setLineDash([]);
      if (line.dots && line.x.length < 60) {
        g.fillStyle = css(line.colour);
        for (let i = 0; i < line.x.length; i++) dot(g, px(line.x[i]), py(line.y[i]), 2.5);
      }
    }
    if (this.mark !== null) {
      g.strokeStyle = css("mark");
      g.lineWidth = 2;
      stroke(g, [
        [px(this.mark), MARGIN.top],
        [px(this.mark), bottom],
      ]);
    }
    if (this.#cursor !== null) {
      g.strokeStyle = css("ink", 0.6);
      g.lineWidth = 1;
      stroke(g, [
        [px(this.#cursor), MARGIN.top],
        [px(this.#cursor), bottom],
      ]);
      for (const line of drawn.filter((l) => l.main)) {
        const i = nearest(line.x, this.#cursor);
        g.fillStyle = css(line.colour);
        if (Number.isFinite(line.y[i])) dot(g, px(line.x[i]), py(line.y[i]), 4);
      }
    }
  }
}

/** Before there is a curve, what one looks like. */
function ghost(g, width, height) {
  g.strokeStyle = css("line");
  g.lineWidth = 2;
  g.setLineDash([2, 6]);
  stroke(
    g,
    Array.from({ length: 60 }, (_, i) => [
      MARGIN.left + (i / 59) * (width - 56),
      height * (0.86 - 0.78 * Math.exp(-i / 9)),
    ]),
  );
  g.setLineDash([]);
}

/** Smallest and largest value to be shown; a log scale has no place for 0. */
function range(lines, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const { y } of lines) {
    for (const value of y) {
      if (!Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [log ? 0.1 : 0, 1];
}

/** The points of a line; of those in one column of pixels the extremes, in their order. */
function columns({ x, y }, px, py) {
  const points = [];
  let column = null;
  const flush = () => {
    if (!column) return;
    const { p, low, high, lowFirst } = column;
    points.push(
      ...(low === high
        ? [[p, low]]
        : lowFirst
          ? [
              [p, low],
              [p, high],
            ]
          : [
              [p, high],
              [p, low],
            ]),
    );
    column = null;
  };
  for (let i = 0; i < x.length; i++) {
    const [p, v] = [px(x[i]), py(y[i])];
    if (!Number.isFinite(v)) continue;
    if (column && Math.abs(p - column.p) < 0.75) {
      if (v < column.low) [column.low, column.lowFirst] = [v, false];
      if (v > column.high) [column.high, column.lowFirst] = [v, true];
    } else {
      flush();
      column = { p, low: v, high: v, lowFirst: true };
    }
  }
  flush();
  return points;
}

function stroke(g, points) {
  g.beginPath();
  for (const [x, y] of points) g.lineTo(x, y);
  g.stroke();
}

function dot(g, x, y, radius) {
  g.beginPath();
  g.arc(x, y, radius, 0, 2 * Math.PI);
  g.fill();
}

/** The index of the value nearest to `x` in an ascending column. */
export function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

/** The last values as a line without axes. */
export function sparkline(canvas, values, colour) {
  const { g, width, height } = context(canvas);
  const recent = values.slice(-120);
  if (recent.length < 2) return;
  const [low, high] = range([{ y: recent }], false);
  g.strokeStyle = css(colour);
  g.lineWidth = 1.25;
  stroke(
    g,
    recent.map((v, i) => [
      1 + (i / (recent.length - 1)) * (width - 2),
      height - 2 - ((v - low) / (high - low || 1)) * (height - 4),
    ]),
  );
}
