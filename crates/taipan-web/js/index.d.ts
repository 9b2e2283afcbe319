/**
 * Mamba language models in a browser: train, run and look into them, on WebGPU or on the CPU.
 * Nothing leaves the tab.
 *
 * ```js
 * import { Taipan } from "taipan";
 *
 * const model = await Taipan.create({ preset: "tiny" });
 * for await (const { step, loss } of model.train(text, { steps: 200 })) console.log(step, loss);
 * for await (const token of model.generate("Once upon")) console.log(token.text);
 * ```
 *
 * Everything that fails throws a {@link TaipanError}. A model computes in a worker of its own, and
 * answers calls one after the other.
 */

/** A type of the WebGPU API, if the program has its declarations (`@webgpu/types`). */
type Adapter = typeof globalThis extends { GPUAdapter: { prototype: infer T } } ? T : object;

export type DeviceKind = "webgpu" | "cpu";

export interface LoadOptions {
  /** Default `"auto"`: WebGPU if the browser has it, or else the CPU; {@link DeviceInfo.why} says why. */
  device?: DeviceKind | "auto";
  /** Type of the weights. Default: `"f32"`; of a model that is loaded, its own if the device has it. */
  dtype?: "f32" | "f16";
  signal?: AbortSignal;
  onProgress?: (progress: Progress) => void;
  /**
   * An adapter of the caller's own: only without a worker. In Node, the object that the package
   * `webgpu` made it with must live as long as the model.
   */
  adapter?: Adapter;
  /** `false` to compute in the calling thread. Default: in a worker, where there are workers. */
  worker?: boolean;
}

/** How far a stage is; `total` may grow meanwhile. */
export interface Progress {
  stage: "loading" | "compiling" | "tokenizing" | "saving";
  done: number;
  total: number;
}

/** The keys of Hugging Face's `config.json`; what is not given is that of the smallest preset. */
export interface ModelConfig {
  hidden_size?: number;
  num_hidden_layers?: number;
  state_size?: number;
  /** Default: that of the tokenizer. */
  vocab_size?: number;
  [key: string]: unknown;
}

export interface CreateOptions extends LoadOptions {
  /** The same seed gives the same weights, everywhere. Default 0. */
  seed?: number;
  /**
   * Default `"bytes"`. `{ bpe, text }` trains a byte-level BPE of `bpe` tokens on a text. Bytes are
   * a `tokenizer.json`: of bytes, or byte-level BPE as of GPT-2 and GPT-NeoX.
   */
  tokenizer?: "bytes" | { bpe: number; text: string } | Uint8Array;
}

export interface TrainOptions {
  /** Steps of the whole run. Default 500. */
  steps?: number;
  /** The highest learning rate. Default 2e-3. */
  lr?: number;
  /** The last learning rate. Default `lr / 10`. */
  minLr?: number;
  /** Steps until `lr` is reached. Default `steps / 20`. */
  warmup?: number;
  /** `"wsd"`: constant, and then down in the last fifth. Default `"cosine"`. */
  schedule?: "cosine" | "constant" | "wsd";
  /** Sequences per step. Default 8. */
  batchSize?: number;
  /** Tokens per sequence. Default 128. A task has its own. */
  blockSize?: number;
  /** Of the order of the data and the choice of held-out text. Default 0. */
  seed?: number;
  /** Default 0.1. */
  weightDecay?: number;
  /** The norm that gradients are clipped to; 0 for none. Default 1. */
  gradClip?: number;
  /** Steps between evaluations on held-out text, and one after the last step. Default: none. */
  evalEvery?: number;
  /** Steps between saves, if there is a `run`. Default 50. */
  saveEvery?: number;
  /** The name of the run in the browser's storage (OPFS); not stored without one. */
  run?: string;
  /** What {@link StoredRun.settings} returns; these options without it. */
  settings?: unknown;
  /**
   * Go on with the stored `run`, bit for bit as if it had not been interrupted: its text, its
   * options and its weights count, except that `steps` may differ.
   */
  resume?: boolean;
  /** Steps between samples. Default: none. */
  sampleEvery?: number;
  samplePrompt?: string;
  /** Default 100. */
  sampleTokens?: number;
  signal?: AbortSignal;
  onProgress?: (progress: Progress) => void;
}

