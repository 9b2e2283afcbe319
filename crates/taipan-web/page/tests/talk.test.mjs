// Talk: streaming, what else a token could have been, forks.
import assert from "node:assert/strict";
import { test } from "node:test";
import { query, tableRows, trainTo, untilStep, withPage } from "./browser.mjs";

const written = (page) => page.locator("#written-text button.t").allTextContents();
async function write(page) {
  await page.click("#write");
  await page.locator("#stop").waitFor({ state: "hidden" });
}

test("text streams, and Go on makes it longer", () =>
  withPage({ query: "?maxTokens=30&talkSeed=7" }, async (page) => {
    await trainTo(page, 20);
    await page.fill("#prompt", "Nobody at");
    await page.click("#write");
    await page.locator("#written-text button.t").first().waitFor();
    await page.locator("#stop").waitFor({ state: "hidden" });
    assert.equal((await written(page)).length, 30);
    assert.equal(await page.locator("#written-text .start").innerText(), "Nobody at");
    await page.click("#more");
    await page.locator('#written-text [data-index="59"]').waitFor();
    assert.equal((await written(page)).length, 60);
  }));

test("writing can be stopped", () =>
  withPage({ query: "?maxTokens=4000", fake: { tokenMs: 5 } }, async (page) => {
    await page.click("#write");
    await page.locator('#written-text [data-index="3"]').waitFor();
    await page.click("#stop");
    await page.locator("#stop").waitFor({ state: "hidden" });
    const count = (await written(page)).length;
    await page.waitForTimeout(80);
    assert.equal((await written(page)).length, count);
    assert.ok(count < 4000);
  }));

test("hovering a token shows its probability and alternatives, as in the table", () =>
  withPage({ query: "?maxTokens=20&talkSeed=7" }, async (page) => {
    await trainTo(page, 20);
    await write(page);
    await page.hover('#written-text [data-index="5"]');
    const rows = await tableRows(page, "talk");
    await page.hover('#written-text [data-index="5"]');
    const head = await page.locator("#card p").innerText();
    assert.equal(
      head.replace(/\s+/g, " "),
      `${rows[5][0]} ${rows[5][1]} likely`.replace(/\s+/g, " "),
    );
    assert.equal(await page.locator("#card button").count(), 6);
  }));

test("a click forks there: what is before stays, what follows is new", () =>
  withPage({ query: "?maxTokens=40&temperature=1.5" }, async (page) => {
    await trainTo(page, 20);
    await write(page);
    const before = await written(page);
    await page.click('#written-text [data-index="10"]');
    await page.locator("#stop").waitFor({ state: "hidden" });
    const after = await written(page);
    assert.deepEqual(after.slice(0, 10), before.slice(0, 10));
    assert.notDeepEqual(after.slice(10), before.slice(10));
    assert.equal(after.length, 50);
    // The version before is still there.
    await page.getByRole("button", { name: "Version 1" }).click();
    await page.locator('#written-text [data-index="39"]').waitFor();
    assert.deepEqual(await written(page), before);
  }));

test("by keyboard: to a token, to an alternative, fork", () =>
  withPage({ query: "?maxTokens=12&talkSeed=3" }, async (page) => {
    await trainTo(page, 20);
    await write(page);
    const before = await written(page);
    await page.locator("#written-text button.t").first().focus();
    for (let i = 0; i < 4; i++) await page.keyboard.press("ArrowRight");
    assert.equal(await page.evaluate(() => document.activeElement.dataset.index), "4");
    assert.equal(await page.locator("#card").isVisible(), true);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    const chosen = await page.evaluate(() => document.activeElement.firstChild.textContent);
    await page.keyboard.press("Enter");
    await page.locator('#written-text [data-index="16"]').waitFor();
    const after = await written(page);
    assert.deepEqual(after.slice(0, 4), before.slice(0, 4));
    assert.equal(`‘${after[4].replace("⏎\n", "⏎")}’`, chosen);
  }));

test("writing while it trains pauses it", () =>
  withPage({ query: "?maxTokens=5&steps=5000" }, async (page) => {
    await page.click("#go");
    await untilStep(page, 5);
    assert.equal(await page.locator("#write").innerText(), "Pause and write");
    await page.click("#write");
    await page.locator("#go", { hasText: "Go on" }).waitFor();
    await page.locator('#written-text [data-index="4"]').waitFor();
  }));

test("the sampling controls are in the address and reach the package", () =>
  withPage({}, async (page) => {
    await page.evaluate(async () => {
      const { Taipan } = await import("./taipan/index.js");
      const generate = Taipan.prototype.generate;
      Taipan.prototype.generate = function (prompt, options) {
        globalThis.asked = { ...options, signal: undefined };
        return generate.call(this, prompt, options);
      };
    });
    await page.locator("#talk-form summary").click();
    for (const [key, value] of [
      ["topK", 40],
      ["topP", 0.9],
      ["minP", 0.05],
      ["penalty", 1.2],
      ["talkSeed", 11],
      ["maxTokens", 6],
    ]) {
      await page.fill(`[data-setting="${key}"]`, String(value));
    }
    await page.locator('[data-setting="temperature"]').focus();
    await page.keyboard.press("ArrowRight");
    await write(page);
    const asked = await page.evaluate(() => globalThis.asked);
    const { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed } = asked;
    assert.deepEqual(
      { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed },
      {
        maxTokens: 6,
        temperature: 0.85,
        topK: 40,
        topP: 0.9,
        minP: 0.05,
        repetitionPenalty: 1.2,
        seed: 11,
      },
    );
    assert.match(await query(page), /topK=40/);
  }));

test("after more training, the same text goes on with the new weights", () =>
  withPage({ query: "?maxTokens=10&steps=400" }, async (page) => {
    await trainTo(page, 20);
    await write(page);
    const before = await written(page);
    await page.click("#step");
    await untilStep(page, 21);
    await page.click("#more");
    await page.locator('#written-text [data-index="19"]').waitFor();
    assert.deepEqual((await written(page)).slice(0, 10), before);
  }));
