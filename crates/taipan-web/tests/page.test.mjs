// The page on the package itself, as a visitor has it. What the page does with the package's
// answers is in ../page/tests.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { dist, launch, serve } from "./browser.mjs";

let browser, server;

before(async () => {
  server = await serve({ "/page/": join(dist, "page") });
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server?.close();
});

async function openPage(query = "") {
  const page = await browser.context.newPage();
  page.setDefaultTimeout(120_000);
  await page.goto(`${server.url}page/index.html${query}`);
  await page.locator("#go:enabled").waitFor();
  return page;
}

/** Milliseconds until Train can be pressed, in a browser of its own. */
async function timeToInteractive() {
  const fresh = await launch();
  try {
    const page = await fresh.context.newPage();
    await page.addInitScript(() => {
      const look = () => {
        const go = document.querySelector("#go");
        if (go && !go.disabled && document.querySelector("#piece span")) globalThis.ready ??= performance.now();
      };
      new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
    });
    await page.goto(`${server.url}page/index.html`);
    // A frame may take long where a processor stands in for the GPU.
    await page.waitForFunction(() => globalThis.ready, null, { timeout: 120_000, polling: 100 });
    return await page.evaluate(() => globalThis.ready);
  } finally {
    await fresh.close();
  }
}

test("it is interactive within 2 seconds", async (t) => {
  const times = [];
  // What else the machine does makes it longer, never shorter.
  for (let i = 0; i < 4 && !times.some((time) => time <= 2000); i++) times.push(await timeToInteractive());
  t.diagnostic(`milliseconds until Train can be pressed: ${times.map(Math.round)}`);
  assert.ok(Math.min(...times) <= 2000, `${times}`);
});

/** The zip of a new model that is smaller than the page's own sizes. */
const smallModel = (page) =>
  page.evaluate(async () => {
    const { Taipan } = await import("./taipan/index.js");
    const config = { hidden_size: 64, num_hidden_layers: 2 };
    const model = await Taipan.create(config, { device: "cpu", seed: 1 });
    const zip = new Uint8Array(await (await model.saveZip()).arrayBuffer());
    model.dispose();
    return Array.from(zip);
  });

/** The longest task of the page's main thread in some seconds, in milliseconds of its own time. */
async function longestTask(page, seconds) {
  const session = await browser.context.newCDPSession(page);
  const events = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const ended = new Promise((resolve) => { session.on("Tracing.tracingComplete", resolve); });
  const includedCategories = ["toplevel", "disabled-by-default-devtools.timeline", "devtools.timeline"];
  await session.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories } });
  await page.waitForTimeout(1000 * seconds);
  await session.send("Tracing.end");
  await ended;
  const threads = events.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain")
    .map(({ pid, tid }) => `${pid} ${tid}`);
  const tasks = events.filter(({ ph, pid, tid, tdur }) => ph === "X" && tdur !== undefined && threads.includes(`${pid} ${tid}`));
  assert.ok(tasks.length > 100, `${tasks.length} tasks of ${threads.length} threads were seen`);
  return tasks.reduce((most, { tdur }) => Math.max(most, tdur / 1000), 0);
}

test("selective copying is learnt on the page within three minutes, and the page stays responsive", async (t) => {
  const page = await openPage("?feed=task&taskLength=8&device=cpu&steps=1200&lr=0.004&batch=16&schedule=wsd&decay=0");
  const buffer = Buffer.from(await smallModel(page));
  await page.locator("#open-files").setInputFiles({ name: "small.zip", mimeType: "application/zip", buffer });
  await page.locator("#notice-opened", { hasText: "small is open" }).waitFor();
  const began = performance.now();
  await page.click("#go");
  await page.locator("#stat-held", { hasText: "%" }).waitFor();
  const longest = await longestTask(page, 5);
  t.diagnostic(`longest task of the main thread: ${longest.toFixed(1)} ms`);
  // Shown are whole percents: 100 is 99.5 or more.
  await page.waitForFunction(() => parseFloat(document.querySelector("#stat-held").textContent) >= 100,
    null, { timeout: 180_000 });
  t.diagnostic(`learnt after ${((performance.now() - began) / 1000).toFixed(0)} s`);
  assert.ok(longest <= 50, `${longest} ms`);
  await page.close();
});

test("the doctor finds every op right on WebGPU", async (t) => {
  const page = await openPage();
  await page.locator("#doctor summary").click();
  await page.click("#examine");
  await page.locator("#doctor-done").waitFor({ timeout: 900_000 });
  const verdict = await page.locator("#doctor-verdict").innerText();
  t.diagnostic(verdict);
  const failed = await page.locator("#doctor-checks .failed").allInnerTexts();
  assert.deepEqual(failed, []);
  assert.match(verdict, /^All \d\d+ checks passed on WebGPU \(.*swiftshader/i);
  await page.close();
});

test("the console is empty", () => assert.deepEqual(browser.messages, []));
