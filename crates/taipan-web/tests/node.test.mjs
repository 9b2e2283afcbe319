// The package in Node: on the CPU, and on the GPU that npm's package `webgpu` opens.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { pathToFileURL } from "node:url";
import { join } from "node:path";
import { dist, require } from "./browser.mjs";

const TRAIN = `
const { Taipan } = await import(process.argv[1]);
const options = { worker: false, seed: 7, ...how };
const model = await Taipan.create({ hidden_size: 32, num_hidden_layers: 1 }, options);
const losses = [];
for await (const { loss } of model.train("one two three four ".repeat(500), { steps: 10, batchSize: 2, blockSize: 32 })) losses.push(loss);
let text = "";
for await (const token of model.generate("one", { maxTokens: 5, ignoreEos: true })) text += token.text;
console.log(JSON.stringify({ losses, kind: model.device.kind, text }));
process.exit(0);
`;

const OPEN_WEBGPU = `
const { create, globals } = await import(process.argv[2]);
Object.assign(globalThis, globals);
// Dawn ends with this object: what it gave out must not outlive it.
globalThis.gpu = create([]);
const adapter = await gpu.requestAdapter();
if (!adapter) throw new Error("it gives no adapter");
const how = { device: "webgpu", adapter };
`;

async function inNode(program, ...urls) {
  const index = pathToFileURL(join(dist, "taipan/index.js")).href;
  // On the driver that the browser has.
  const driver = process.env.TAIPAN_SWIFTSHADER ?? "/usr/lib/chromium/vk_swiftshader_icd.json";
  const { stdout } = await promisify(execFile)(process.execPath,
    ["--input-type=module", "-e", program, index, ...urls],
    { timeout: 600_000, env: { ...process.env, VK_ICD_FILENAMES: driver } });
  return JSON.parse(stdout);
}

let cpu;

test("it trains in Node", async () => {
  cpu = await inNode(`const how = { device: "cpu" }; ${TRAIN}`);
  assert.equal(cpu.kind, "cpu");
  assert.ok(cpu.losses.at(-1) < cpu.losses[0] - 0.5, `${cpu.losses}`);
});

test("it trains in Node on WebGPU", async (t) => {
  let url;
  try {
    url = pathToFileURL(require.resolve("webgpu")).href;
    await inNode(`${OPEN_WEBGPU} console.log("{}"); process.exit(0);`, url);
  } catch (error) {
    const [why] = /\w*Error: .*/.exec(error.stderr ?? "") ?? [error.message];
    return t.skip(`npm's package webgpu does not open a GPU here: ${why}`);
  }
  const gpu = await inNode(OPEN_WEBGPU + TRAIN, url);
  assert.equal(gpu.kind, "webgpu");
  gpu.losses.forEach((loss, i) => assert.ok(Math.abs(loss - cpu.losses[i]) < 1e-3, `step ${i + 1}: ${loss} and ${cpu.losses[i]}`));
  assert.equal(gpu.text, cpu.text);
});
