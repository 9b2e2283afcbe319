// A stand-in for the package, for the tests of the page alone: deterministic, fails on demand.
// `globalThis.fake` may hold { stepMs, slowFrom, compileMs, holdAt, cpu,
// faults: [{ kind, at, message }] }. From step `slowFrom` on, steps take long enough for a test to
// press Pause. Compiling stays at `holdAt` until that is removed. A fault happens once, at step `at`.

const KEY = "fake-runs";
const sleep = (ms, signal) =>
  new Promise((done, failed) => {
    const stop = () => failed(new TaipanError("aborted", "aborted"));
    if (signal?.aborted) return stop();
    signal?.addEventListener("abort", stop, { once: true });
    setTimeout(done, ms);
  });
const option = (name, fallback) => globalThis.fake?.[name] ?? fallback;

export class TaipanError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** Uniform in [0, 1), a function of its arguments alone. */
function hash(...numbers) {
  let h = 2166136261;
  for (const n of numbers) {
    h = Math.imul(h ^ (n | 0), 16777619);
    h = Math.imul(h ^ (h >>> 13), 0x5bd1e995);
  }
  return ((h ^ (h >>> 15)) >>> 0) / 2 ** 32;
}

const runs = {
  all: () => JSON.parse(localStorage.getItem(KEY) ?? "[]"),
  put: (run) =>
    localStorage.setItem(
      KEY,
      JSON.stringify([...runs.all().filter((r) => r.name !== run.name), run]),
    ),
  remove: (name) =>
    localStorage.setItem(KEY, JSON.stringify(runs.all().filter((r) => r.name !== name))),
};

const PRESETS = [
  ["tiny", 128, 4],
  ["small", 384, 8],
  ["medium", 512, 12],
].map(([name, d, layers]) => ({
  name,
  config: { hidden_size: d, num_hidden_layers: layers, state_size: 16, vocab_size: 257 },
  parameters: 257 * d + layers * (6 * d * d + 80 * d),
}));

const losses = (step) => 0.62 + 4.93 * Math.exp(-step / 9) * 0.5 + 2.47 * Math.exp(-step / 160);
/** How much of what it writes is words by now. */
const skill = (step) => 1 - Math.exp(-step / 60);
const NOISE = 'etaoin shrdlu,."EATNRcm fwyp\n';
const pick = (list, ...of) => list[Math.floor(hash(...of) * list.length)];
const TALES = Array.from({ length: 900 }, (_, i) => {
  const place = pick(["mill", "harbour", "market", "bridge"], i, 1);
  const thing = pick(["lantern", "kettle", "ladder", "button", "drum"], i, 2);
  const name = pick(["Ada", "Bram", "Cleo", "Edda", "Finn", "Greta"], i, 3);
  return (
    `Nobody at the ${i ? place : "mill"} had ever seen such a ${thing}. "Mine," said ${name}, ` +
    `"and it has come a long way." There was once a ${thing} like it, but that was lost at the ` +
    `${place} before ${name} was born.\n`
  );
});
const text = TALES.join("\n").slice(0, 40_000);

