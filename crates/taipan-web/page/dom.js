// A few lines around the DOM, and how numbers are written.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element. Keys with a dash are attributes, `on…` are listeners, the others properties. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key.includes("-")) node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

export function setIcon(button, name) {
  const use = $("use", button);
  const href = `icons.svg#${name}`;
  if (use.getAttribute("href") !== href) use.setAttribute("href", href);
}

/** Text is only written where it differs: a layout costs more than a comparison. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Calls `draw` at most once per frame, however often the result is called. */
export function perFrame(draw) {
  return () => {
    due.add(draw);
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      drawNow();
    });
  };
}
const due = new Set();
let frame = 0;

/** Draws what waits for a frame. A control that says "it is over" must not be ahead of the rest. */
export function drawNow() {
  for (const draw of due) {
    due.delete(draw);
    draw();
  }
}

/** A colour of the theme as [r, g, b], whatever scheme is in force. */
export function colour(name) {
  let rgb = colours.get(name);
  if (!rgb) {
    const probe = el("i", { hidden: true });
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    rgb = getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number);
    probe.remove();
    colours.set(name, rgb);
  }
  return rgb;
}
const colours = new Map();
export const css = (name, alpha = 1) => `rgb(${colour(name).join(" ")} / ${alpha})`;

/** Calls `then` when the colour scheme changes; charts draw themselves again. */
export function onTheme(then) {
  themed.push(then);
}
const themed = [];
export function themeChanged() {
  colours.clear();
  for (const then of themed) then();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const group = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const units = (value, base, names) => {
  let i = 0;
  while (value >= base && i < names.length - 1) [value, i] = [value / base, i + 1];
  const digits = i === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${names[i]}`;
};
export const format = {
  count: (n) => group.format(n),
  short: (n) => units(n, 1000, ["", " k", " M", " G"]),
  bytes: (n) => units(n, 1000, [" bytes", " kB", " MB", " GB"]),
  loss: (x) => (Number.isFinite(x) ? x.toFixed(x < 0.1 ? 4 : 3) : String(x)),
  number: (x) =>
    x === 0
      ? "0"
      : Math.abs(x) >= 1e4 || Math.abs(x) < 1e-3
        ? x.toExponential(1)
        : String(Number(x.toPrecision(3))),
  percent: (p) =>
    p >= 0.9995
      ? "100 %"
      : p >= 0.0995
        ? `${(p * 100).toFixed(0)} %`
        : p >= 0.001
          ? `${(p * 100).toFixed(1)} %`
          : "< 0.1 %",
  time: (s) =>
    s < 1
      ? "under a second"
      : s < 90
        ? `${Math.round(s)} s`
        : s < 5400
          ? `${Math.round(s / 60)} min`
          : `${(s / 3600).toFixed(1)} h`,
  clock: (ms) => new Date(ms).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }),
};

/** A token as it can be seen: line ends, and bytes that are no character on their own. */
export const visible = (text) => (text === "" ? "·" : text.replace(/\n/g, "⏎\n"));
export const quoted = (text) => `‘${text.replace(/\n/g, "⏎") || "·"}’`;

/** Says `text` to screen readers, at most every ten seconds unless it is urgent. */
export function announce(text, { urgent = false } = {}) {
  const now = performance.now();
  if (!urgent && now - announced < 10_000) return;
  announced = now;
  $("#live").textContent = text;
}
let announced = -Infinity;
