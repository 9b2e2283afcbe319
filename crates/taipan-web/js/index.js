// The package: a model in a worker, or in the calling thread.
import { TaipanError } from "./errors.js";
import { removeRun, runs } from "./storage.js";
import { unzip, zip } from "./zip.js";

export { TaipanError };

/** What answers calls: a worker, or an engine in this thread. */
class Backend {
  #calls = new Map();
  #next = 0;
  #worker = null;
  #engine = null;
  lost = new Promise((resolve) => { this.onLost = resolve; });

  constructor(inWorker) {
    if (!inWorker) {
      this.#engine = import("./engine.js").then(({ Engine }) => new Engine(this.onLost));
      return;
    }
    this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#answer(data);
    this.#worker.onerror = (event) => {
      event.preventDefault?.();
      this.#fail(new TaipanError("internal", `worker: ${event.message ?? "it could not be started"}`));
    };
  }

  #answer({ id, result, error, progress, lost }) {
    if (lost !== undefined) return this.onLost(lost);
    const call = this.#calls.get(id);
    if (!call) return undefined;
    if (progress) return call.onProgress?.(progress);
    this.#calls.delete(id);
    if (error) return call.reject(new TaipanError(error.kind, error.message));
    return call.resolve(result);
  }

  #fail(error) {
    for (const { reject } of this.#calls.values()) reject(error);
    this.#calls.clear();
  }

  /** Ask; the call is left behind if the signal is aborted. */
  async call(method, args, { signal, onProgress } = {}) {
    if (signal?.aborted) throw aborted();
    let abort;
    const stopped = new Promise((_, reject) => {
      abort = () => reject(aborted());
      signal?.addEventListener("abort", abort, { once: true });
    });
    try {
      return await Promise.race([this.#send(method, args, onProgress), stopped]);
    } catch (error) {
      throw TaipanError.of(error);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  async #send(method, args, onProgress) {
    if (this.#engine) return (await this.#engine).call(method, args, onProgress ?? (() => {}));
    if (!this.#worker) throw new TaipanError("input", `${method}: the model was disposed of`);
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject, onProgress });
      this.#worker.postMessage({ id, method, args });
    });
  }

  dispose() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#engine?.then((engine) => engine.dispose());
    this.#fail(new TaipanError("aborted", "the model was disposed of"));
  }
}

const aborted = () => new TaipanError("aborted", "it was aborted");

/** A backend for these options, and the options that are for its engine. */
function open({ worker, signal, onProgress, ...options } = {}) {
  const inWorker = worker ?? (typeof Worker === "function" && !options.adapter);
  if (options.adapter && inWorker) {
    throw new TaipanError("input", "adapter: it cannot go to a worker, expected worker: false");
  }
  return [new Backend(inWorker), options, { signal, onProgress }];
}

/** An async iterator that can be left at any time. */
class Steps {
  #begin;
  #advance;
  #state = "new";

  constructor(begin, advance) {
    this.#begin = begin;
    this.#advance = advance;
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  async next() {
    if (this.#state === "new") {
      this.#state = "ended";
      await this.#begin();
      this.#state = "open";
    }
    if (this.#state === "ended") return { done: true, value: undefined };
    const { done, value } = await this.#advance();
    if (done) this.#state = "ended";
    return value === undefined ? { done: true, value } : { done: false, value };
  }

  async return(value) {
    this.#state = "ended";
    return { done: true, value };
  }
}

export class Taipan {
  #backend;
  #train = null;

  constructor(backend, { config, parameters, device }) {
    this.#backend = backend;
    this.config = config;
    this.parameters = parameters;
    this.device = device;
    this.lost = backend.lost;
  }

  static async #make(method, args, given) {
    const [backend, options, how] = open(given);
    try {
      return new Taipan(backend, await backend.call(method, { ...options, ...args }, how));
    } catch (error) {
      backend.dispose();
      throw error;
    }
  }

  static async load(source, options) {
    const files = await readSource(source, options).catch((error) => {
      throw TaipanError.of(error);
    });
    return Taipan.#make("load", { files }, options);
  }

  static create(config, options) {
    return Taipan.#make("create", { config }, options);
  }

  static resume(run, options) {
    return Taipan.#make("resume", { run }, options);
  }

  static async #ask(method, args, given) {
    const [backend, options, how] = open(given);
    try {
      return await backend.call(method, { ...options, ...args }, how);
    } finally {
      backend.dispose();
    }
  }

