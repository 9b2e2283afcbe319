// The package in a browser, compared with the program and with itself.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { dist, launch, open, serve } from "./browser.mjs";

const run = promisify(execFile);
const program = process.env.TAIPAN_PROGRAM;
/** The program on the driver that the browser has, with the limits that a browser grants. */
const gpu = { ...process.env, TAIPAN_ADAPTER: "SwiftShader", TAIPAN_LIMITS: "default",
  VK_ICD_FILENAMES: process.env.TAIPAN_SWIFTSHADER ?? "/usr/lib/chromium/vk_swiftshader_icd.json" };

const CONFIG = { hidden_size: 64, num_hidden_layers: 2 };
const TRAIN = { steps: 30, lr: 3e-3, batchSize: 4, blockSize: 64, seed: 7 };
const TEXT = Array.from({ length: 400 }, (_, i) =>
  `In line ${i} the ${["cat", "rat", "bat"][i % 3]} sat on the ${["mat", "hat"][i % 2]}.\n`).join("");

let browser, server, directory;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "taipan-web-test-"));
  server = await serve({ "/taipan/": join(dist, "taipan"), "/files/": directory,
    "/example/": fileURLToPath(new URL("../example", import.meta.url)) });
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server?.close();
  await rm(directory, { recursive: true, force: true });
});

/** What Chromium says itself, and is meant to: it may come after the test that causes it. */
const expected = [];

/** Run a function in a new page, with the package as `taipan`. */
async function inPage(use, argument) {
  const page = await open(browser, server);
  try {
    return await page.evaluate(use, argument);
  } finally {
    await page.close();
  }
}

const training = { config: CONFIG, train: TRAIN, text: TEXT };

