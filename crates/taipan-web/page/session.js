// The state of the page: what it reads, the model, and the run. Panels listen to its events:
//   corpus, model, phase, run, step, progress, fault, stored
import { Taipan } from "./package.js";
import { wholeText } from "./corpus.js";
import { History } from "./history.js";
import { SIZES } from "./settings.js";
import { getRecord, isFull, putRecord, putText, removeRecord } from "./storage.js";

/**
 * idle: nothing has run; preparing: a model is made or its programs compile; training; pausing:
 * the last step is being computed; paused; done: all steps are taken; failed: a fault has ended it.
 */
export class Session extends EventTarget {
  phase = "idle";
  corpus = null;
  model = null;
  /** Files the model was opened from; null if the page made it. */
  opened = null;
  /** { name, options of `train`, settings, corpus, history } */
  run = null;
  /** Histories of the runs before. */
  earlier = [];
  /** The phase in which the last fault happened. */
  faultedWhile = "idle";
  /** Async functions that are called after every step with seconds of training so far. */
  betweenSteps = [];

  #steps = null; // the iterator of `train`
  #pending = null; // the step that is being computed
  #abort = new AbortController();
  #loop = null; // the loop of `play`, until it has noticed a pause
  #making = null; // { key, model: the promise of it }
  #key = ""; // what the model was made from
  #seconds = 0;

  constructor(settings) {
    super();
    this.settings = settings;
  }

  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  setPhase(phase) {
    if (this.phase === phase) return;
    this.phase = phase;
    this.emit("phase", phase);
  }

  setCorpus(corpus) {
    this.corpus = corpus;
    this.emit("corpus", corpus);
  }

  /** Are steps being computed? */
  get stepping() {
    return this.phase === "training" || this.phase === "pausing";
  }

  get busy() {
    return this.stepping || this.phase === "preparing";
  }

  loadOptions() {
    return {
      device: this.settings.get("device"),
      dtype: this.settings.get("dtype"),
      signal: this.#abort.signal,
      onProgress: (progress) => this.emit("progress", progress),
    };
  }

