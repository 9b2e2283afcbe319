// The package in Node, on the adapter of the npm package `webgpu`, and on the CPU.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { pathToFileURL } from "node:url";
import { join } from "node:path";
import { dist, require } from "./browser.mjs";

const PROGRAM = `
const { Taipan } = await import(process.argv[1]);
let options = { worker: false, seed: 7, device: "cpu" };
if (process.argv[2]) {
  const { create, globals } = await import(process.argv[2]);
  Object.assign(globalThis, globals);
  globalThis.gpu = create([]);
  const adapter = await gpu.requestAdapter();
  if (!adapter) throw new Error("no adapter");
  options = { worker: false, seed: 7, adapter, device: "webgpu" };
}
const model = await Taipan.create({ hidden_size: 32, num_hidden_layers: 1 }, options);
const losses = [];
for await (const { loss } of model.train("one two three four ".repeat(500), { steps: 10, batchSize: 2, blockSize: 32 })) losses.push(loss);
let text = "";
for await (const token of model.generate("one", { maxTokens: 5, ignoreEos: true })) text += token.text;
console.log(JSON.stringify({ losses, kind: model.device.kind, text }));
process.exit(0);
`;

/** With the driver that is part of Chromium. */
const ENVIRONMENT = { XDG_RUNTIME_DIR: "/nonexistent", ...process.env,
  VK_ICD_FILENAMES: process.env.TAIPAN_SWIFTSHADER ?? "/usr/lib/chromium/vk_swiftshader_icd.json" };

async function inNode(...packages) {
  const index = pathToFileURL(join(dist, "taipan/index.js")).href;
  const { stdout } = await promisify(execFile)(process.execPath,
    ["--input-type=module", "-e", PROGRAM, index, ...packages], { timeout: 300_000, env: ENVIRONMENT });
  return JSON.parse(stdout);
}

test("it trains in Node, with webgpu as on the CPU", async () => {
  const cpu = await inNode();
  assert.equal(cpu.kind, "cpu");
  assert.ok(cpu.losses.at(-1) < cpu.losses[0] - 0.5, `${cpu.losses}`);
  const gpu = await inNode(pathToFileURL(require.resolve("webgpu")).href);
  assert.equal(gpu.kind, "webgpu");
  gpu.losses.forEach((loss, i) => assert.ok(Math.abs(loss - cpu.losses[i]) < 1e-3, `step ${i + 1}: ${loss}, ${cpu.losses[i]}`));
});
