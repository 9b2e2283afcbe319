// What can be set, what it is by default, and the address that restores it.
import { $, $$ } from "./dom.js";

const number = (fallback, min, max) => ({ fallback, min, max, kind: "number" });
const choice = (fallback, ...values) => ({ fallback, values, kind: "choice" });

// A fallback of null is up to the size of the model (RECIPES) or to the package.
const FIELDS = {
  feed: choice("sample", "sample", "own", "task"),
  task: choice("selective-copying", "selective-copying", "induction-heads", "parity"),
  taskLength: number(32, 8, 256),
  tokens: choice("bytes", "bytes", "bpe"),
  vocab: choice("1024", "512", "1024", "2048", "4096"),
  size: choice("tiny", "tiny", "small", "medium"),
  steps: number(null, 1, 1e6),
  lr: number(null, 0, 1),
  schedule: choice("cosine", "cosine", "constant", "wsd"),
  warmup: number(null, 0, 1e5),
  batch: number(null, 1, 512),
  length: number(null, 8, 4096),
  decay: number(0.1, 0, 1),
  clip: number(1, 0, 1000),
  seed: number(0, 0, 2 ** 32 - 1),
  dtype: choice("f32", "f32", "f16"),
  device: choice("auto", "auto", "webgpu", "cpu"),
  sampleEvery: number(null, 1, 1e5),
  prompt: { fallback: "", kind: "text" },
  temperature: number(0.8, 0, 2),
  maxTokens: number(200, 1, 4096),
  topK: number(0, 0, 1e5),
  topP: number(1, 0, 1),
  minP: number(0, 0, 1),
  penalty: number(1, 0.5, 2),
  talkSeed: number(null, 0, 2 ** 32 - 1),
  live: { fallback: true, kind: "switch" },
};

/** Sizes of models: the first two as the program's presets of the same names. */
export const SIZES = {
  tiny: { hidden_size: 128, num_hidden_layers: 4 },
  small: { hidden_size: 384, num_hidden_layers: 8 },
  medium: { hidden_size: 512, num_hidden_layers: 12 },
};

/** What suits a size, in steps that a tab has patience for. */
const RECIPES = {
  tiny: { steps: 1000, lr: 3e-3, batch: 8, length: 128 },
  small: { steps: 2000, lr: 2e-3, batch: 8, length: 256 },
  medium: { steps: 4000, lr: 1e-3, batch: 8, length: 256 },
};
// Tasks are short sequences; many of them make a steady gradient.
const TASK_RECIPE = { batch: 32 };

export class Settings extends EventTarget {
  #values = Object.fromEntries(Object.entries(FIELDS).map(([k, f]) => [k, f.fallback]));

  constructor(query = location.search) {
    super();
    for (const [key, text] of new URLSearchParams(query)) {
      const value = FIELDS[key] && parse(FIELDS[key], text);
      if (value !== undefined) this.#values[key] = value;
    }
  }

  /** The value, or what stands in for it. */
  get(key) {
    return this.#values[key] ?? this.usual(key);
  }

  /** What a setting is when nobody has set it. */
  usual(key) {
    const fallback = FIELDS[key].fallback;
    if (fallback !== null) return fallback;
    const task = this.#values.feed === "task";
    const recipe = { ...RECIPES[this.#values.size], ...(task ? TASK_RECIPE : {}) };
    if (key === "warmup") return Math.round(this.get("steps") / 20);
    if (key === "sampleEvery") return Math.max(1, Math.round(this.get("steps") / 40));
    return recipe[key] ?? null;
  }

  set(key, value) {
    if (Object.is(this.#values[key], value)) return;
    this.#values[key] = value;
    history.replaceState(null, "", this.link());
    this.dispatchEvent(new CustomEvent("change", { detail: key }));
  }

  /** Sets all of them, as a stored run had them. */
  assign(values) {
    for (const key of Object.keys(FIELDS)) {
      if (key in values) this.set(key, values[key]);
    }
  }

  snapshot() {
    return { ...this.#values };
  }

  /** The names of those that differ from the default. */
  changed(keys = Object.keys(FIELDS)) {
    return keys.filter((key) => this.#values[key] !== FIELDS[key].fallback);
  }

  /** The address of this page with these settings. */
  link() {
    const query = new URLSearchParams(
      this.changed().map((key) => [key, String(this.#values[key])]),
    );
    const model = new URLSearchParams(location.search).get("model");
    if (model) query.set("model", model);
    return `${location.pathname}${query.size ? `?${query}` : ""}`;
  }

  /** What `train` takes. */
  trainOptions() {
    const lr = this.get("lr");
    const isTask = this.get("feed") === "task";
    return {
      steps: this.get("steps"),
      lr,
      minLr: lr / 10,
      warmup: this.get("warmup"),
      schedule: this.get("schedule"),
      batchSize: this.get("batch"),
      blockSize: this.get("length"),
      seed: this.get("seed"),
      weightDecay: this.get("decay"),
      gradClip: this.get("clip"),
      evalEvery: Math.max(5, Math.round(this.get("steps") / 40)),
      saveEvery: Math.max(1, Math.round(this.get("steps") / 20)),
      // Of a task, the one token that is asked for.
      sampleEvery: this.get("sampleEvery"),
      sampleTokens: isTask ? 1 : 120,
    };
  }

  /** What `generate` takes. */
  generateOptions() {
    return {
      maxTokens: this.get("maxTokens"),
      temperature: this.get("temperature"),
      topK: this.get("topK") || undefined,
      topP: this.get("topP"),
      minP: this.get("minP"),
      repetitionPenalty: this.get("penalty"),
      seed: this.get("talkSeed") ?? Math.floor(Math.random() * 2 ** 32),
    };
  }
}

/** The value that a text of the address stands for; undefined if it is none. */
function parse(field, text) {
  switch (field.kind) {
    case "choice":
      return field.values.includes(text) ? text : undefined;
    case "switch":
      return text === "true" ? true : text === "false" ? false : undefined;
    case "text":
      return text.slice(0, 200);
    default: {
      const value = Number(text);
      return text.trim() !== "" && value >= field.min && value <= field.max ? value : undefined;
    }
  }
}

/** Ties every control with `data-setting` to its setting, both ways. */
export function bindControls(settings) {
  const controls = $$("[data-setting]");
  const show = (control) => {
    const key = control.dataset.setting;
    const value = settings.snapshot()[key];
    if (control.type === "checkbox") control.checked = value;
    else if (document.activeElement !== control || control.type === "range") {
      control.value = value ?? "";
    }
    if (control.type === "number" && value === null) {
      control.placeholder = settings.usual(key) ?? "any";
    }
    const output = $(`[data-show="${key}"]`);
    if (output) output.value = Number(value).toFixed(2);
  };
  for (const control of controls) {
    const key = control.dataset.setting;
    show(control);
    control.addEventListener("input", () => {
      if (control.type === "checkbox") return settings.set(key, control.checked);
      const value = parse(FIELDS[key], control.value);
      if (value !== undefined) settings.set(key, value);
      else if (control.value === "") settings.set(key, FIELDS[key].fallback);
    });
    control.addEventListener("blur", () => show(control));
  }
  settings.addEventListener("change", () => controls.forEach(show));
}