export interface Step {
  /** The first is 1. */
  step: number;
  /** The mean of −ln p(token) over its tokens, before the update. */
  loss: number;
  lr: number;
  /** Of all gradients, before they are clipped. */
  gradNorm: number;
  /** Tokens it trained on. */
  tokens: number;
  tokensPerSecond: number;
  /** Steps so far that changed nothing since the gradients were not finite. */
  skipped: number;
  /** On held-out text; `accuracy` for a task. */
  evaluation?: { loss: number; bitsPerByte?: number; accuracy?: number };
  sample?: string;
  /** Whether the run is in storage up to this step. */
  saved?: boolean;
  /** Pipelines that were compiled for the first step on WebGPU. */
  pipelines?: number;
}

export interface GenerateOptions {
  /** Default 100. */
  maxTokens?: number;
  /** 0 takes the likeliest token. Default 1. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  /** The same seed gives the same text. Default 0. */
  seed?: number;
  /** Texts that end the text; they are not part of it. */
  stop?: string[];
  /** Go on after the end-of-text token. */
  ignoreEos?: boolean;
  /** How many of the likeliest tokens to report with each. Default 0. */
  alternatives?: number;
  /** Begin behind this state; the prompt follows it. */
  state?: Uint8Array;
  /** With every token the state behind it, to continue from there: see `state`. */
  snapshots?: boolean;
  signal?: AbortSignal;
}

export interface Token {
  id: number;
  /** What it adds to the text; it may be empty inside a character, or before a stop text. */
  text: string;
  /** Of the model, before any option of sampling. */
  probability: number;
  alternatives: { id: number; text: string; probability: number }[];
  state?: Uint8Array;
  /** Of the last token: why it is. */
  finish?: "length" | "eos" | "stop";
}

/** What only a state-space model can show. All arrays are row-major. */
export interface Inspection {
  tokens: { id: number; text: string }[];
  layers: number;
  channels: number;
  /**
   * `[layers, tokens]`: the mean of Δ over channels (heads, in Mamba-2 and Mamba-3). Layers of
   * attention alone have no Δ, no half-lives and no state: NaN, or counts of 0.
   */
  delta: Float32Array;
  /** `[tokens, channels]` */
  deltaOf(layer: number): Promise<Float32Array>;
  /** Memory half-lives ln 2/(Δ·|A|) in tokens: `counts` is `[layers, edges.length − 1]`. */
  halfLives: { edges: Float32Array; counts: Uint32Array };
  /** `[layers, tokens]` */
  stateNorm: Float32Array;
  /**
   * `[n, n]` of the last `n` tokens, at most 128, the lower triangle: how much a token contributes
   * to the output at another, the mean of |·| over channels; in layers with attention, its weights,
   * the mean over heads. Like `deltaOf`, of the model's last inspection only.
   */
  attention(layer: number): Promise<Float32Array>;
  /** `[layers, tokens]`: ‖∂loss_last/∂h_t‖; in layers of attention alone, by keys and values. */
  gradientReach: Float32Array;
}

/** Losses on held-out text before and after; what made it worse is not kept. */
export interface Adaptation {
  before: number;
  after: number;
  kept: boolean;
  steps: number;
}

export interface DeviceInfo {
  kind: DeviceKind;
  name: string;
  limits: Record<string, number>;
  f16: boolean;
  /** Why it is not WebGPU. */
  why?: string;
}

export interface StoredRun {
  name: string;
  /** Of the last complete checkpoint. */
  step: number;
  /** Milliseconds since 1970. */
  modified: number;
  bytes: number;
  /** {@link TrainOptions.settings} */
  settings: unknown;
}

/**
 * A generated task that shows what a selective state can do, for a model of bytes. `length` is 32
 * by default.
 *
 * - `selective-copying`: `data` letters among `length` dots; then, at as many markers, these
 *   letters in their order.
 * - `induction-heads`: the letter behind the only `#` so far, at the second one.
 * - `parity`: at each bit, whether the ones so far are odd (`o`) or even (`e`) in number.
 */
