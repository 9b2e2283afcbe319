// Heat maps on a canvas of one pixel per cell, which the browser enlarges.
import { colour, el, onTheme, perFrame } from "./dom.js";

const SHADES = 256;

/** The ramp of the theme as RGBA. */
function ramp() {
  const stops = [0, 1, 2, 3].map((i) => colour(`heat-${i}`));
  const bytes = new Uint8ClampedArray(SHADES * 4);
  for (let i = 0; i < SHADES; i++) {
    const at = (i / (SHADES - 1)) * 3;
    const k = Math.min(2, Math.floor(at));
    for (let c = 0; c < 3; c++) {
      bytes[4 * i + c] = stops[k][c] + (stops[k + 1][c] - stops[k][c]) * (at - k);
    }
    bytes[4 * i + 3] = 255;
  }
  return bytes;
}

/**
 * `set({ rows, cols, values, lower, perRow, shade })` shows `values` [rows, cols], each row scaled
 * by itself if `perRow`; `lower` leaves out what is above the diagonal; `shade` maps [0, 1] to how
 * strong a cell is (a square root shows small values beside large ones). `onCell(row, col)`, or
 * with nulls, follows pointer and arrow keys.
 */
export class Heat {
  #data = null;
  #cell = null;

  constructor(box, { label, onCell }) {
    this.box = box;
    this.onCell = onCell;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.frame = el("div", { className: "cell", hidden: true });
    box.append(this.canvas, this.frame);
    box.tabIndex = 0;
    box.setAttribute("role", "application");
    box.setAttribute("aria-roledescription", "heat map");
    box.setAttribute("aria-label", `${label}. Arrow keys move between cells.`);
    this.draw = perFrame(() => this.#draw());
    onTheme(this.draw);
    box.addEventListener("pointermove", (event) => this.#point(event));
    box.addEventListener("pointerdown", (event) => this.#point(event));
    box.addEventListener("pointerleave", () => this.#select(null));
    box.addEventListener("blur", () => this.#select(null));
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  set(data) {
    this.#data = data;
    if (this.#cell && (this.#cell[0] >= data.rows || this.#cell[1] >= data.cols)) this.#cell = null;
    this.draw();
  }

  #point(event) {
    if (!this.#data) return;
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const { rows, cols } = this.#data;
    const row = Math.floor(((event.clientY - top) / height) * rows);
    const col = Math.floor(((event.clientX - left) / width) * cols);
    this.#select(row, col);
  }

  #key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ];
    if (!this.#data || !move) return;
    event.preventDefault();
    const { rows } = this.#data;
    const [row, col] = this.#cell ?? [rows - 1, 0];
    this.#select(row + (this.#cell ? move[0] : 0), col + (this.#cell ? move[1] : 0));
  }

  #select(row, col) {
    const { rows, cols, lower } = this.#data ?? {};
    const inside =
      row !== null && row >= 0 && row < rows && col >= 0 && col < cols && !(lower && col > row);
    if (!inside && row !== null && this.#cell && document.activeElement === this.box) return;
    this.#cell = inside ? [row, col] : null;
    this.frame.hidden = !inside;
    if (inside) {
      Object.assign(this.frame.style, {
        left: `${(100 * col) / cols}%`,
        top: `${(100 * row) / rows}%`,
        width: `${100 / cols}%`,
        height: `${100 / rows}%`,
      });
    }
    this.onCell(inside ? row : null, inside ? col : null);
  }

  #draw() {
    if (!this.#data) return;
    const { rows, cols, values, lower, perRow, shade } = this.#data;
    Object.assign(this.canvas, { width: cols, height: rows });
    const image = new ImageData(cols, rows);
    const shades = ramp();
    const most = (from, to) => {
      let max = 0;
      for (let i = from; i < to; i++) if (values[i] > max) max = values[i];
      return max || 1;
    };
    let max = most(0, values.length);
    for (let row = 0; row < rows; row++) {
      if (perRow) max = most(row * cols, (row + 1) * cols);
      for (let col = 0; col < cols; col++) {
        if (lower && col > row) continue;
        const k = Math.round(shade(Math.max(0, values[row * cols + col]) / max) * (SHADES - 1));
        image.data.set(shades.subarray(4 * k, 4 * k + 4), 4 * (row * cols + col));
      }
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }
}
