// What runs in the worker, or in the calling thread: a session of WebAssembly and its run. Calls
// are answered one after the other.
import init, * as wasm from "./taipan_wasm.js";
import { warmUp } from "./compile.js";
import { TaipanError } from "./errors.js";
import { fetchRun, store } from "./storage.js";

/** Held-out tokens that an evaluation reads at most. */
const EVALUATED = 4096;
/** Where a run that is not stored is in memory. */
const UNNAMED = "unnamed";

let loaded = null;

/** The module, once: in a browser from its file beside this one, in Node read from the disk. */
function load() {
  const url = new URL("taipan_wasm_bg.wasm", import.meta.url);
  loaded ??= url.protocol === "file:" && globalThis.process?.versions?.node
    ? import(/* @vite-ignore */ /* webpackIgnore: true */ "node:fs/promises")
      .then(({ readFile }) => readFile(url)).then((bytes) => init({ module_or_path: bytes }))
    : init({ module_or_path: url });
  return loaded;
}

export class Engine {
  #session = null;
  #run = null;
  #last = Promise.resolve();
  #onLost;

  constructor(onLost) {
    this.#onLost = onLost;
  }

  /** Call a method of this class by name, after the calls before it. */
  call(method, args, onProgress) {
    const result = this.#last.then(() => this[method](args, onProgress));
    this.#last = result.catch(() => {});
    return result;
  }

