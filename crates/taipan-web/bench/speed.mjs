// The speed of training in Chromium, on its software WebGPU and on the CPU, as in docs/benchmarks.md:
//   TAIPAN_NPM=~/.cache/taipan/web/npm TAIPAN_PROGRAM=target/release/taipan \
//     node crates/taipan-web/bench/speed.mjs
// after scripts/test-web, or scripts/web and the packages it installs.
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { dist, launch, open, serve } from "../tests/browser.mjs";

// So small that a software GPU takes less time for a step than for its pipelines.
const CONFIG = { hidden_size: 64, num_hidden_layers: 2 };
const TRAIN = { steps: 1000, lr: 3e-3, batchSize: 4, blockSize: 64, seed: 7 };
const TEXT = "The quick brown fox jumps over the lazy dog. ".repeat(4000);

const server = await serve({ "/taipan/": join(dist, "taipan"), "/page/": join(dist, "page") });
const print = (what, value, goal) => console.log(`${what.padEnd(58)} ${value.padStart(12)}   ${goal}`);
const percent = (x) => `${(100 * x).toFixed(1)} %`;

/** Runs a function in a page of a browser of its own: nothing is compiled there yet. */
async function inBrowser(use, argument, address) {
  const browser = await launch();
  try {
    const page = address ? await browser.context.newPage() : await open(browser, server);
    if (address) await page.goto(server.url + address);
    return await page.evaluate(use, argument);
  } finally {
    await browser.close();
  }
}

/** Time to the first step; then, of `steps` more, when the GPU was at work and what was read. */
async function trainOnGpu({ config, train, text, steps, parallel }) {
  if (!parallel) delete GPUDevice.prototype.createComputePipelineAsync;
  const { submit } = GPUQueue.prototype;
  const { mapAsync } = GPUBuffer.prototype;
  let [busy, idleSince, reads, bytes] = [0, 0, 0, 0];
  GPUQueue.prototype.submit = function timed(commands) {
    const submitted = performance.now();
    submit.call(this, commands);
    this.onSubmittedWorkDone().then(() => {
      const done = performance.now();
      busy += done - Math.max(submitted, idleSince);
      idleSince = done;
    });
  };
  GPUBuffer.prototype.mapAsync = function counted(mode, ...range) {
    if (mode & GPUMapMode.READ) [reads, bytes] = [reads + 1, bytes + this.size];
    return mapAsync.call(this, mode, ...range);
  };
  const model = await taipan.Taipan.create(config, { device: "webgpu", worker: false, seed: 7 });
  const run = model.train(text, train);
  const began = performance.now();
  const { value: { pipelines } } = await run.next();
  const first = performance.now() - began;
  [busy, reads, bytes] = [0, 0, 0];
  const from = (idleSince = performance.now());
  for (let i = 0; i < steps; i++) await run.next();
  const wall = performance.now() - from;
  return { pipelines, first, busy: busy / wall, reads: reads / steps, bytes: bytes / steps, step: wall / steps };
}

/** The fastest of some steps in WebAssembly, in tokens per second. */
async function trainOnCpu({ config, train, text, steps }) {
  const model = await taipan.Taipan.create(config, { device: "cpu", seed: 7 });
  let fastest = 0;
  for await (const { step, tokensPerSecond } of model.train(text, train)) {
    fastest = Math.max(fastest, tokensPerSecond);
    if (step === steps) break;
  }
  model.dispose();
  return fastest;
}

/** The page's own run for some seconds: long tasks of its thread, and what looking takes. */
async function usePage({ seconds }) {
  const { Taipan } = await import("./taipan/index.js");
  const { inspect } = Taipan.prototype;
  let looking = 0;
  Taipan.prototype.inspect = async function timed(...all) {
    const began = performance.now();
    try {
      return await inspect.apply(this, all);
    } finally {
      looking += performance.now() - began;
    }
  };
  const go = document.querySelector("#go");
  const step = () => Number(document.querySelector("#stat-step").firstChild.textContent.replace(/,/g, ""));
  const until = async (condition) => {
    while (!condition()) await new Promise((done) => setTimeout(done, 100));
  };
  await until(() => !go.disabled);
  go.click();
  await until(() => step() >= 2);
  const tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map(({ duration }) => duration)))
    .observe({ type: "longtask" });
  looking = 0;
  const [began, first] = [performance.now(), step()];
  await new Promise((done) => setTimeout(done, 1000 * seconds));
  const took = performance.now() - began;
  return { longest: Math.max(0, ...tasks), count: tasks.length, looking: looking / took, steps: step() - first };
}

/** Tokens per second of the program's fastest step, one thread, without AVX. */
async function native(steps) {
  const directory = await mkdtemp(join(tmpdir(), "taipan-speed-"));
  try {
    await writeFile(join(directory, "text.txt"), TEXT);
    await promisify(execFile)(process.env.TAIPAN_PROGRAM, ["train", join(directory, "text.txt"),
      "--out", join(directory, "run"), "--d-model", "64", "--n-layer", "2", "--steps", `${steps}`,
      "--lr", "3e-3", "--batch-size", "4", "--block-size", "64", "--seed", "7", "--device", "cpu",
      "--log-interval", "1", "--sample-tokens", "0"],
    { env: { ...process.env, TAIPAN_ISA: "baseline", RAYON_NUM_THREADS: "1" } });
    const lines = (await readFile(join(directory, "run/metrics.jsonl"), "utf8")).trim().split("\n").map(JSON.parse);
    return Math.max(...lines.map((line) => line.tokens_per_second ?? 0));
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

const gpu = { config: CONFIG, train: TRAIN, text: TEXT, steps: 10 };
try {
  const parallel = await inBrowser(trainOnGpu, { ...gpu, parallel: true });
  const serial = await inBrowser(trainOnGpu, { ...gpu, parallel: false });
  print("pipelines of the first step", `${parallel.pipelines}`, "at most 60");
  print("first step, pipelines in parallel", `${(parallel.first / 1000).toFixed(1)} s`, "");
  print("first step, one pipeline after the other", `${(serial.first / 1000).toFixed(1)} s`, "");
  print("parallel / one after the other", (parallel.first / serial.first).toFixed(2), "at most 0.33");
  print("later steps on WebGPU", `${parallel.step.toFixed(0)} ms`, "");
  print("of which the GPU works", percent(parallel.busy), "at least 85 %");
  print("read-backs per step", `${parallel.reads}, ${parallel.bytes} B`, "at most one");

  const page = await inBrowser(usePage, { seconds: 20 }, "page/index.html");
  print("the page while it trains: longest task of its thread", `${page.longest.toFixed(0)} ms`, "at most 50 ms");
  print(`tasks above 50 ms in 20 s and ${page.steps} steps`, `${page.count}`, "none");
  print("of that time, looking into the model", percent(page.looking), "at most 10 %");

  if (process.env.TAIPAN_PROGRAM) {
    let [wasm, baseline] = [0, 0];
    for (let i = 0; i < 3; i++) {
      wasm = Math.max(wasm, await inBrowser(trainOnCpu, { ...gpu, steps: 12 }));
      baseline = Math.max(baseline, await native(12));
    }
    print("tokens per second, WebAssembly", wasm.toFixed(0), "");
    print("tokens per second, the program, one thread, baseline", baseline.toFixed(0), "");
    print("WebAssembly / program", (wasm / baseline).toFixed(2), "at least 0.33");
  }
} finally {
  server.close();
}