  static presets() {
    return Taipan.#ask("presets", {});
  }

  static stories() {
    return Taipan.#ask("stories", {});
  }

  static probe(config, given = {}) {
    const { device, dtype, signal, onProgress, adapter, worker, ...train } = given;
    return Taipan.#ask("probe", { config, train }, { device, dtype, signal, onProgress, adapter, worker });
  }

  static async runs() {
    return runs();
  }

  static async removeRun(name) {
    return removeRun(name);
  }

  train(text, { signal, onProgress, ...options } = {}) {
    const how = { signal, onProgress };
    let asked = { texts: [], options };
    if (text?.task) asked.task = text;
    else asked.texts = documents(text);
    this.#train?.return();
    return (this.#train = new Steps(
      () => this.#backend.call("train", asked, how),
      async () => {
        const step = await this.#backend.call("step", undefined, how);
        return { done: step === null, value: step ?? undefined };
      },
    ));
  }

  generate(prompt, { signal, ...options } = {}) {
    return new Steps(
      () => this.#backend.call("generate", { prompt, ...options }, { signal }),
      async () => {
        const token = await this.#backend.call("token", undefined, { signal });
        return { done: token.finish !== undefined, value: token };
      },
    );
  }

  evaluate(text, { signal } = {}) {
    return this.#backend.call("evaluate", { text }, { signal });
  }

  adapt(text, { signal, onProgress, ...options } = {}) {
    return this.#backend.call("adapt", { text, options }, { signal, onProgress });
  }

  state() {
    return this.#backend.call("state");
  }

  restore(state) {
    return this.#backend.call("restore", { state });
  }

  tokenize(text) {
    return this.#backend.call("tokenize", { text });
  }

  async inspect(text, { signal } = {}) {
    const { id, ...seen } = await this.#backend.call("inspect", { text }, { signal });
    const view = (view) => (layer) => this.#backend.call("inspected", { id, view, layer });
    return { ...seen, deltaOf: view("delta"), attention: view("attention") };
  }

  save() {
    return this.#backend.call("save");
  }

  async saveZip() {
    return zip(await this.save());
  }

  dispose() {
    this.#backend.dispose();
  }
}

function documents(text) {
  if (typeof text === "string") return [{ name: "text", text }];
  if (text instanceof Uint8Array) {
    return [{ name: "text", text: new TextDecoder("utf-8", { fatal: true }).decode(text) }];
  }
  if (Array.isArray(text)) return text.map(({ name, text: words }) => ({ name, text: words }));
  throw new TaipanError("input", "train: expected a text, bytes, documents or a task");
}

const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);

/** The files of a model by name, wherever they come from. */
async function readSource(source, { signal, onProgress } = {}) {
  if (typeof source === "string" || source instanceof URL) return fetchModel(source, signal, onProgress);
  if (source instanceof Blob) source = await unzip(source);
  const entries = typeof source?.[Symbol.iterator] === "function"
    ? [...source].map((file) => [file.name, file]) : Object.entries(source);
  const files = {};
  for (const [path, contents] of entries) {
    files[baseName(path)] = contents instanceof Blob
      ? new Uint8Array(await contents.arrayBuffer()) : contents;
  }
  return files;
}

async function fetchModel(directory, signal, onProgress) {
  const base = new URL(directory, globalThis.location?.href);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  const files = {};
  const get = async (name) => {
    const response = await fetch(new URL(name, base), { signal });
    if (response.status === 404) return false;
    if (!response.ok) throw new TaipanError("input", `${response.url}: ${response.status}, expected 200`);
    files[name] = await readBody(response, onProgress);
    return true;
  };
  const need = async (name) => {
    if (!await get(name)) throw new TaipanError("input", `${new URL(name, base)}: not found`);
  };
  await Promise.all([need("config.json"), need("tokenizer.json")]);
  if (!await get("model.safetensors")) {
    await need("model.safetensors.index.json");
    const index = JSON.parse(new TextDecoder().decode(files["model.safetensors.index.json"]));
    for (const name of new Set(Object.values(index.weight_map))) await need(name);
  }
  return files;
}

async function readBody(response, onProgress) {
  const total = Number(response.headers.get("content-length") ?? 0);
  const chunks = [];
  let done = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done: end, value } = await reader.read();
    if (end) break;
    chunks.push(value);
    done += value.length;
    onProgress?.({ stage: "loading", done, total: Math.max(total, done) });
  }
  const bytes = new Uint8Array(done);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