class Fake {
  #disposed = false;
  #lose;
  step = 0;
  lost = new Promise((lose) => (this.#lose = lose));

  constructor(preset, options, step = 0) {
    const cpu = option("cpu", false) || options.device === "cpu";
    Object.assign(this, {
      config: preset.config,
      parameters: preset.parameters,
      step,
      bpe: typeof options.tokenizer === "object",
      device: {
        kind: cpu ? "cpu" : "webgpu",
        name: cpu ? "" : "Fake adapter",
        limits: {},
        f16: false,
        ...(cpu ? { why: "there is no adapter" } : {}),
      },
    });
  }

  static async presets() {
    return PRESETS;
  }
  static async stories() {
    return TALES.map((text, i) => ({ name: `story ${i}`, text }));
  }
  static async runs() {
    return runs.all();
  }
  static async removeRun(name) {
    runs.remove(name);
  }

  static async create(config, options = {}) {
    const preset = PRESETS.find((p) => p.config.hidden_size === config.hidden_size);
    const bpe = typeof options.tokenizer === "object";
    for (let i = 0; bpe && i <= 4; i++) {
      options.onProgress?.({ stage: "tokenizing", done: i, total: 4 });
      await sleep(5, options.signal);
    }
    return new Fake(preset, options);
  }

  static async load(source, options = {}) {
    const names =
      source instanceof Blob
        ? [source.name]
        : typeof source === "object" && !(source instanceof URL)
          ? Object.keys(source)
          : [String(source)];
    if (!names.some((name) => /safetensors|zip|\/$/.test(name))) {
      throw new TaipanError("input", `load: ${names.join(", ")} found, expected model.safetensors`);
    }
    return new Fake(PRESETS[0], options, 400);
  }

  static async resume(name, options = {}) {
    const run = runs.all().find((r) => r.name === name);
    if (!run) throw new TaipanError("input", `resume: no run ${name}`);
    return new Fake(PRESETS[0], options, run.step);
  }

  static async probe(config, options) {
    await sleep(option("probeMs", 20), options.signal);
    const preset = PRESETS.find((p) => p.config.hidden_size === config.hidden_size);
    return {
      secondsPerStep: (options.batchSize * options.blockSize * preset.parameters * 6) / 2e12,
      bytes: 16 * preset.parameters + 4000 * options.batchSize * options.blockSize,
      parameters: preset.parameters,
    };
  }

  async *train(source, options) {
    const total = option("compile", 48);
    if (!options.resume) this.step = 0;
    for (let i = 0; i <= total; i++) {
      options.onProgress?.({ stage: "compiling", done: i, total });
      do await sleep(option("compileMs", 1), options.signal);
      while (option("holdAt") === i);
    }
    const task = typeof source === "object" && !Array.isArray(source) && source.task;
    while (this.step < options.steps) {
      const slow = this.step >= option("slowFrom", Infinity);
      await sleep(slow ? 300 : option("stepMs", 4), options.signal);
      const step = this.step + 1;
      const faults = option("faults", []);
      const fault = faults.findIndex((f) => f.at === step);
      if (fault >= 0) {
        const [{ kind, message }] = faults.splice(fault, 1);
        if (kind === "lost") this.#lose(message);
        throw new TaipanError(kind, message);
      }
      this.step = step;
      const noise = (hash(options.seed, step) - 0.5) * 0.5 * Math.exp(-step / 300);
      const out = {
        step,
        loss: losses(step) + noise,
        lr: options.lr,
        gradNorm: 0.35 + 2.2 * Math.exp(-step / 40) + 0.25 * hash(step, 3),
        tokens: options.batchSize * options.blockSize,
        tokensPerSecond: 21_000 + 1800 * hash(step, 5),
        skipped: 0,
      };
      if (step === 1) out.pipelines = total;
      if (step % options.evalEvery === 0) {
        out.evaluation = {
          loss: losses(step) + 0.06,
          bitsPerByte: losses(step) / Math.LN2,
          ...(task ? { accuracy: Math.min(1, 1.01 - Math.exp(-step / 80)) } : {}),
        };
      }
      if (step === 1 || step % options.sampleEvery === 0) {
        out.sample = babble(step, options.samplePrompt, options.sampleTokens);
      }
      if (options.run && step % options.saveEvery === 0) {
        runs.put({
          name: options.run,
          step,
          modified: Date.now(),
          bytes: 12 * this.parameters,
          settings: null,
        });
        out.saved = true;
      }
      yield out;
    }
  }

  async tokenize(source) {
    const parts = this.bpe ? (source.match(/ ?[A-Za-z]{1,4}|[^A-Za-z]/g) ?? []) : [...source];
    return parts.map((part) => ({
      id: this.bpe ? 256 + part.length * 97 + (part.charCodeAt(0) % 90) : part.charCodeAt(0) % 256,
      text: part,
    }));
  }

  async *generate(prompt, options) {
    let { at, drawn } = options.state
      ? JSON.parse(new TextDecoder().decode(options.state))
      : { at: startOf(prompt), drawn: 0 };
    if (options.state && prompt) at += prompt.length;
    for (let i = 0; i < options.maxTokens; i++) {
      await sleep(option("tokenMs", 3), options.signal);
      drawn++;
      const right = text[at % text.length];
      const sure = skill(this.step) * (0.75 + 0.25 * hash(at, 1));
      const others = [...new Set([right, ..."eta onsrhl"])].slice(0, options.alternatives);
      let left = 1;
      const alternatives = others
        .map((character, k) => {
          const probability = k === 0 ? sure : left * (0.4 + 0.2 * hash(at, k));
          left -= probability;
          return { id: character.charCodeAt(0), text: character, probability };
        })
        .sort((a, b) => b.probability - a.probability);
      const pick =
        options.temperature > 0 && hash(at, options.seed, drawn) > sure
          ? alternatives[1 + Math.floor(hash(drawn, at) * (alternatives.length - 1))]
          : alternatives[0];
      at++;
      const state = new TextEncoder().encode(JSON.stringify({ at, drawn }));
      yield {
        ...pick,
        alternatives,
        ...(options.snapshots ? { state } : {}),
        ...(i === options.maxTokens - 1 ? { finish: "length" } : {}),
      };
    }
  }

  async inspect(source) {
    await sleep(option("inspectMs", 2));
    const tokens = await this.tokenize(source);
    const [n, layers, channels] = [
      tokens.length,
      this.config.num_hidden_layers,
      2 * this.config.hidden_size,
    ];
    const grown = skill(this.step);
    const weight = (k, layer) => {
      const [c, before] = [tokens[k].text, tokens[k - 1]?.text ?? " "];
      const start = before === " " || /^ /.test(c);
      const want = /[A-Z]/.test(c)
        ? 1
        : start
          ? 0.75
          : /[\s]/.test(c)
            ? 0.08
            : /["',.]/.test(c)
              ? 0.5
              : 0.25;
      return 0.02 + 0.1 * (grown * want + (1 - grown) * 0.5) * (0.8 + 0.4 * hash(k, layer));
    };
    const fill = (f) =>
      Float32Array.from({ length: layers * n }, (_, i) => f(Math.floor(i / n), i % n));
    const attends = (layer) => option("attention", []).includes(layer);
    const delta = fill((layer, k) => (attends(layer) ? NaN : weight(k, layer)));
    let norm = 0;
    const stateNorm = fill((layer, k) => {
      if (attends(layer)) return NaN;
      norm = (k ? norm : 0) * (0.9 + 0.02 * layer) + 8 * weight(k, layer);
      return norm;
    });
    const edges = Float32Array.from({ length: 25 }, (_, i) => 10 ** (-0.5 + (4 * i) / 24));
    const counts = Uint32Array.from({ length: layers * 24 }, (_, i) => {
      const [layer, b] = [Math.floor(i / 24), i % 24];
      if (attends(layer)) return 0;
      return Math.round(
        channels * 16 * 0.12 * Math.exp(-(((b - 6 - 2 * layer - 3 * grown) / 4.5) ** 2)),
      );
    });
    return {
      tokens,
      layers,
      channels,
      delta,
      stateNorm,
      halfLives: { edges, counts },
      gradientReach: fill(
        (layer, k) =>
          Math.exp(-(n - 1 - k) / (8 + 14 * grown + 6 * layer)) * (0.5 + hash(k, layer)),
      ),
      deltaOf: async (layer) =>
        Float32Array.from(
          { length: n * channels },
          (_, i) =>
            weight(Math.floor(i / channels), layer) * (0.3 + 1.4 * hash(i % channels, i >> 9)),
        ),
      attention: async (layer) =>
        Float32Array.from({ length: n * n }, (_, i) => {
          const [row, col] = [Math.floor(i / n), i % n];
          if (col > row) return 0;
          const same = tokens[row].text === tokens[col].text ? 2.5 : 1;
          return weight(col, layer) * same * Math.exp(-(row - col) / (6 + 8 * layer + 10 * grown));
        }),
    };
  }

  async save() {
    return {
      "config.json": new TextEncoder().encode(JSON.stringify(this.config)),
      "model.safetensors": new Uint8Array(64),
      "tokenizer.json": new TextEncoder().encode("{}"),
    };
  }

  async saveZip() {
    return new Blob([new Uint8Array(64)], { type: "application/zip" });
  }

  dispose() {
    this.#disposed = true;
  }
}

function startOf(prompt) {
  const found = text.indexOf(prompt.slice(-16));
  return found < 0 ? 0 : found + prompt.slice(-16).length;
}

/** A completion of this step: noise, then letters, then words. */
function babble(step, prompt, length) {
  const from = startOf(prompt) + 37 * step;
  const mostly = skill(step);
  return Array.from({ length }, (_, i) =>
    hash(step, i) < mostly ** 1.5
      ? text[(from + i) % text.length]
      : NOISE[Math.floor(hash(i, step, 9) * NOISE.length)],
  ).join("");
}

export { Fake as Taipan };