  /** What a new model follows from: another key, another model. */
  #modelKey() {
    const s = this.settings;
    const keys = ["size", "seed", "dtype", "device", "tokens"].map((key) => s.get(key));
    if (this.usesBpe) keys.push(s.get("vocab"), this.corpus.name, this.corpus.bytes);
    return JSON.stringify([keys, this.opened?.key]);
  }

  get usesBpe() {
    return this.settings.get("tokens") === "bpe" && this.corpus?.kind !== "task";
  }

  /** The model, made anew if settings that determine it have changed. */
  async ensureModel() {
    const key = this.#modelKey();
    if (this.model && (this.run || this.#key === key)) return this.model;
    // Two that ask at once get the same one.
    if (this.#making?.key === key) return this.#making.model;
    return this.#replaceModel(key, () => {
      if (this.opened) return Taipan.load(this.opened.source, this.loadOptions());
      const tokenizer = this.usesBpe
        ? { bpe: Number(this.settings.get("vocab")), text: wholeText(this.corpus) }
        : "bytes";
      const options = { ...this.loadOptions(), seed: this.settings.get("seed"), tokenizer };
      return Taipan.create(SIZES[this.settings.get("size")], options);
    });
  }

  async #replaceModel(key, make) {
    const making = { key, model: this.#makeModel(key, make) };
    this.#making = making;
    try {
      return await making.model;
    } finally {
      if (this.#making === making) this.#making = null;
    }
  }

  async #makeModel(key, make) {
    const before = this.phase;
    this.setPhase("preparing");
    this.emit("progress", { stage: "loading", done: 0, total: 1 });
    this.model?.dispose();
    this.model = null;
    try {
      const model = await make();
      this.#key = key;
      this.model = model;
      // A device that is lost while nothing runs is reported by this promise alone.
      model.lost.then(
        (why) =>
          model === this.model &&
          this.#steps === null &&
          this.fault(Object.assign(new Error(why), { kind: "lost" })),
      );
      this.emit("model", model);
      return model;
    } catch (error) {
      this.emit("model", null);
      throw error;
    } finally {
      // A run that asked for the model goes on to its own phase.
      if (before !== "preparing") this.setPhase(before);
    }
  }

  /** Opens a model; what it was trained on is not known. */
  async openModel(source, name) {
    await this.stopRun();
    this.opened = { source, name, key: `${name} ${performance.now()}` };
    try {
      await this.ensureModel();
    } catch (error) {
      this.opened = null;
      throw error;
    } finally {
      this.setPhase("idle");
    }
  }

  async closeModel() {
    this.opened = null;
    await this.restart();
  }

  /** Begins a run if there is none. */
  async #ensureRun() {
    if (this.#steps) return;
    if (this.run) await this.#clear();
    const model = await this.ensureModel();
    const options = { ...this.settings.trainOptions(), samplePrompt: this.prompt };
    const name = `${slug(this.corpus.name)}-${Date.now().toString(36)}`;
    this.run = {
      name,
      options,
      settings: this.settings.snapshot(),
      corpus: this.corpus,
      history: new History(),
    };
    this.#seconds = 0;
    this.#begin(model, {});
    this.emit("run", this.run);
  }

  #begin(model, more) {
    this.#steps = model.train(this.run.corpus.source, {
      ...this.run.options,
      run: this.run.name,
      settings: this.run.settings,
      signal: this.#abort.signal,
      onProgress: (p) => this.emit("progress", p),
      ...more,
    });
  }

  /** The prompt of the film: what the user wrote, or the first words of the text. */
  get prompt() {
    return this.settings.get("prompt") || this.usualPrompt();
  }

  usualPrompt() {
    if (!this.corpus) return "";
    if (this.corpus.kind === "task") return this.corpus.head;
    return this.corpus.head.trim().split(/\s+/).slice(0, 3).join(" ");
  }

  /** Computes one step; false when there is none left. */
  async #advance() {
    const started = performance.now();
    this.#pending = this.#steps.next();
    let result;
    try {
      result = await this.#pending;
    } catch (error) {
      // Nothing more can be kept, but the weights are well: the run goes on.
      if (!isFull(error)) throw error;
      this.emit("fault", error);
      return true;
    } finally {
      this.#pending = null;
    }
    if (result.done) {
      this.#steps = null;
      return false;
    }
    this.#seconds += (performance.now() - started) / 1000;
    this.run.history.add(result.value);
    this.emit("step", result.value);
    if (result.value.saved) await this.#record();
    for (const listen of this.betweenSteps) await listen(this.#seconds);
    return true;
  }

  async play() {
    await this.#work(async () => {
      this.setPhase("training");
      const steps = this.#steps;
      while (this.phase === "training" && this.#steps === steps) {
        if (!(await this.#advance())) return this.#finish();
      }
      if (this.phase !== "pausing") return;
      await this.#record();
      if (this.phase === "pausing") this.setPhase("paused");
    });
  }

  async stepOnce() {
    await this.#work(async () => {
      const more = await this.#advance();
      if (!more) return this.#finish();
      this.setPhase("paused");
    });
  }

  async #work(use) {
    if (this.busy) return;
    this.setPhase("preparing");
    await this.#loop;
    this.#loop = (async () => {
      try {
        await this.#ensureRun();
        await use();
      } catch (error) {
        this.fault(error);
      }
    })();
    await this.#loop;
  }

  async #finish() {
    this.setPhase("done");
    await this.#record();
  }

  /** Stops after the step that is being computed, and waits for it and for its record. */
  async pause() {
    if (this.phase === "training") this.setPhase("pausing");
    await this.#loop;
  }

  /** Ends the run; its curve stays behind the next one. */
  async stopRun() {
    const steps = this.#steps;
    const pending = this.#pending;
    this.#steps = null;
    this.#abort.abort();
    this.#abort = new AbortController();
    await pending?.catch(() => {});
    await steps?.return?.();
    if (this.run?.history.step.length > 1)
      this.earlier = [...this.earlier.slice(-5), this.run.history];
    this.run = null;
    this.emit("run", null);
  }

  /** Forgets run and weights. */
  async #clear() {
    await this.stopRun();
    this.model?.dispose();
    this.model = null;
  }

  async restart() {
    try {
      this.setPhase("preparing");
      await this.#clear();
      this.setPhase("idle");
      this.emit("model", null);
    } catch (error) {
      this.fault(error);
    }
  }

  /** Goes on with a run that is kept in this browser. */
  async resume(stored) {
    await this.stopRun();
    const record = (await getRecord(stored.name)) ?? this.#unrecorded(stored);
    this.settings.assign(record.settings);
    this.opened = null;
    this.setCorpus(record.corpus);
    const model = await this.#replaceModel(this.#modelKey(), () =>
      Taipan.resume(stored.name, this.loadOptions()),
    );
    const history = History.from(record.history);
    history.rewind(stored.step);
    this.run = { ...record, history, textKept: true };
    this.#begin(model, { resume: true });
    this.emit("run", this.run);
    this.setPhase("paused");
  }

  /** A run whose text and curve this page did not keep: the package has what training needs. */
  #unrecorded({ name, settings }) {
    this.settings.assign(settings ?? {});
    const corpus = { kind: "own", name, source: "", bytes: 0, head: "" };
    return {
      name,
      corpus,
      settings: this.settings.snapshot(),
      history: new History(),
      options: { ...this.settings.trainOptions(), samplePrompt: this.prompt },
    };
  }

  /** After a lost device: from the last save, if there is one. */
  async recover() {
    const name = this.run?.name;
    const stored = name && (await Taipan.runs()).find((run) => run.name === name);
    if (!stored) {
      await this.restart();
      return null;
    }
    const earlier = this.earlier;
    await this.resume(stored);
    this.earlier = earlier; // the same run goes on: it is no earlier one
    this.emit("run", this.run);
    return stored.step;
  }

  async #record() {
    const { run } = this;
    const { name, settings, history, options } = run;
    try {
      if (!run.textKept) await putText(name, run.corpus);
      run.textKept = true;
      await putRecord({ name, settings, options, history });
      this.emit("stored", name);
    } catch (error) {
      if (!isFull(error)) throw error;
      this.emit("fault", Object.assign(error, { kind: "storage" }));
    }
  }

  async forget(name) {
    await Taipan.removeRun(name);
    await removeRecord(name);
    this.emit("stored", name);
  }

  /** A fault: the run stops where it is, and what is shown stays. */
  fault(error) {
    if (error?.kind === "aborted" || error?.name === "AbortError") return;
    this.faultedWhile = this.phase;
    this.#steps = null;
    this.setPhase(this.run ? "failed" : "idle");
    this.emit("fault", error);
  }
}

const slug = (name) =>
  name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 24) || "run";
