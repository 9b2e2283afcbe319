// How it looks: axe-core finds nothing serious and nothing overflows, in both schemes and three
// widths; screenshots of every main state go to tests/screenshots.
import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { require, setFake, shoot, trainTo, untilStep, withPage } from "./browser.mjs";

const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

async function check(page, name) {
  await page.evaluate(axe);
  // Rows of a table are alike: thousands of cells would take most of the time.
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(
      { exclude: ["tbody tr:nth-child(n + 9)"] },
      {
        runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
        resultTypes: ["violations"],
      },
    ),
  );
  const bad = violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map((n) => n.html.slice(0, 120)).join(" ; ")}`);
  assert.deepEqual(bad, [], name);
  await picture(page, name);
}

/** Nothing overflows; for a state of which another one that is checked has everything. */
async function picture(page, name) {
  const over = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(over[0] <= over[1], `${name} is ${over[0]} wide in a window of ${over[1]}`);
  await shoot(page, name);
}

/** A stand-in for the doctor's module: many ops, one of them wrong. */
const DOCTOR = `
  Object.defineProperty(navigator, "gpu", { configurable: true, value: {
    requestAdapter: async () => ({ info: { vendor: "google", architecture: "swiftshader" } }) } });
  const OPS = "linear selective_scan ssd causal_attention rope rotate causal_conv1d rms_norm".split(" ");
  const ROW = { passed: true, runs: 8, value_ulp: 0.52, gradient_ulp: 1.83, relative: 6.2e-8,
    failure: null, differs: false };
  const WRONG = { passed: false, gradient_ulp: 20301, relative: 2.4e-3, failure: "ssd 2 heads on gpu " +
    "in f32: gradient 3 at [0, 4]: found 1.03e-1, expected 1.01e-1, off by 2e-3, tolerance 4e-5" };
  export default async () => {};
  export class Doctor {
    static async open() { return new Doctor(); }
    ops() { return OPS; }
    async examine(i) {
      return JSON.stringify(["f16", "f32"].map((dtype) => ({ op: OPS[i], dtype, ...ROW,
        ...(i === 2 && dtype === "f32" ? WRONG : {}) })));
    }
    async checks() {
      return JSON.stringify([
        { name: "memory", passed: true, found: "0.0 MB in use after all ops, at most 38.2 MB before" },
        { name: "training", passed: true, found: "20 steps, loss 4.1540 to 0.1243, off by 3e-6" },
      ]);
    }
  }`;

/** Trained, with an earlier run, a text with a fork, and all views. */
async function full(page) {
  await trainTo(page, 60);
  await page.click("#restart");
  await trainTo(page, 130);
  await page.click("#write");
  await page.locator("#stop").waitFor({ state: "hidden" });
  await page.click('#written-text [data-index="30"]');
  await page.locator("#stop").waitFor({ state: "hidden" });
  await page.click("#look-now");
  await page.locator("#look-caption", { hasText: "128 tokens" }).waitFor();
}

for (const scheme of ["light", "dark"]) {
  for (const width of [360, 768, 1440]) {
    const where = `${width}-${scheme}`;
    test(`at the start, ${where}`, () =>
      withPage({ width, scheme }, async (page) => {
        await page.locator("#est-time", { hasText: "about" }).waitFor();
        await check(page, `start-${where}`);
      }));
    test(`trained, talking, looking, ${where}`, () =>
      withPage({ width, scheme, query: "?steps=300&maxTokens=160" }, async (page) => {
        await full(page);
        await picture(page, `full-${where}`);
        await page.context().route("**/doctor/doctor.js", (route) =>
          route.fulfill({ contentType: "text/javascript", body: DOCTOR }),
        );
        for (const summary of await page.locator("summary").all()) await summary.click();
        await page.click("#examine");
        await page.locator("#doctor-done").waitFor();
        await page.locator('[data-table="reach"] table').waitFor();
        await check(page, `unfolded-${where}`);
      }));
    test(`while it trains, with a card and notices, ${where}`, () =>
      withPage(
        {
          width,
          scheme,
          gpu: false,
          query: "?steps=300&feed=task",
          fake: {
            cpu: true,
            holdAt: 20,
            faults: [{ kind: "notFinite", at: 60, message: "scan: h is NaN at step 60" }],
          },
        },
        async (page) => {
          await page.click("#go");
          await page.locator("#progress-text", { hasText: ": 20 of 48" }).waitFor();
          await check(page, `compiling-${where}`);
          await setFake(page, "holdAt", undefined);
          await page.locator("#notice-finite").waitFor();
          await check(page, `notices-${where}`);
        },
      ));
  }
}

test("your own text, word pieces, a token's card", () =>
  withPage({ width: 1440, query: "?feed=own&tokens=bpe&maxTokens=40&steps=9999" }, async (page) => {
    await page.fill(
      "#paste",
      "A text of my own, which is long enough to learn a little from. ".repeat(20),
    );
    await page.locator("#piece span").first().waitFor();
    await page.click("#go");
    await untilStep(page, 30);
    await page.click("#write");
    await page.locator("#go", { hasText: "Go on" }).waitFor();
    await page.locator('#written-text [data-index="39"]').waitFor();
    await page.hover('#written-text [data-index="12"]');
    await check(page, "own-1440-light");
  }));

test("focus is visible on everything that takes it", () =>
  withPage({}, async (page) => {
    await trainTo(page, 30);
    await page.locator("body").focus();
    const seen = new Set();
    for (let i = 0; i < 120; i++) {
      await page.keyboard.press("Tab");
      const [key, visible] = await page.evaluate(() => {
        const at = document.activeElement;
        // A radio button of segments is invisible itself; the label's text shows the focus.
        const shown = at.closest(".segments") ? at.nextElementSibling : at;
        const { outlineStyle, outlineWidth } = getComputedStyle(shown);
        return [
          at.id || at.dataset.setting || at.textContent.slice(0, 20),
          at === document.body || (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2),
        ];
      });
      assert.ok(visible, `${key} shows its focus`);
      seen.add(key);
    }
    for (const id of [
      "go",
      "step",
      "restart",
      "size",
      "loss-plot",
      "film-at",
      "write",
      "look-now",
      "norm",
      "attention",
      "theme",
    ])
      assert.ok(seen.has(id), `${id} is reached by Tab`);
  }));

test("with reduced motion nothing moves by itself", () =>
  withPage({ motion: "reduce" }, async (page) => {
    const moving = await page.evaluate(
      () =>
        [...document.querySelectorAll("*")].filter((node) => {
          const { transitionDuration, animationName } = getComputedStyle(node);
          return (
            animationName !== "none" || transitionDuration.split(",").some((d) => parseFloat(d) > 0)
          );
        }).length,
    );
    assert.equal(moving, 0);
  }));

test("the script of the page is at most 45 kB gzipped", async (t) => {
  const root = new URL("..", import.meta.url);
  const files = (await readdir(root)).filter((name) => name.endsWith(".js"));
  let total = 0;
  for (const name of files)
    total += gzipSync(await readFile(new URL(name, root)), { level: 9 }).length;
  t.diagnostic(`${total} bytes in ${files.length} files`);
  assert.ok(total <= 45_000, `${total} bytes`);
});

test("what it asks the network for is its own", () =>
  withPage({ query: "?steps=20" }, async (page) => {
    const asked = [];
    page.on("request", (request) => asked.push(new URL(request.url())));
    await page.reload();
    await page.click("#go");
    await page.locator("#go", { hasText: "Train anew" }).waitFor();
    assert.ok(asked.length > 10);
    assert.deepEqual(
      asked.filter(
        ({ protocol, origin }) => protocol === "http:" && origin !== new URL(page.url()).origin,
      ),
      [],
    );
  }));
