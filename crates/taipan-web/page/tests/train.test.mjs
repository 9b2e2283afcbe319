// Train and its film.
import assert from "node:assert/strict";
import { test } from "node:test";
import { query, setFake, stepOf, tableRows, trainTo, untilStep, withPage } from "./browser.mjs";

test("play, pause, single step, restart", () =>
  withPage({ query: "?steps=300" }, async (page) => {
    await trainTo(page, 40);
    const paused = await stepOf(page);
    await page.waitForTimeout(100);
    assert.equal(await stepOf(page), paused, "nothing runs while paused");
    await page.click("#step");
    await untilStep(page, paused + 1);
    assert.equal(await stepOf(page), paused + 1);
    assert.equal(await page.locator("#key-old-text").isVisible(), false);
    await page.click("#restart");
    await untilStep(page, 0);
    await page.locator("#go", { hasText: "Train" }).waitFor();
    assert.equal(
      await page.locator("#key-old-text").isVisible(),
      true,
      "the earlier run stays, grey",
    );
  }));

test("the same by keyboard alone", () =>
  withPage({ query: "?steps=200" }, async (page) => {
    await setFake(page, "slowFrom", 20);
    await page.locator("#go").focus();
    await page.keyboard.press("Enter");
    await untilStep(page, 20);
    await page.keyboard.press("Enter");
    await page.locator("#go", { hasText: "Go on" }).waitFor();
    const paused = await stepOf(page);
    await page.keyboard.press("Tab");
    await page.keyboard.press("Space");
    await untilStep(page, paused + 1);
    assert.equal(await stepOf(page), paused + 1);
  }));

test("compiling says how many of how many", () =>
  withPage({ fake: { holdAt: 12 } }, async (page) => {
    await page.click("#go");
    await page.locator("#progress-text", { hasText: ": 12 of 48" }).waitFor();
    assert.equal(await page.locator("#progress-bar").getAttribute("max"), "48");
    await setFake(page, "holdAt", undefined);
    await untilStep(page, 1);
    assert.equal(await page.locator("#progress").isVisible(), false);
  }));

test("a run ends by itself, and trains anew behind its own curve", () =>
  withPage({ query: "?steps=30" }, async (page) => {
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    assert.equal(await stepOf(page), 30);
    assert.equal(await page.locator("#stat-left").innerText(), "done");
    await page.click("#go");
    await page.locator("#key-old-text").waitFor();
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    assert.equal(await stepOf(page), 30);
  }));

test("the curve's cursor, by pointer and keys, agrees with the table", () =>
  withPage({ query: "?steps=60" }, async (page) => {
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    const rows = await tableRows(page, "loss");
    assert.equal(rows.length, 60);
    const agrees = async () => {
      const said = await page.locator("#loss-readout").innerText();
      const [, step, loss, held, norm] = said.match(
        /^step (\d+): training (\S+?)(?:, held out (\S+) \(at step \d+\))?, gradient norm (.+)$/,
      );
      const row = rows[step - 1];
      assert.deepEqual([row[0], row[1], row[3]], [step, loss, norm]);
      if (row[2]) assert.equal(row[2], held);
      return Number(step);
    };
    const box = await page.locator("#loss-plot").boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + 40);
    const hovered = await agrees();
    assert.ok(hovered > 20 && hovered < 40, `the middle of the axis is step ${hovered}`);
    await page.mouse.move(0, 0);
    await page.locator("#loss-plot").focus();
    await page.keyboard.press("Home");
    assert.equal(await agrees(), 1);
    await page.keyboard.press("ArrowRight");
    assert.equal(await agrees(), 2);
    assert.match(await page.locator("#loss-plot").getAttribute("aria-valuetext"), /^step 2:/);
  }));

test("smoothing and the log scale change the picture", () =>
  withPage({ query: "?steps=80" }, async (page) => {
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    const picture = async () => {
      await page.evaluate(
        () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
      );
      return page.locator("#loss").evaluate((canvas) => canvas.toDataURL());
    };
    const smoothed = await picture();
    await page.locator("#smooth").uncheck();
    const raw = await picture();
    await page.locator("#log").check();
    const log = await picture();
    assert.equal(new Set([smoothed, raw, log]).size, 3);
  }));

test("a size has estimates from a probe", () =>
  withPage({}, async (page) => {
    await page.locator("#est-time", { hasText: "about" }).waitFor();
    const tiny = await page.locator("#estimate").innerText();
    await page.locator("#size").focus();
    await page.keyboard.press("ArrowRight");
    await page.locator("#est-params", { hasText: "M" }).waitFor();
    await page.locator("#est-time", { hasText: "about" }).waitFor();
    assert.notEqual(await page.locator("#estimate").innerText(), tiny);
    assert.match(await query(page), /size=small/);
  }));

test("a task shows how much is correct", () =>
  withPage({ query: "?feed=task&steps=120" }, async (page) => {
    await trainTo(page, 60);
    assert.match(await page.locator("#stat-held").innerText(), /%/);
    const rows = await tableRows(page, "loss");
    assert.ok(rows.some((row) => /%/.test(row[3])));
  }));

test("the film follows, scrubs and plays", () =>
  withPage({ query: "?steps=80&sampleEvery=10" }, async (page) => {
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    const caption = () => page.locator("#film-caption").innerText();
    assert.equal(await caption(), "step 80, frame 9 of 9");
    const last = await page.locator("#film-frame").innerText();
    await page.locator("#film-at").focus();
    await page.keyboard.press("Home");
    await page.locator("#film-caption", { hasText: "step 1, frame 1 of 9" }).waitFor();
    assert.notEqual(await page.locator("#film-frame").innerText(), last);
    const frames = await tableRows(page, "film");
    assert.equal(frames.length, 9);
    assert.equal(
      frames[0][1].replace(/\s+/g, " "),
      (await page.locator("#film-frame").innerText()).replace(/\s+/g, " "),
    );
    await page.click("#film-play");
    await page.locator("#film-caption", { hasText: "frame 9 of 9" }).waitFor();
  }));
