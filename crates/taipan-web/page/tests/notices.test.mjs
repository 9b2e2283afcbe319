// What the page says when something is not as it should be.
import assert from "node:assert/strict";
import { test } from "node:test";
import { advice } from "../advice.js";
import { query, stepOf, untilStep, withPage } from "./browser.mjs";

const said = (page, id) => page.locator(`#notice-${id}`).innerText();

test("no WebGPU: what to do in this browser, and that it runs on the CPU", () =>
  withPage({ gpu: false, fake: { cpu: true }, query: "?steps=5" }, async (page) => {
    await page.locator("#notice-webgpu").waitFor();
    assert.match(await said(page, "webgpu"), /runs on the CPU.*(chrome:\/\/flags|hardware)/s);
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    assert.equal(await page.locator("#device").innerText(), "CPU");
    await page.getByRole("button", { name: "Close this notice" }).click();
    assert.equal(await page.locator("#notice-webgpu").count(), 0);
  }));

test("advice fits the browser", () => {
  assert.match(
    advice("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    /about:config/,
  );
  assert.match(
    advice("Mozilla/5.0 (Windows NT 10.0; rv:120.0) Gecko/20100101 Firefox/120.0"),
    /Update Firefox/,
  );
  assert.match(
    advice("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36"),
    /chrome:\/\/flags/,
  );
  assert.match(
    advice("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/100.0.0.0 Safari/537.36"),
    /Update this browser/,
  );
  assert.match(
    advice("Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 Version/18.0 Safari/605.1.15"),
    /version 26/,
  );
});

test("out of memory: halving the batch restarts and trains", () =>
  withPage(
    {
      query: "?steps=8",
      fake: { faults: [{ kind: "memory", at: 1, message: "scan: 3.1 GB asked, 2 GB there" }] },
    },
    async (page) => {
      await page.click("#go");
      await page.locator("#notice-memory").waitFor();
      assert.match(await said(page, "memory"), /Out of memory.*3\.1 GB/s);
      await page.getByRole("button", { name: "Halve the batch and restart" }).click();
      await page.locator("#go", { hasText: "Train anew" }).waitFor();
      assert.match(await query(page), /batch=4/);
      assert.equal(await stepOf(page), 8);
      assert.equal(await page.locator("#notice-memory").count(), 0);
    },
  ));

test("device lost: goes on from the last save", () =>
  withPage(
    {
      query: "?steps=60",
      fake: { faults: [{ kind: "lost", at: 34, message: "GPU process crashed" }] },
    },
    async (page) => {
      await page.click("#go");
      await page.locator("#notice-lost").waitFor();
      assert.match(await said(page, "lost"), /last save, step 33/);
      await page.locator("#go", { hasText: "Train anew" }).waitFor();
      assert.equal(await stepOf(page), 60);
      assert.equal(await page.locator("#key-old-text").isVisible(), false, "it is the same run");
    },
  ));

test("device lost before the first save starts anew; lost again, it asks", () =>
  withPage(
    {
      query: "?steps=60",
      fake: {
        faults: [
          { kind: "lost", at: 2, message: "reset" },
          { kind: "lost", at: 3, message: "reset" },
        ],
      },
    },
    async (page) => {
      await page.click("#go");
      await page.locator("#notice-lost", { hasText: "Nothing was saved yet" }).waitFor();
      await page.locator("#notice-lost").getByRole("button", { name: "Train" }).click();
      await page.locator("#notice-lost", { hasText: "lost again" }).waitFor();
      assert.equal(await page.locator("#notice-lost .row button").count(), 2);
    },
  ));

test("a loss that is not finite: which op, and a way on", () =>
  withPage(
    {
      query: "?steps=50",
      fake: {
        faults: [{ kind: "notFinite", at: 31, message: "cross_entropy: loss is NaN at step 31" }],
      },
    },
    async (page) => {
      await page.click("#go");
      await page.locator("#notice-finite").waitFor();
      assert.match(await said(page, "finite"), /no longer a number.*cross_entropy/s);
      await page.getByRole("button", { name: /Go back to step 30/ }).click();
      await page.locator("#go", { hasText: "Go on" }).waitFor();
      assert.equal(await stepOf(page), 30);
    },
  ));

test("storage full: training goes on, and the model can be saved to a file", () =>
  withPage({ query: "?steps=40" }, async (page) => {
    await page.evaluate(() => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("quota", "QuotaExceededError");
      };
    });
    await page.click("#go");
    await page.locator("#notice-storage").waitFor();
    assert.match(await said(page, "storage"), /storage is full/);
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    assert.equal(await stepOf(page), 40);
    const [file] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("button", { name: "Save the model" }).click(),
    ]);
    assert.match(file.suggestedFilename(), /\.zip$/);
  }));

test("a hidden tab", () =>
  withPage({ query: "?steps=5000" }, async (page) => {
    await page.click("#go");
    await untilStep(page, 5);
    const hide = (hidden) =>
      page.evaluate((hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, hidden);
    await hide(true);
    assert.match(await said(page, "tab"), /in the background/);
    await untilStep(page, (await stepOf(page)) + 5);
    await hide(false);
    assert.match(await said(page, "tab"), /[1-9][\d,]* steps ran while this tab was hidden/);
  }));

test("progress is announced politely, and not at every step", () =>
  withPage({ query: "?steps=400" }, async (page) => {
    await page.evaluate(() => {
      globalThis.heard = [];
      new MutationObserver(() =>
        globalThis.heard.push(document.querySelector("#live").textContent),
      ).observe(document.querySelector("#live"), {
        childList: true,
        characterData: true,
        subtree: true,
      });
    });
    await page.click("#go");
    await untilStep(page, 200);
    const heard = await page.evaluate(() => globalThis.heard);
    assert.ok(heard.length >= 1 && heard.length <= 4, `heard: ${heard.join(" | ")}`);
  }));
