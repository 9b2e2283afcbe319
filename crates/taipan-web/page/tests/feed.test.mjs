// Feed: every source, by pointer and by keyboard.
import assert from "node:assert/strict";
import { test } from "node:test";
import { query, withPage } from "./browser.mjs";

const facts = (page) => page.locator("#feed-facts").innerText();

test("the stories are chosen at first, and shown token by token", () =>
  withPage({}, async (page) => {
    assert.match(await facts(page), /Little stories\s+1\d\d kB, 1\d\d,\d+ tokens/);
    const tokens = await page.locator("#piece span").allTextContents();
    assert.equal(tokens.length, 600);
    assert.match(tokens.join(""), /^Nobody at the mill/);
  }));

test("sources are chosen with the arrow keys", () =>
  withPage({}, async (page) => {
    await page.locator('input[name="kind"][value="sample"]').focus();
    await page.keyboard.press("ArrowRight");
    assert.match(await facts(page), /No text yet/);
    assert.equal(await page.locator("#go").isDisabled(), true);
    await page.keyboard.press("ArrowRight");
    assert.match(await facts(page), /Selective copying/);
    await page.locator('input[name="task"]:checked').focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    assert.match(await facts(page), /Parity/);
    assert.match(await query(page), /feed=task&task=parity/);
  }));

test("pasted text is taken", () =>
  withPage({}, async (page) => {
    await page.locator('input[value="own"]').check();
    await page.fill("#paste", "über alles\nis a line");
    await page.locator("#feed-facts", { hasText: "Pasted text" }).waitFor();
    assert.match(await facts(page), /21 bytes, 21 tokens/);
    // ü is two bytes: the first shows a dot, the second the letter.
    assert.deepEqual((await page.locator("#piece span").allTextContents()).slice(0, 3), [
      "·",
      "ü",
      "b",
    ]);
  }));

test("files and folders are read in the order of their names; what is no text is left out", () =>
  withPage({}, async (page) => {
    await page.locator('input[value="own"]').check();
    const file = (name, buffer) => ({ name, mimeType: "text/plain", buffer });
    await page
      .locator("#files")
      .setInputFiles([
        file("b.txt", Buffer.from("second")),
        file("a.txt", Buffer.from("first")),
        file("c.bin.txt", Buffer.from([0xff, 0xfe, 0x80])),
      ]);
    await page.locator("#feed-facts", { hasText: "2 files" }).waitFor();
    assert.match(await page.locator("#notice-refused").innerText(), /c\.bin\.txt/);
    assert.match((await page.locator("#piece span").allTextContents()).join(""), /^first/);
  }));

test("a drop anywhere on the page is read", () =>
  withPage({}, async (page) => {
    await page.evaluate(() => {
      const data = new DataTransfer();
      data.items.add(new File(["dropped text of a file"], "drop.txt", { type: "text/plain" }));
      window.dispatchEvent(
        new DragEvent("dragover", { dataTransfer: data, bubbles: true, cancelable: true }),
      );
    });
    assert.equal(await page.locator("#veil").isVisible(), true);
    await page.evaluate(() => {
      const data = new DataTransfer();
      data.items.add(new File(["dropped text of a file"], "drop.txt", { type: "text/plain" }));
      window.dispatchEvent(
        new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }),
      );
    });
    await page.locator("#feed-facts", { hasText: "drop.txt" }).waitFor();
    assert.equal(await page.locator("#veil").isVisible(), false);
    assert.equal(await page.locator('input[value="own"]').isChecked(), true);
  }));

test("word pieces come from a tokenizer trained on the text", () =>
  withPage({}, async (page) => {
    await page.locator('input[value="bpe"]').check();
    await page.locator("#piece span", { hasText: "Nobo" }).first().waitFor();
    assert.equal(await page.locator("#vocab-field").isVisible(), true);
    assert.match(await query(page), /tokens=bpe/);
  }));
