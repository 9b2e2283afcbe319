// The doctor: rows as they come, a verdict, a report; what stops does not stop the rest.
import assert from "node:assert/strict";
import { test } from "node:test";
import { tableOf, withPage } from "./browser.mjs";

/** A stand-in for the module: three ops, of which `BAD` does what the test says. */
const MODULE = (bad = "", { checks = "" } = {}) => `
  export default async () => {};
  const row = (op, dtype, more) => ({ op, dtype, passed: true, runs: 4, value_ulp: 0.52,
    gradient_ulp: dtype === "f64" ? null : 1234, relative: 3.1e-8, failure: null, differs: false,
    ...more });
  export class Doctor {
    static async open(webgpu, quick) {
      return Object.assign(new Doctor(), { webgpu, quick });
    }
    ops() { return ["linear", "selective_scan", "softmax"]; }
    async examine(i) {
      const op = this.ops()[i];
      let more = {};
      if (i === 1) { ${bad} }
      return JSON.stringify([row(op, "f16"), row(op, "f32", more)]);
    }
    async checks() {
      ${checks}
      return JSON.stringify([{ name: "training", passed: true, found: "20 steps" }]);
    }
  }`;

/** In the worker, too. */
const ADAPTER = `
  Object.defineProperty(navigator, "gpu", { configurable: true, value: {
    requestAdapter: async () => ({ info: { vendor: "acme", architecture: "fast" } }) } });`;

const withDoctor = (module, use, options = {}) =>
  withPage(options, async (page) => {
    await page.context().route("**/doctor/doctor.js", (route) =>
      module === null ? route.fulfill({ status: 404 })
        : route.fulfill({ contentType: "text/javascript", body: ADAPTER + module }),
    );
    await page.locator("#doctor summary").click();
    await page.click("#examine");
    await use(page);
  });

const rowsOf = (page) => tableOf(page.locator("#doctor-table tbody tr"));
const verdict = async (page) => {
  await page.locator("#doctor-done").waitFor();
  return page.locator("#doctor-verdict").innerText();
};

test("every op has a row for each type, and what is right passes", () =>
  withDoctor(MODULE(), async (page) => {
    assert.match(await verdict(page), /^All 8 checks passed on WebGPU \(acme fast\), in /);
    assert.deepEqual(await rowsOf(page), [
      ["linear", "f16", "ok", "0.5", "1234", "3.1e-8"],
      ["", "f32", "ok", "0.5", "1234", "3.1e-8"],
      ["selective_scan", "f16", "ok", "0.5", "1234", "3.1e-8"],
      ["", "f32", "ok", "0.5", "1234", "3.1e-8"],
      ["softmax", "f16", "ok", "0.5", "1234", "3.1e-8"],
      ["", "f32", "ok", "0.5", "1234", "3.1e-8"],
    ]);
    assert.match(await page.locator("#doctor-checks").innerText(), /24 cases ran again[^]*20 steps/);
    assert.match(await page.locator("#live").innerText(), /^All 8 checks passed/);
    await page.click("#doctor-copy");
    await page.locator("#doctor-copied", { hasText: "Copied" }).waitFor();
    const report = await page.evaluate(() => navigator.clipboard.readText());
    assert.match(report, /^# taipan doctor: all 8 checks passed\n\nWebGPU \(acme fast\), in Mozilla/);
    assert.match(report, /\| selective_scan \| f32 \| 0\.5 \| 1234 \| 3\.1e-8 \| ok \|/);
  }));

test("a wrong op is named, with what was found", () => {
  const bad = 'more = { passed: false, failure: "selective_scan: found 1 | 2" };';
  return withDoctor(MODULE(bad), async (page) => {
    assert.match(await verdict(page), /^1 of 8 checks failed/);
    assert.match(await page.locator("#doctor-checks .failed").innerText(), /found 1 \| 2/);
    assert.equal((await rowsOf(page))[3][2], "FAILED");
    await page.click("#doctor-copy");
    await page.locator("#doctor-copied", { hasText: "Copied" }).waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /found 1 \\\| 2/);
  });
});

test("other bits in another run are no determinism", () =>
  withDoctor(MODULE("more = { passed: false, failure: 'bits', differs: true };"), async (page) => {
    assert.match(await verdict(page), /^2 of 8 checks failed/);
    assert.match(
      await page.locator("#doctor-checks").innerText(),
      /other bits in another run: selective_scan in f32/,
    );
  }));

test("an op that stops WebAssembly is a failure, and the rest is examined", () =>
  withDoctor(MODULE('throw new WebAssembly.RuntimeError("unreachable");'), async (page) => {
    assert.match(await verdict(page), /^1 of 7 checks failed/);
    const rows = await rowsOf(page);
    assert.deepEqual(rows[2], ["selective_scan", "", "FAILED", "NaN", "–", "NaN"]);
    assert.equal(rows.at(-2)[0], "softmax");
    assert.match(await page.locator("#doctor-checks .failed").innerText(), /stopped: unreachable/);
  }));

test("checks that stop are a failure", () =>
  withDoctor(MODULE("", { checks: 'throw new Error("lost");' }), async (page) => {
    assert.match(await verdict(page), /^1 of 8 checks failed/);
    assert.match(await page.locator("#doctor-checks .failed").innerText(), /stopped: lost/);
  }));

test("without WebGPU the CPU is examined; all cases, if asked for", () =>
  withDoctor(
    MODULE(),
    async (page) => {
      assert.match(await verdict(page), /passed on CPU/);
    },
    { gpu: false, fake: { cpu: true } },
  ));

test("it can be stopped and begun again, by keyboard, and shows how far it is", () =>
  withDoctor(MODULE("if (this.quick) await new Promise(() => {});"), async (page) => {
    await page.locator("#doctor-progress label", { hasText: "selective_scan: 2 of 3" }).waitFor();
    assert.equal((await rowsOf(page)).length, 2);
    await page.locator("#examine").focus();
    await page.keyboard.press("Enter");
    await page.locator("#examine", { hasText: "Examine this device" }).waitFor();
    assert.equal(await page.locator("#doctor-progress").isVisible(), false);
    await page.keyboard.press("Tab");
    await page.keyboard.press("Space");
    assert.equal(await page.locator("#doctor-quick").isChecked(), false);
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("Enter");
    assert.match(await verdict(page), /^All 8 checks passed/);
    assert.equal((await rowsOf(page)).length, 6);
  }));