/** Train, and return the steps and the weights' checksum; with a prompt also the model's files and a text. */
async function trainInPage({ config, train, text, device = "webgpu", stopAt, prompt }) {
  const { Taipan } = taipan;
  const model = train.resume ? await Taipan.resume(train.run, { device }) : await Taipan.create(config, { device, seed: train.seed });
  const steps = [];
  for await (const step of model.train(train.resume ? "" : text, train)) {
    steps.push(step);
    if (step.step === stopAt) break;
  }
  const files = await model.save();
  const bytes = files["model.safetensors"];
  const hex = async (bytes) => [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const found = { steps, weights: await hex(bytes), losses: steps.map((step) => step.loss), device: model.device };
  if (prompt !== undefined) {
    found.tokens = [];
    for await (const token of model.generate(prompt, { maxTokens: 24, temperature: 0, alternatives: 3, ignoreEos: true })) found.tokens.push(token);
    const again = await Taipan.load(await model.saveZip(), { device: "cpu" });
    found.zipped = await hex((await again.save())["model.safetensors"]);
    again.dispose();
    const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    found.files = Object.fromEntries(Object.entries(files).map(([name, bytes]) => [name, base64(bytes)]));
  }
  model.dispose();
  return found;
}

/** The run on WebGPU with which others are compared: seconds on a GPU in software. */
let webgpu;

test("training on WebGPU learns, in few pipelines", async () => {
  webgpu = await inPage(trainInPage, { ...training, prompt: "In line 5" });
  assert.equal(webgpu.device.kind, "webgpu");
  assert.equal(webgpu.steps.length, 30);
  const [first, last] = [webgpu.losses[0], webgpu.losses.at(-1)];
  assert.ok(Math.abs(first - Math.log(256)) < 0.2, `it knows nothing at first: ${first}`);
  assert.ok(last < first - 1.5, `${first} to ${last}`);
  assert.ok(webgpu.steps[0].pipelines > 10 && webgpu.steps[0].pipelines <= 60, `${webgpu.steps[0].pipelines} pipelines`);
});

test("WebAssembly's CPU and WebGPU agree", async () => {
  const cpu = await inPage(trainInPage, { ...training, device: "cpu" });
  assert.equal(cpu.device.kind, "cpu");
  cpu.losses.forEach((loss, i) => assert.ok(Math.abs(loss - webgpu.losses[i]) < 1e-3, `step ${i + 1}: ${loss} and ${webgpu.losses[i]}`));
});

test("the program's run on a GPU has the same losses", { skip: !program && "no TAIPAN_PROGRAM" }, async () => {
  await writeFile(join(directory, "text.txt"), TEXT);
  const out = join(directory, "run");
  await run(program, ["train", join(directory, "text.txt"), "--out", out, "--d-model", "64", "--n-layer", "2",
    "--steps", "30", "--lr", "3e-3", "--batch-size", "4", "--block-size", "64", "--seed", "7",
    "--device", "gpu", "--log-interval", "1", "--sample-tokens", "0"], { env: gpu });
  const metrics = (await readFile(join(out, "metrics.jsonl"), "utf8")).trim().split("\n").map(JSON.parse);
  const losses = metrics.filter((line) => line.loss !== undefined).map((line) => line.loss);
  assert.equal(losses.length, 30);
  losses.forEach((loss, i) => assert.ok(Math.abs(loss - webgpu.losses[i]) < 1e-3, `step ${i + 1}: ${loss} and ${webgpu.losses[i]}`));
});

test("the same run gives the same bits, also if it is stopped and resumed", async () => {
  const stored = { ...TRAIN, run: "cats", saveEvery: 10, evalEvery: 10 };
  const part = await inPage(trainInPage, { ...training, train: stored, stopAt: 23 });
  assert.deepEqual(part.steps.filter((step) => step.saved).map((step) => step.step), [10, 20]);
  assert.deepEqual(part.losses, webgpu.losses.slice(0, 23), "the same run");
  const [found, ...others] = await inPage(() => taipan.Taipan.runs());
  assert.deepEqual([found.name, found.step, others.length], ["cats", 20, 0]);
  assert.equal(found.settings.steps, 30);
  const rest = await inPage(trainInPage, { ...training, train: { run: "cats", resume: true, evalEvery: 10, saveEvery: 10 } });
  assert.deepEqual(rest.losses, webgpu.losses.slice(20), "after the last save");
  assert.equal(rest.weights, webgpu.weights);
  const [after, left] = await inPage(async () => {
    const after = (await taipan.Taipan.runs()).map((run) => run.step);
    await taipan.Taipan.removeRun("cats");
    return [after, (await taipan.Taipan.runs()).length];
  });
  assert.deepEqual([after, left], [[30], 0]);
});

test("the program's model opens in a page, agrees, and is trained further", { skip: !program && "no TAIPAN_PROGRAM" }, async () => {
  const prompt = "In line 7";
  const { stdout } = await run(program, ["generate", join(directory, "run"), "--prompt", prompt, "-n", "16",
    "--temperature", "0", "--json", "--logprobs=3", "--ignore-eos", "--device", "cpu"]);
  const native = JSON.parse(stdout.trim().split("\n").at(-1));
  const { tokens, losses } = await inPage(async ({ prompt, text, train }) => {
    const model = await taipan.Taipan.load("/files/run/", { device: "cpu" });
    const [tokens, losses] = [[], []];
    const options = { maxTokens: 16, temperature: 0, alternatives: 3, ignoreEos: true };
    for await (const token of model.generate(prompt, options)) tokens.push(token);
    for await (const { loss } of model.train(text, { ...train, steps: 10, lr: 1e-3 })) losses.push(loss);
    model.dispose();
    return { tokens, losses };
  }, { ...training, prompt });
  assert.deepEqual(tokens.map((token) => token.id), native.ids);
  tokens.forEach((token, i) => {
    const found = [token, ...token.alternatives].map(({ probability }) => Math.log(probability));
    const expected = [native.logprobs[i], ...native.logprobs[i].top].map(({ logprob }) => logprob);
    assert.equal(found.length, expected.length);
    found.forEach((logprob, j) => assert.ok(Math.abs(logprob - expected[j]) < 1e-4, `token ${i}: ${logprob} and ${expected[j]}`));
  });
  // It goes on where the program stopped, far below ln 256.
  assert.ok(Math.abs(losses[0] - webgpu.losses.at(-1)) < 0.5, `${losses[0]} after ${webgpu.losses.at(-1)}`);
  assert.ok(losses.at(-1) < losses[0], `${losses}`);
});

test("a saved model runs in the program", { skip: !program && "no TAIPAN_PROGRAM" }, async () => {
  const { files, tokens } = webgpu;
  assert.equal(webgpu.zipped, webgpu.weights, "the zip's model");
  const model = join(directory, "saved");
  await run("mkdir", ["-p", model]);
  for (const [name, text] of Object.entries(files)) await writeFile(join(model, name), Buffer.from(text, "base64"));
  const { stdout } = await run(program, ["generate", model, "--prompt", "In line 5", "-n", "24",
    "--temperature", "0", "--json", "--logprobs=3", "--ignore-eos", "--device", "gpu"], { env: gpu });
  const native = JSON.parse(stdout.trim().split("\n").at(-1));
  assert.deepEqual(tokens.map((token) => token.id), native.ids);
  tokens.forEach((token, i) => assert.ok(Math.abs(Math.log(token.probability) - native.logprobs[i].logprob) < 1e-4, `token ${i}`));
  const reloaded = await inPage(async () => {
    const model = await taipan.Taipan.load("/files/saved/", { device: "cpu" });
    let text = "";
    for await (const token of model.generate("In line 5", { maxTokens: 24, temperature: 0, ignoreEos: true })) text += token.text;
    model.dispose();
    return text;
  });
  assert.equal(reloaded, tokens.map((token) => token.text).join(""));
});

test("a text can be forked at every token", async () => {
  await inPage(async () => {
    const model = await taipan.Taipan.create({ hidden_size: 32, num_hidden_layers: 1 }, { device: "cpu" });
    const all = [];
    for await (const token of model.generate("ab", { maxTokens: 12, snapshots: true, alternatives: 2, ignoreEos: true })) all.push(token);
    const rest = [];
    for await (const token of model.generate("", { maxTokens: 6, state: all[5].state, ignoreEos: true })) rest.push(token.id);
    const expected = all.slice(6).map((token) => token.id);
    if (JSON.stringify(rest) !== JSON.stringify(expected)) throw new Error(`${rest} and ${expected}`);
    if (all.some((token) => token.alternatives.length !== 2)) throw new Error("alternatives");
    if (all.at(-1).finish !== "length") throw new Error(all.at(-1).finish);
    const state = await model.state();
    await model.restore(all[5].state);
    const restored = [];
    for await (const token of model.generate("", { maxTokens: 6, ignoreEos: true })) restored.push(token.id);
    if (JSON.stringify(restored) !== JSON.stringify(expected)) throw new Error("restore");
    const other = await taipan.Taipan.create({ hidden_size: 32, num_hidden_layers: 1 }, { device: "cpu", seed: 2 });
    const refused = await other.restore(state).then(() => "", (error) => `${error.kind} ${error.message}`);
    if (!/^input state: a state of the model/.test(refused)) throw new Error(refused);
    model.dispose();
    other.dispose();
  });
});

test("BPE, evaluation and adaptation", async () => {
  const found = await inPage(async ({ text }) => {
    const model = await taipan.Taipan.create({ hidden_size: 32, num_hidden_layers: 1 },
      { device: "cpu", tokenizer: { bpe: 300, text } });
    const tokens = await model.tokenize("the cat sat");
    const before = await model.evaluate(text.slice(0, 2000));
    const kept = await model.adapt(text, { steps: 20, lr: 5e-3, batchSize: 2, blockSize: 32 });
    const after = await model.evaluate(text.slice(0, 2000));
    const worse = await model.adapt(text, { steps: 4, lr: 10, warmup: 0, batchSize: 2, blockSize: 32 });
    const rolledBack = await model.evaluate(text.slice(0, 2000));
    model.dispose();
    return { tokens, before, after, kept, worse, rolledBack, vocabulary: model.config.vocab_size };
  }, training);
  assert.equal(found.vocabulary, 300);
  assert.equal(found.tokens.map((token) => token.text).join(""), "the cat sat");
  assert.ok(found.tokens.length < 8);
  assert.ok(found.kept.kept && found.after.loss < found.before.loss, JSON.stringify(found.kept));
  assert.ok(!found.worse.kept && found.worse.after > found.worse.before, JSON.stringify(found.worse));
  assert.deepEqual(found.rolledBack, found.after, "bit for bit");
});

test("an inspection has its shapes, and its views agree", async () => {
  const found = await inPage(async ({ config }) => {
    const model = await taipan.Taipan.create(config, { device: "cpu", seed: 7 });
    const seen = await model.inspect("Once upon a time");
    const [deltas, attention] = [await seen.deltaOf(1), await seen.attention(1)];
    const later = await model.inspect("another text");
    const stale = await seen.attention(0).then(() => "none", (error) => error.kind);
    const missing = await later.attention(2).then(() => "none", (error) => error.message);
    const short = await model.inspect("x").then(() => "none", (error) => error.message);
    model.dispose();
    const plain = Object.entries(seen).filter(([, value]) => typeof value !== "function");
    const counts = [...seen.halfLives.counts];
    return { ...Object.fromEntries(plain), delta: [...seen.delta], norms: [...seen.stateNorm],
      reach: [...seen.gradientReach], edges: seen.halfLives.edges.length, counts,
      deltas: [...deltas], attention: [...attention], stale, missing, short };
  }, training);
  const { layers, channels, deltas, attention } = found;
  const tokens = found.tokens.length;
  assert.deepEqual([layers, channels, tokens], [2, 128, 16]);
  assert.equal(found.tokens.map((token) => token.text).join(""), "Once upon a time");
  for (let t = 0; t < tokens; t++) {
    const mean = deltas.slice(t * channels, (t + 1) * channels).reduce((a, b) => a + b) / channels;
    assert.ok(Math.abs(mean - found.delta[tokens + t]) < 1e-6, `${mean} of token ${t}`);
    assert.ok(attention.slice(t * tokens + t + 1, (t + 1) * tokens).every((value) => value === 0));
    assert.ok(attention[t * tokens + t] > 0);
  }
  assert.equal(found.counts.length, layers * (found.edges - 1));
  assert.equal(found.counts.reduce((a, b) => a + b), layers * tokens * channels * 16);
  assert.equal(found.norms.length, layers * tokens);
  assert.equal(found.reach.at(-1), 0, "the last token comes after its own prediction");
  assert.ok(found.reach.at(-2) > 0);
  assert.equal(found.stale, "input");
  assert.equal(found.missing, "inspect: layer 2, expected less than 2");
  assert.equal(found.short, "inspect: 1 tokens, expected 2 or more");
});

test("what goes wrong has a kind", async () => {
  const kinds = await inPage(async () => {
    const { Taipan, TaipanError } = taipan;
    const kind = (promise) => promise.then(() => "none", (error) => (error instanceof TaipanError ? error.kind : `${error}`));
    const next = (iterator) => kind(iterator.next());
    const model = await Taipan.create({ hidden_size: 16, num_hidden_layers: 1 }, { device: "cpu" });
    const controller = new AbortController();
    const steps = model.train("abc ".repeat(3000), { steps: 1000, blockSize: 16, signal: controller.signal });
    await steps.next();
    controller.abort();
    return {
      preset: await kind(Taipan.create({ preset: "huge" })),
      config: await kind(Taipan.create({ hidden_size: 0 })),
      device: await kind(Taipan.create({}, { device: "tpu" })),
      files: await kind(Taipan.load({ "config.json": new Uint8Array([1]) })),
      missing: await kind(Taipan.load("/nowhere/")),
      run: await kind(Taipan.resume("nothing")),
      aborted: await next(steps),
      text: await next(model.train("too short", {})),
      option: await next(model.train("x".repeat(9000), { learningRate: 1 })),
      notFinite: await next(model.train("abc ".repeat(3000), { steps: 10, lr: 1e30, warmup: 0, blockSize: 16, gradClip: 0 })) === "none"
        ? await (async () => { const it = model.train("", { resume: true }); for (let i = 0; i < 9; i++) { const found = await next(it); if (found !== "none") return found; } return "none"; })() : "first",
      disposed: await kind((model.dispose(), model.tokenize("x"))),
    };
  });
  // The two files of the model that is not there.
  const missing = "Failed to load resource: the server responded with a status of 404 (Not Found)";
  expected.push(missing, missing);
  assert.deepEqual(kinds, { preset: "input", config: "input", device: "input", files: "input", missing: "input",
    run: "input", aborted: "aborted", text: "input", option: "input", notFinite: "notFinite", disposed: "input" });
});

test("a lost device is reported, and the run goes on from its last save", async () => {
  const found = await inPage(async ({ config, train, text }) => {
    let device;
    const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function request(...options) {
      return (device = await requestDevice.apply(this, options));
    };
    const model = await taipan.Taipan.create(config, { device: "webgpu", worker: false, seed: 7 });
    const steps = model.train(text, { ...train, run: "lost", saveEvery: 2 });
    for (let i = 0; i < 3; i++) await steps.next();
    device.destroy();
    const lost = await model.lost;
    const kind = await steps.next().then(() => "none", (error) => error.kind);
    model.dispose();
    const again = await taipan.Taipan.resume("lost", { device: "webgpu" });
    const { value } = await again.train("", { run: "lost", resume: true }).next();
    again.dispose();
    await taipan.Taipan.removeRun("lost");
    return { lost, kind, step: value.step };
  }, training);
  assert.equal(found.kind, "lost");
  assert.equal(found.step, 3);
  assert.ok(found.lost.length > 0);
});

test("a full storage is reported, and the run goes on", async () => {
  const page = await open(browser, server);
  const session = await browser.context.newCDPSession(page);
  const quota = (quotaSize) => session.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, quotaSize });
  const begin = await page.evaluate(async ({ text }) => {
    const model = await taipan.Taipan.create({ hidden_size: 32, num_hidden_layers: 1 }, { device: "cpu" });
    window.model = model;
    window.steps = model.train(text, { steps: 40, run: "full", saveEvery: 2, batchSize: 2, blockSize: 16 });
    await steps.next();
    return (await steps.next()).value.saved;
  }, training);
  assert.equal(begin, true);
  await quota(1000);
  const full = await page.evaluate(async () => {
    await steps.next();
    return steps.next().then(() => "none", (error) => error.kind);
  });
  assert.equal(full, "storage");
  await quota(undefined); // as it was
  const rest = await page.evaluate(async () => {
    const stored = (await taipan.Taipan.runs()).find((run) => run.name === "full").step;
    const next = [await steps.next(), await steps.next()].map(({ value }) => [value.step, value.saved ?? false]);
    model.dispose();
    await taipan.Taipan.removeRun("full");
    return { stored, next };
  });
  assert.deepEqual(rest, { stored: 2, next: [[5, false], [6, true]] });
  await page.close();
});

