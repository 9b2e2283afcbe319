// Look: five views of one text, live, each with its table.
import assert from "node:assert/strict";
import { test } from "node:test";
import { tableRows, trainTo, untilStep, withPage } from "./browser.mjs";

/** Uses a page that has looked once. */
const looked = (use) =>
  withPage({ query: "?live=false" }, async (page) => {
    await trainTo(page, 30);
    await page.click("#look-now");
    await page.locator("#look-caption", { hasText: "128 tokens" }).waitFor();
    await use(page);
  });

test("all five views are shown, live, while it trains", () =>
  withPage({ query: "?steps=4000", fake: { stepMs: 10 } }, async (page) => {
    await page.click("#go");
    await page
      .locator("#look-caption", { hasText: "128 tokens, 4 layers, 256 channels" })
      .waitFor();
    const first = await page.locator("#look-caption").innerText();
    await page.waitForFunction(
      (was) => document.querySelector("#look-caption").textContent !== was,
      first,
    );
    assert.equal(await page.locator("#delta span").count(), 128);
    assert.equal(await page.locator("#half .columns i").count(), 24);
    for (const id of ["attention", "norm"]) {
      assert.ok(
        (await page.locator(`#${id} canvas`).evaluate((c) => {
          const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
          return new Set(data).size;
        })) > 20,
        id,
      );
    }
  }));

test("a layer of attention has no step sizes, no half-lives and no state", () =>
  withPage({ query: "?live=false", fake: { attention: [2] } }, async (page) => {
    await trainTo(page, 30);
    await page.click("#look-now");
    await page.locator("#look-caption", { hasText: "attention in layer 3;" }).waitFor();
    assert.ok(await page.locator("#channel").isVisible());
    await page.fill("#layer", "3");
    await page.locator("#half", { hasText: "This layer is attention" }).waitFor();
    assert.equal(await page.locator("#delta-low").innerText(), "none: this layer is attention");
    assert.ok(!(await page.locator("#channel").isVisible()));
    const box = await page.locator("#norm canvas").boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + (box.height * 2.5) / 4);
    await page.locator("#norm-readout", { hasText: "layer 3 is attention: it has no state" }).waitFor();
    const [row] = await tableRows(page, "norm");
    assert.equal(row[3], "–");
    assert.doesNotMatch(row.join(" "), /NaN/);
  }));

test("switched off, it does not look", () =>
  withPage({ query: "?steps=4000&live=false" }, async (page) => {
    await page.click("#go");
    await untilStep(page, 40);
    assert.match(await page.locator("#look-caption").innerText(), /Train a little/);
  }));

test("looking takes at most a tenth of the training time", () =>
  withPage({ query: "?steps=4000", fake: { stepMs: 5, inspectMs: 40 } }, async (page) => {
    await page.evaluate(async () => {
      const { Taipan } = await import("./taipan/index.js");
      const inspect = Taipan.prototype.inspect;
      globalThis.looks = 0;
      Taipan.prototype.inspect = function (...all) {
        globalThis.looks++;
        return inspect.apply(this, all);
      };
    });
    await page.click("#go");
    await untilStep(page, 200);
    // 200 steps of 5 ms or more; a look of 40 ms or more is due at most every 400 ms of them.
    const [looks, seconds] = await page.evaluate(() => [
      globalThis.looks,
      performance.now() / 1000,
    ]);
    assert.ok(looks >= 1 && looks <= 2 + seconds / 0.4, `${looks} looks in ${seconds} s`);
  }));

test("a cell of the triangle lights its two tokens, by pointer and keys", () =>
  looked(async (page) => {
    const box = await page.locator("#attention canvas").boundingBox();
    const cell = box.width / 128;
    await page.locator("#attention").scrollIntoViewIfNeeded();
    const at = await page.locator("#attention canvas").boundingBox();
    await page.mouse.move(at.x + 20.5 * cell, at.y + 100.5 * cell);
    const lit = (mark) =>
      page
        .locator(`#delta .${mark}`)
        .evaluate((span) => [...span.parentNode.children].indexOf(span));
    assert.deepEqual([await lit("lit"), await lit("lit2")], [100, 20]);
    assert.match(await page.locator("#attention-readout").innerText(), /draws on .*, 80 back/);
    // Above the diagonal there is nothing.
    await page.mouse.move(at.x + 100.5 * cell, at.y + 20.5 * cell);
    assert.equal(await page.locator("#delta .lit").count(), 0);
    await page.mouse.move(0, 0);
    await page.locator("#attention").focus();
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("ArrowRight");
    assert.deepEqual([await lit("lit"), await lit("lit2")], [127, 1]);
  }));

test("tables agree with the views", () =>
  looked(async (page) => {
    const delta = await tableRows(page, "delta");
    assert.equal(delta.length, 128);
    assert.equal(
      `Δ ${delta[7][1]}`,
      await page.locator("#delta span").nth(7).getAttribute("title"),
    );
    const half = await tableRows(page, "half");
    const bar = await page.locator("#half .columns i").nth(9).getAttribute("title");
    assert.equal(bar, `${half[9][0]} tokens: ${half[9][1]}`);
    const norm = await tableRows(page, "norm");
    await page.locator("#norm").focus();
    await page.keyboard.press("ArrowUp"); // layer 4, token 0
    await page.keyboard.press("ArrowRight");
    assert.equal(
      await page.locator("#norm-readout").innerText(),
      `layer 4 after ${norm[1][0]}: ${norm[1][4]}`,
    );
    const reach = await tableRows(page, "reach");
    await page.locator("#reach-plot").focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowRight");
    assert.equal(
      await page.locator("#reach-readout").innerText(),
      `1 tokens back, ${reach[1][1]}: ${reach[1][2]}`,
    );
    const links = await tableRows(page, "attention");
    assert.equal(links.length, 100);
  }));

test("layer and channel change what is marked", () =>
  looked(async (page) => {
    const marks = () =>
      page.locator("#delta span").evaluateAll((all) => all.map((s) => s.title).join());
    const first = await marks();
    await page.locator("#layer").focus();
    await page.keyboard.press("ArrowRight");
    await page.locator("#layer-show", { hasText: "2 / 4" }).waitFor();
    const second = await marks();
    assert.notEqual(second, first);
    await page.locator("#channel").focus();
    await page.keyboard.press("ArrowRight");
    await page.locator("#channel-show", { hasText: "1" }).waitFor();
    await page.waitForFunction(
      (was) => [...document.querySelectorAll("#delta span")].map((s) => s.title).join() !== was,
      second,
    );
  }));

test("a text of the user's own is read", () =>
  withPage({}, async (page) => {
    await trainTo(page, 5);
    await page.fill("#look-text", "A short text.");
    await page.click("#look-now");
    await page.locator("#look-caption", { hasText: "13 tokens" }).waitFor();
    assert.equal((await page.locator("#delta span").allTextContents()).join(""), "A short text.");
  }));
