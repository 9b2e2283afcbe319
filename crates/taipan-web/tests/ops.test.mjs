// The op suite of the library, compiled to WebAssembly: every test on its CPU and on WebGPU.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { copyFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { dist, launch, serve } from "./browser.mjs";

let browser, server;
const suite = join(dist, "ops");
// On WebGPU the compiler of a GPU in software takes most of an hour: not part of every run.
const onWebGpu = { skip: !process.env.TAIPAN_OPS && "scripts/test-web --ops runs it" };

before(async () => {
  await copyFile(fileURLToPath(new URL("ops.js", import.meta.url)), join(suite, "tests.js"));
  server = await serve({ "/ops/": suite });
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server?.close();
});

/** Runs every test on a device, and says how many passed. */
async function runs(device, t) {
  const page = await browser.context.newPage();
  await page.goto(server.url);
  const { failed, count } = await page.evaluate(async (device) => {
    const { open } = await import("/ops/tests.js");
    const failed = [];
    let instances = 0;
    const fresh = () => open(`/ops/ops.js?${device}${instances++}`, device);
    let suite = await fresh();
    const count = suite.names.length;
    for (let i = 0; i < count; i++) {
      const began = performance.now();
      const why = await suite.run(i);
      console.log(`${device} ${suite.names[i]}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
      if (why !== null) {
        failed.push(`${suite.names[i]}: ${why}`);
        suite = await fresh();
      }
    }
    return { failed, count };
  }, device);
  await page.close();
  t.diagnostic(`${count - failed.length} of ${count} tests of the ops passed on ${device}`);
  assert.deepEqual(failed, []);
  assert.ok(count > 100, `${count} tests`);
}

test("every op is right on WebAssembly's CPU", (t) => runs("cpu", t));

test("every op is right on WebGPU", onWebGpu, (t) => runs("webgpu", t));
