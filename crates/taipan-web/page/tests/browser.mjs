// A Chromium with the page in it, on the fake package. Every page must leave the console empty.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before } from "node:test";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { serve } from "./server.mjs";

/** Packages of npm: those of a directory with node_modules, or of this one. */
export const require = createRequire(
  process.env.TAIPAN_NPM ? join(process.env.TAIPAN_NPM, "package.json") : import.meta.url,
);
const { chromium } = require("playwright-core");

const ARGS = [
  "--headless=new",
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

let browser;
let server;
before(async () => {
  server = await serve({ fake: true });
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ARGS });
});
after(async () => {
  await browser.close();
  server.close();
});

export const origin = () => server.url;

/**
 * Runs `use(page)` on a fresh profile. `fake` configures the fake package, `query` the address.
 * Afterwards no warning, error or exception may have been seen.
 */
export async function withPage(
  {
    query = "",
    width = 1440,
    scheme = "light",
    fake = {},
    gpu = true,
    motion = "reduce",
    agent,
  } = {},
  use,
) {
  const context = await browser.newContext({
    viewport: { width, height: width < 700 ? 780 : 900 },
    colorScheme: scheme,
    reducedMotion: motion,
    acceptDownloads: true,
    userAgent: agent,
    permissions: ["clipboard-read", "clipboard-write"],
  });
  const said = [];
  try {
    await context.addInitScript(
      ({ fake, gpu }) => {
        globalThis.fake = fake;
        const value = gpu ? { requestAdapter: async () => ({}) } : undefined;
        Object.defineProperty(navigator, "gpu", { value, configurable: true });
      },
      { fake: { stepMs: 2, tokenMs: 1, compileMs: 0, ...fake }, gpu },
    );
    const page = await context.newPage();
    page.setDefaultTimeout(60_000);
    page.on("console", (m) => ["error", "warning"].includes(m.type()) && said.push(m.text()));
    page.on("pageerror", (error) => said.push(error.stack));
    await page.goto(origin() + query);
    // Until there is a text, or it is the user's turn to give one.
    await page.locator("#go:enabled, #feed-facts:has-text('No text')").first().waitFor();
    await use(page);
    assert.deepEqual(said, [], "the console is empty");
  } finally {
    await context.close();
  }
}

/** Sets an option of the fake package; undefined removes it. */
export const setFake = (page, name, value) =>
  page.evaluate(([name, value]) => (globalThis.fake[name] = value), [name, value]);

/** Trains until `step` or a little more, then pauses. */
export async function trainTo(page, step) {
  await setFake(page, "slowFrom", step);
  await page.click("#go");
  await untilStep(page, step);
  await page.click("#go");
  await page.locator("#go", { hasText: "Go on" }).waitFor();
  await setFake(page, "slowFrom", undefined);
}

/** The query of the address, as the page has it now. */
export const query = (page) => page.evaluate(() => location.search);

export const stepOf = (page) =>
  page
    .locator("#stat-step")
    .evaluate((node) => Number(node.firstChild.textContent.replace(/,/g, "")));

export async function untilStep(page, step) {
  await page.waitForFunction(
    (wanted) =>
      Number(document.querySelector("#stat-step").firstChild.textContent.replace(/,/g, "")) >=
      wanted,
    step,
  );
}

const SHOTS = fileURLToPath(new URL("screenshots/", import.meta.url));
export async function shoot(page, name) {
  mkdirSync(SHOTS, { recursive: true });
  await page.evaluate(() => scrollTo({ top: 0, behavior: "instant" }));
  await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
}

/** The rows of the table behind a chart, as strings. */
export async function tableRows(page, name) {
  const details = page.locator(`[data-table="${name}"]`);
  if ((await details.getAttribute("open")) === null) await details.locator("summary").click();
  await details.locator("table").waitFor();
  return tableOf(details.locator("tbody tr"));
}

/** The cells of rows, as strings. */
export const tableOf = (rows) =>
  rows.evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