export interface Task {
  task: "selective-copying" | "induction-heads" | "parity";
  length?: number;
  data?: number;
  [key: string]: unknown;
}

/** A model. */
export class Taipan {
  private constructor();

  /**
   * Load a model: its files by name, files that the user chose, one zip, or the address of a
   * directory, as `https://huggingface.co/state-spaces/mamba-130m-hf/resolve/main/`.
   */
  static load(
    source: Record<string, Uint8Array | Blob> | FileList | File[] | Blob | string | URL,
    options?: LoadOptions,
  ): Promise<Taipan>;
  /** A model with random weights. */
  static create(config: ModelConfig & { preset?: string }, options?: CreateOptions): Promise<Taipan>;
  /** The model of a stored run, to go on with: `train("", { run, resume: true })`. */
  static resume(run: string, options?: LoadOptions): Promise<Taipan>;
  /** The stored runs, the last one first. */
  static runs(): Promise<StoredRun[]>;
  static removeRun(name: string): Promise<void>;
  /** Sizes of models by name, for a vocabulary of bytes. */
  static presets(): Promise<{ name: string; config: ModelConfig; parameters: number }[]>;
  /** Two megabytes of little stories, on which the program trains by default, for `train`. */
  static stories(): Promise<{ name: string; text: string }[]>;
  /** Train at this size on this device for two seconds: how long a step takes, and its memory. */
  static probe(
    config: ModelConfig & { preset?: string },
    options?: TrainOptions & LoadOptions,
  ): Promise<{ secondsPerStep: number; bytes: number; parameters: number }>;

  readonly config: ModelConfig;
  readonly parameters: number;
  readonly device: DeviceInfo;
  /** Why the device was lost, once it is. A stored run can be resumed on a new one. */
  readonly lost: Promise<string>;

  /**
   * Train on a text, on documents or on a task. To pause, do not ask for the next step. An error
   * of the kind `storage` does not end the run: `next` goes on, and saves again later.
   */
  train(
    text: string | Uint8Array | { name: string; text: string }[] | Task,
    options?: TrainOptions,
  ): AsyncIterableIterator<Step>;
  /** A text, token by token. As in training, the end-of-text token stands before the prompt. */
  generate(prompt: string, options?: GenerateOptions): AsyncIterableIterator<Token>;
  /** How well the model predicts a text. */
  evaluate(
    text: string,
    options?: { signal?: AbortSignal },
  ): Promise<{ loss: number; perplexity: number; bitsPerByte: number; tokens: number }>;
  /** Fine-tune on a text, and take it back if held-out text is predicted worse than before. */
  adapt(text: string, options?: TrainOptions): Promise<Adaptation>;
  /** Where the last generation is: what a continuation needs, a few kilobytes. */
  state(): Promise<Uint8Array>;
  /** The next generation continues from here. A state of other weights is refused. */
  restore(state: Uint8Array): Promise<void>;
  tokenize(text: string): Promise<{ id: number; text: string }[]>;
  /** What the model makes of a text of two tokens or more. */
  inspect(text: string, options?: { signal?: AbortSignal }): Promise<Inspection>;
  /** The files of the model, as Hugging Face's library and the program read them. */
  save(): Promise<Record<"config.json" | "model.safetensors" | "tokenizer.json", Uint8Array>>;
  /** The same in one file. */
  saveZip(): Promise<Blob>;
  /** End the worker and free its memory. Calls that are not answered are rejected. */
  dispose(): void;
}

export class TaipanError extends Error {
  /**
   * - `input`: what was passed is not accepted;
   * - `memory`: the device or the tab has not enough;
   * - `lost`: the device is gone: load, create or resume again;
   * - `notFinite`: the loss is not a finite number;
   * - `storage`: the browser's storage is full or refused;
   * - `aborted`: by a signal, or by `dispose`;
   * - `internal`: anything else.
   */
  readonly kind: "input" | "memory" | "lost" | "notFinite" | "storage" | "aborted" | "internal";
}
