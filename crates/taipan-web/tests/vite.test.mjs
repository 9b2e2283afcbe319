// A project of Vite that depends on the package as npm packs it, built for production.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { pathToFileURL } from "node:url";
import { dist, launch, require, serve } from "./browser.mjs";

const run = promisify(execFile);

test("a project of Vite builds and runs", async () => {
  const project = await mkdtemp(join(tmpdir(), "taipan-vite-"));
  const browser = await launch();
  let server;
  try {
    const { stdout } = await run("npm", ["pack", "--silent", "--pack-destination", project, join(dist, "taipan")]);
    await mkdir(join(project, "node_modules/taipan"), { recursive: true });
    await run("tar", ["xzf", join(project, stdout.trim()), "--strip-components=1", "-C", join(project, "node_modules/taipan")]);
    await writeFile(join(project, "index.html"), '<!doctype html><link rel="icon" href="data:,"><script type="module" src="/main.js"></script>');
    await writeFile(join(project, "main.js"), `
      import { Taipan } from "taipan";
      const model = await Taipan.create({ hidden_size: 16, num_hidden_layers: 1 }, { device: "cpu" });
      const { value } = await model.train("to be or not to be ".repeat(800), { steps: 2, blockSize: 16 }).next();
      document.title = "loss " + value.loss;
    `);
    const { build } = await import(pathToFileURL(join(require.resolve("vite"), "../dist/node/index.js")).href)
      .catch(() => import(pathToFileURL(require.resolve("vite")).href));
    await build({ root: project, logLevel: "error", worker: { format: "es" }, build: { target: "esnext" } });
    const assets = await readdir(join(project, "dist/assets"));
    assert.equal(assets.filter((name) => name.endsWith(".wasm")).length, 1, `${assets}`);
    server = await serve({ "/index.html": join(project, "dist/index.html"), "/assets/": join(project, "dist/assets") });
    const page = await browser.context.newPage();
    await page.goto(`${server.url}index.html`);
    await page.waitForFunction(() => document.title.startsWith("loss "), null, { timeout: 60_000 });
    assert.ok(Math.abs(Number((await page.title()).slice(5)) - Math.log(256)) < 0.3);
    assert.deepEqual(browser.messages, []);
  } finally {
    await browser.close();
    server?.close();
    await rm(project, { recursive: true, force: true });
  }
});
