// What outlives a click: address, files, runs that are kept, colours.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { origin, query, stepOf, tableRows, trainTo, untilStep, withPage } from "./browser.mjs";

test("the address restores the settings", () =>
  withPage(
    { query: "?size=small&lr=0.004&steps=77&schedule=wsd&temperature=1.2&feed=task&task=parity" },
    async (page) => {
      const value = (key) => page.locator(`[data-setting="${key}"]`).inputValue();
      assert.deepEqual(await Promise.all(["lr", "steps", "schedule", "temperature"].map(value)), [
        "0.004",
        "77",
        "wsd",
        "1.2",
      ]);
      assert.equal(await page.locator("#size").getAttribute("aria-valuetext"), "small");
      assert.equal(await page.locator('input[value="parity"]').isChecked(), true);
    },
  ));

test("what is wrong in an address is left out", () =>
  withPage({ query: "?lr=fast&size=giant&steps=-5&batch=&what=ever" }, async (page) => {
    assert.equal(await page.locator('[data-setting="lr"]').inputValue(), "");
    assert.equal(await page.locator('[data-setting="lr"]').getAttribute("placeholder"), "0.003");
    assert.equal(await page.locator("#size").getAttribute("aria-valuetext"), "tiny");
    assert.equal(await page.locator('[data-setting="steps"]').inputValue(), "");
  }));

test("settings are written to the address, and the link is copied", () =>
  withPage({}, async (page) => {
    await page.locator("#settings summary").click();
    await page.fill('[data-setting="lr"]', "0.01");
    await page.selectOption('[data-setting="schedule"]', "constant");
    assert.equal(await query(page), "?lr=0.01&schedule=constant");
    assert.equal(await page.locator("#settings-changed").innerText(), "2 changed");
    await page.click("#share");
    await page.locator("#notice-share").waitFor();
    const [copied, link] = await page.evaluate(async () => [
      await navigator.clipboard.readText(),
      location.href,
    ]);
    assert.equal(copied, link);
    await page.fill('[data-setting="lr"]', "");
    assert.equal(await query(page), "?schedule=constant");
  }));

test("a model is saved as one zip or three files, and opened again", () =>
  withPage({ query: "?steps=50" }, async (page) => {
    assert.equal(await page.locator("#save").isDisabled(), true);
    await trainTo(page, 10);
    await page.locator("#save").focus();
    await page.keyboard.press("Enter");
    const [zip] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
    assert.match(zip.suggestedFilename(), /^little-stories-.*\.zip$/);
    assert.equal((await readFile(await zip.path())).length, 64);
    const names = [];
    const all = new Promise((done) =>
      page.on("download", (file) => names.push(file.suggestedFilename()) === 3 && done()),
    );
    await page.click("#save");
    await page.click('[data-save="files"]');
    await all;
    assert.deepEqual(names.sort(), ["config.json", "model.safetensors", "tokenizer.json"]);

    await page
      .locator("#open-files")
      .setInputFiles({ name: "other.zip", mimeType: "application/zip", buffer: Buffer.alloc(8) });
    await page.locator("#notice-opened", { hasText: "other is open" }).waitFor();
    assert.match(await page.locator("#opened").innerText(), /other, opened: 467 k parameters/);
    assert.equal(await page.locator("#size-block").isVisible(), false);
    await trainTo(page, 5);
    await page.getByRole("button", { name: "Close it" }).click();
    await page.locator("#size-block").waitFor();
  }));

test("what is no model is refused in words", () =>
  withPage({}, async (page) => {
    await page
      .locator("#open-files")
      .setInputFiles({ name: "config.json", mimeType: "text/plain", buffer: Buffer.from("{}") });
    await page.locator("#notice-opened.bad").waitFor();
    assert.match(await page.locator("#notice-opened").innerText(), /expected model.safetensors/);
    assert.equal(await page.locator("#go").isEnabled(), true);
  }));

test("a model named in the address is opened", () =>
  withPage({ query: "?model=/model/" }, async (page) => {
    await page.locator("#notice-opened", { hasText: "model is open" }).waitFor();
  }));

test("after a reload the run is offered, goes on where it was saved, with its curve and film", () =>
  withPage({ query: "?steps=100&lr=0.002" }, async (page) => {
    await trainTo(page, 42);
    const before = await tableRows(page, "loss");
    await page.goto(origin());
    await page.locator("#notice-resume").waitFor();
    assert.match(await page.locator("#notice-resume").innerText(), /reached step \d+/);
    const saved = Number((await page.locator("#notice-resume").innerText()).match(/step (\d+)/)[1]);
    assert.equal(saved % 5, 0);
    await page.getByRole("button", { name: "Go on with it" }).click();
    await page.locator("#go", { hasText: "Go on" }).waitFor();
    assert.equal(await stepOf(page), saved);
    assert.equal(await query(page), "?steps=100&lr=0.002", "settings are back, too");
    assert.match(await page.locator("#film-caption").innerText(), /frame \d+ of \d+/);
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    assert.equal(await stepOf(page), 100);
    const after = await tableRows(page, "loss");
    const losses = (rows) => rows.slice(0, before.length).map((row) => row.slice(0, 2));
    assert.deepEqual(losses(after), losses(before));
  }));

test("kept runs can be removed", () =>
  withPage({ query: "?steps=20" }, async (page) => {
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    await page.locator("#kept summary").click();
    await page.getByRole("button", { name: /^Remove little-stories/ }).click();
    await page.locator("#runs", { hasText: "None yet" }).waitFor();
  }));

test("colours: as the system, dark, light; the choice is kept", () =>
  withPage({ scheme: "light" }, async (page) => {
    const paper = () =>
      page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const light = await paper();
    await page.click("#theme");
    const dark = await paper();
    assert.notEqual(dark, light);
    await page.reload();
    assert.equal(await paper(), dark);
    assert.equal(await page.locator("#theme").getAttribute("aria-label"), "Colours: dark");
    await page.click("#theme");
    assert.equal(await paper(), light);
  }));

test("earlier settings take effect with Restart", () =>
  withPage({ query: "?steps=500" }, async (page) => {
    await trainTo(page, 5);
    await page.locator("#settings summary").click();
    await page.fill('[data-setting="steps"]', "9");
    await page.locator("#settings-note").waitFor();
    await page.click("#restart");
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    await untilStep(page, 9);
    assert.equal(await stepOf(page), 9);
  }));
