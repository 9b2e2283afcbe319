// The package in Node, on the CPU.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { pathToFileURL } from "node:url";
import { join } from "node:path";
import { dist } from "./browser.mjs";

const PROGRAM = `
const { Taipan } = await import(process.argv[1]);
const options = { worker: false, seed: 7, device: "cpu" };
const model = await Taipan.create({ hidden_size: 32, num_hidden_layers: 1 }, options);
const losses = [];
for await (const { loss } of model.train("one two three four ".repeat(500), { steps: 10, batchSize: 2, blockSize: 32 })) losses.push(loss);
let text = "";
for await (const token of model.generate("one", { maxTokens: 5, ignoreEos: true })) text += token.text;
console.log(JSON.stringify({ losses, kind: model.device.kind, text }));
process.exit(0);
`;

async function inNode() {
  const index = pathToFileURL(join(dist, "taipan/index.js")).href;
  const { stdout } = await promisify(execFile)(process.execPath,
    ["--input-type=module", "-e", PROGRAM, index], { timeout: 300_000 });
  return JSON.parse(stdout);
}

test("it trains in Node", async () => {
  const cpu = await inNode();
  assert.equal(cpu.kind, "cpu");
  assert.ok(cpu.losses.at(-1) < cpu.losses[0] - 0.5, `${cpu.losses}`);
});
