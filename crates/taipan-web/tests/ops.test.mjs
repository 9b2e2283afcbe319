// The op suite of the library, compiled to WebAssembly: every test on its CPU and on WebGPU.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { copyFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { dist, launch, serve } from "./browser.mjs";

let browser, server;
const suite = join(dist, "ops");
const asked = process.env.TAIPAN_OPS;
const options = { skip: !asked && "scripts/test-web --ops builds and runs it" };

before(async () => {
  if (!asked) return;
  await copyFile(fileURLToPath(new URL("ops.js", import.meta.url)), join(suite, "tests.js"));
  server = await serve({ "/ops/": suite });
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server?.close();
});

/** What fails, and how many tests passed. */
async function failures(device) {
  const page = await browser.context.newPage();
  await page.goto(server.url);
  const found = await page.evaluate(async (device) => {
    const { open } = await import("/ops/tests.js");
    const failed = [];
    let [instances, passed] = [0, 0];
    const fresh = () => open(`/ops/ops.js?${device}${instances++}`, device);
    let suite = await fresh();
    for (let i = 0; i < suite.names.length; i++) {
      const began = performance.now();
      const why = await suite.run(i);
      console.log(`${device} ${suite.names[i]}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
      if (why === null) {
        passed += 1;
      } else {
        failed.push(`${suite.names[i]}: ${why}`);
        suite = await fresh();
      }
    }
    return { failed, passed };
  }, device);
  await page.close();
  return found;
}

test("every op is right on WebAssembly's CPU", options, async () => {
  const { failed, passed } = await failures("cpu");
  assert.deepEqual(failed, []);
  assert.ok(passed > 100, `${passed} tests`);
});

test("every op is right on WebGPU", options, async () => {
  const { failed, passed } = await failures("webgpu");
  assert.deepEqual(failed, []);
  assert.ok(passed > 100, `${passed} tests`);
});