  async #open({ device = "auto", adapter }) {
    await load();
    this.dispose();
    this.#session = await withAdapter(adapter, this.#onLost, () => wasm.Session.open(device));
    return this.#session;
  }

  #describe() {
    return { ...JSON.parse(this.#session.describe()), device: JSON.parse(this.#session.device()) };
  }

  async create({ config, seed = 0, tokenizer = "bytes", dtype = "f32", ...options }, onProgress) {
    const session = await this.#open(options);
    let vocabulary = "bytes";
    if (tokenizer instanceof Uint8Array) {
      vocabulary = { json: new TextDecoder().decode(tokenizer) };
    } else if (tokenizer !== "bytes") {
      onProgress({ stage: "tokenizing", done: 0, total: 1 });
      session.add_text("text", tokenizer.text);
      vocabulary = { bpe: tokenizer.bpe };
    }
    session.create(JSON.stringify({ config, seed, dtype, tokenizer: vocabulary }));
    return this.#describe();
  }

  async load({ files, dtype, ...options }) {
    const session = await this.#open(options);
    wasm.remove_files("model");
    for (const [name, bytes] of Object.entries(files)) wasm.write_file(`model/${name}`, bytes);
    session.load(dtype);
    return this.#describe();
  }

  async resume({ run, ...options }) {
    await this.#open(options);
    await this.#fetch(run);
    return this.#describe();
  }

  /** The run that is stored, with its weights. */
  async #fetch(run, steps) {
    const files = await fetchRun(run);
    wasm.remove_files(`runs/${run}`);
    for (const [path, bytes] of Object.entries(files)) {
      wasm.write_file(`runs/${run}/${path}`, bytes);
    }
    const begun = JSON.parse(this.#session.resume(run, steps));
    this.#forgetCheckpoints(run);
    this.#run = { ...begun, name: run, stored: true, isNew: false, warm: false };
    return begun;
  }

  /** Begin a run; the steps of what is trained on and how are in `options`. */
  async train({ texts, task, options }, onProgress) {
    const session = this.#session;
    const { evalEvery, saveEvery, run, resume, sampleEvery, samplePrompt, sampleTokens, settings,
      ...recipe } = options;
    const every = { evalEvery, saveEvery, sampleEvery, samplePrompt, sampleTokens };
    if (resume) {
      const isOpen = this.#run && (run === undefined || this.#run.name === run);
      if (!isOpen) await this.#fetch(run, recipe.steps);
      this.#run = { ...this.#run, every };
      return { step: this.#run.step, steps: this.#run.steps };
    }
    onProgress({ stage: "tokenizing", done: 0, total: 1 });
    for (const { name, text } of texts) session.add_text(name, text);
    const name = run ?? UNNAMED;
    if (task) recipe.task = task;
    const begun = JSON.parse(session.train(name, JSON.stringify(recipe)));
    onProgress({ stage: "tokenizing", done: 1, total: 1 });
    this.#run = { ...begun, name, stored: run !== undefined, isNew: true, warm: false, every,
      settings: settings ?? options };
    return { step: begun.step, steps: begun.steps };
  }

  /** The next step of the run; null after the last. */
  async step(_, onProgress) {
    const [session, run] = [this.#session, this.#run];
    if (!run) throw new TaipanError("input", "train: it was not begun");
    if (run.step >= run.steps) return null;
    let pipelines;
    if (!run.warm) {
      run.warm = true;
      if (JSON.parse(session.device()).kind === "webgpu") {
        await warmUp(() => session.warm_up(),
          (done, total) => onProgress({ stage: "compiling", done, total }));
        pipelines = JSON.parse(session.work()).pipelines;
      }
    }
    const began = performance.now();
    const step = JSON.parse(await session.step());
    step.tokensPerSecond = step.tokens / ((performance.now() - began) / 1000);
    if (pipelines !== undefined) step.pipelines = pipelines;
    run.step = step.step;
    const isLast = run.step >= run.steps;
    const is = (every) => every > 0 && (run.step % every === 0 || isLast);
    const { every } = run;
    if (run.heldOut && is(every.evalEvery)) {
      step.evaluation = JSON.parse(await session.evaluate_held_out(EVALUATED));
    }
    if (is(every.sampleEvery)) step.sample = await this.#sample(every);
    if (run.stored && is(every.saveEvery ?? 50)) {
      await this.#save(onProgress);
      step.saved = true;
    }
    return step;
  }

  async #sample({ samplePrompt = "", sampleTokens = 100 }) {
    const session = this.#session;
    await session.talk(samplePrompt, JSON.stringify({ maxTokens: sampleTokens }), undefined);
    let text = "";
    for (;;) {
      const token = JSON.parse(await session.next_token());
      text += token.text;
      if (token.finish) return text;
    }
  }

  /** Write a checkpoint and store it. If that fails, the one before it is still there. */
  async #save(onProgress) {
    const run = this.#run;
    onProgress({ stage: "saving", done: 0, total: 1 });
    const root = `runs/${run.name}/`;
    await this.#session.checkpoint(run.name);
    const files = JSON.parse(wasm.list_files(root)).map((path) => path.slice(root.length))
      .filter((path) => run.isNew || !path.startsWith("data/"))
      .map((path) => [path, () => wasm.read_file(root + path)]);
    if (run.isNew) {
      const settings = new TextEncoder().encode(JSON.stringify(run.settings));
      files.push(["settings.json", () => settings]);
    }
    await store(run.name, files);
    run.isNew = false;
    this.#forgetCheckpoints(run.name);
    onProgress({ stage: "saving", done: 1, total: 1 });
  }

  #forgetCheckpoints(run) {
    for (const path of JSON.parse(wasm.list_files(`runs/${run}`))) {
      const directory = /^.*\/checkpoint-\d+(?=\/)/.exec(path)?.[0];
      if (directory) wasm.remove_files(directory);
    }
  }

  async generate({ prompt, state, snapshots, ...options }) {
    this.#snapshots = snapshots;
    await this.#session.talk(prompt, JSON.stringify(options), state ?? this.#restored);
    this.#restored = undefined;
  }

  #snapshots = false;
  #restored = undefined;

  async token() {
    const token = JSON.parse(await this.#session.next_token());
    if (this.#snapshots) token.state = await this.#session.state();
    return token;
  }

  async state() {
    return this.#session.state();
  }

  async restore({ state }) {
    // A state of another model is refused here already.
    await this.#session.talk("", "{}", state);
    this.#restored = state;
  }

  async evaluate({ text }) {
    this.#session.add_text("text", text);
    return JSON.parse(await this.#session.evaluate());
  }

  /** Fine-tune, and take it back if held-out text is predicted worse than before. */
  async adapt({ text, options: { steps = 50, lr = 3e-4, ...options } }) {
    const session = this.#session;
    session.add_text("text", text);
    session.begin_adaptation();
    const recipe = { ...options, steps, lr };
    session.train(UNNAMED, JSON.stringify(recipe));
    this.#run = null;
    const before = JSON.parse(await session.evaluate_held_out(EVALUATED)).loss;
    let done = 0;
    try {
      for (; done < steps; done++) await session.step();
      const after = JSON.parse(await session.evaluate_held_out(EVALUATED)).loss;
      const kept = after < before;
      if (kept) session.keep_adaptation();
      else session.roll_back();
      return { before, after, kept, steps: done };
    } catch (error) {
      session.roll_back();
      throw error;
    }
  }

  async tokenize({ text }) {
    return JSON.parse(this.#session.tokenize(text));
  }

  #look = null;
  #looks = 0;

  async inspect({ text }) {
    const look = await this.#session.inspect(text);
    this.#look?.free();
    this.#look = look;
    return {
      id: ++this.#looks,
      tokens: JSON.parse(look.tokens()),
      layers: look.layers(),
      channels: look.channels(),
      delta: look.mean_delta(),
      halfLives: { edges: wasm.Look.half_life_edges(), counts: look.half_lives() },
      stateNorm: look.state_norm(),
      gradientReach: look.gradient_reach(),
    };
  }

  /** `delta` or `attention` of a layer of the last inspection. */
  async inspected({ id, view, layer }) {
    if (!this.#look || id !== this.#looks) {
      throw new TaipanError("input", `inspect: ${view} of an earlier text, expected the last one`);
    }
    return this.#look[view](layer);
  }

  async save() {
    await this.#session.save();
    const files = {};
    for (const path of JSON.parse(wasm.list_files("saved"))) {
      files[path.slice("saved/".length)] = wasm.read_file(path);
    }
    wasm.remove_files("saved");
    return files;
  }

  async presets() {
    await load();
    return JSON.parse(wasm.presets());
  }

  async stories() {
    await load();
    return wasm.stories().map((text, i) => ({ name: `story ${i}`, text }));
  }

  /** Steps of training for two seconds, the first not counted. */
  async probe({ config, train, ...options }, onProgress) {
    const text = "The quick brown fox jumps over the lazy dog. ".repeat(4000);
    await this.create({ config, ...options }, onProgress);
    const recipe = { ...train, steps: 1000 };
    await this.train({ texts: [{ name: "probe", text }], options: recipe }, onProgress);
    await this.step(undefined, onProgress);
    const began = performance.now();
    let steps = 0;
    do {
      await this.step(undefined, onProgress);
      steps += 1;
    } while (performance.now() - began < 2000);
    const secondsPerStep = (performance.now() - began) / 1000 / steps;
    const estimate = JSON.parse(wasm.estimate(JSON.stringify({ config, train: recipe })));
    this.dispose();
    return { secondsPerStep, ...estimate };
  }

  dispose() {
    this.#look?.free();
    this.#look = null;
    this.#session?.free();
    this.#session = null;
    this.#run = null;
  }
}

/** Whose device is being opened: the library asks the `navigator.gpu` that it saw first. */
let opening = null;

const gpu = {
  requestAdapter: async (options) => {
    const { adapter, browser, onLost } = opening;
    return listen(adapter ?? await browser?.requestAdapter(options), onLost);
  },
  getPreferredCanvasFormat: () => "bgra8unorm",
  wgslLanguageFeatures: new Set(),
};

/** Open a device, on the adapter of the caller if there is one, and hear of its loss. */
async function withAdapter(adapter, onLost, open) {
  const navigator = (globalThis.navigator ??= {});
  const browser = navigator.gpu;
  if (!browser && !adapter) return open();
  opening = { adapter, browser, onLost };
  Object.defineProperty(navigator, "gpu", { value: gpu, configurable: true });
  // The library looks for a window or a worker, and Node is neither.
  const isNode = !globalThis.Window && !globalThis.WorkerGlobalScope;
  if (isNode) globalThis.Window = class Window {};
  try {
    return await open();
  } finally {
    delete navigator.gpu;
    if (isNode) delete globalThis.Window;
    opening = null;
  }
}

function listen(adapter, onLost) {
  if (!adapter) return null;
  const { requestDevice } = Object.getPrototypeOf(adapter);
  Object.defineProperty(adapter, "requestDevice", {
    configurable: true,
    value: async (descriptor) => {
      const device = await requestDevice.call(adapter, descriptor);
      device.lost.then(({ message, reason }) => onLost(message || reason || "no reason was given"));
      return device;
    },
  });
  return adapter;
}