test("without WebGPU it computes on the CPU and says why", async () => {
  const found = await inPage(async () => {
    Object.defineProperty(navigator, "gpu", { value: undefined, configurable: true });
    const model = await taipan.Taipan.create({ hidden_size: 16, num_hidden_layers: 1 }, { worker: false });
    const refused = await taipan.Taipan.create({}, { worker: false, device: "webgpu" }).then(() => "", (error) => error.kind);
    model.dispose();
    return { device: model.device, refused };
  });
  expected.push("No available adapters.");
  assert.equal(found.device.kind, "cpu");
  assert.match(found.device.why, /WebGPU/);
  assert.equal(found.refused, "input");
});

test("the example trains", async () => {
  const page = await browser.context.newPage();
  await page.goto(`${server.url}example/index.html`);
  await page.fill("#text", TEXT);
  await page.click("#train");
  await page.waitForFunction(() => /^step [2-9]/.test(document.querySelector("#status").value), null, { timeout: 120_000 });
  await page.click("#train");
  await page.waitForFunction(() => document.querySelector("#train").textContent === "Train");
  assert.match(await page.inputValue("#status").catch(() => page.textContent("#status")), /loss \d/);
  await page.close();
});

// The aim is 500 kB. Nine tenths are code of the library and the models, of which no function is
// larger than 2 %; 75 kB are WGSL, the words of the stories, and tables.
const MAX_WASM = 670_000;

test("the package is small", async () => {
  const directory = join(dist, "taipan");
  const names = await readdir(directory);
  const wasm = gzipSync(await readFile(join(directory, "taipan_wasm_bg.wasm")), { level: 9 }).length;
  assert.ok(wasm <= MAX_WASM, `${wasm} bytes of wasm, gzipped`);
  const script = (await Promise.all(names.filter((name) => name.endsWith(".js"))
    .map((name) => readFile(join(directory, name))))).reduce((sum, bytes) => sum + bytes.length, 0);
  assert.ok(script <= 60_000, `${script} bytes of script`);
});

test("the consoles are empty", async () => {
  await browser.close();
  const rest = [...browser.messages];
  for (const message of expected) {
    const at = rest.indexOf(message);
    if (at >= 0) rest.splice(at, 1);
  }
  assert.deepEqual(rest, []);
});
