// The doctor: whether this device computes what it should. Its WebAssembly is as large as the
// package's, and is loaded when the button is pressed.
import { $, announce, el, format, setText } from "./dom.js";
import { missingWebGpu, notice } from "./notices.js";

const COLUMNS = ["op", "dtype", "value, ulp", "gradient, ulp", "relative", "result"];
const word = (passed) => (passed ? "ok" : "FAILED");
const ulps = (x) =>
  x === null ? "–" : x < 100 ? x.toFixed(1) : x < 1e5 ? x.toFixed(0) : x.toExponential(0);

/** A row of the table; the op is named once. */
const cells = (row, first) => [
  first ? row.op : "",
  row.dtype,
  ulps(row.value_ulp),
  ulps(row.gradient_ulp),
  row.relative.toExponential(1),
  word(row.passed),
];

/** What `taipan doctor` calls determinism. */
function determinism(rows) {
  const different = rows.filter((row) => row.differs).map((row) => `${row.op} in ${row.dtype}`);
  const runs = rows.reduce((sum, row) => sum + row.runs, 0);
  const found = different.length
    ? `other bits in another run: ${different.join(", ")}`
    : `the same bits when ${format.count(runs)} cases ran again`;
  return { name: "determinism", passed: !different.length, found };
}

/** One examination, in a worker that is replaced by another one if a check stops it. */
class Examination {
  device = "";
  rows = [];
  checks = [];
  ops = [];
  at = 0;
  began = performance.now();
  #worker = null;
  #options;
  #show;

  constructor(options, show) {
    this.#options = options;
    this.#show = show;
    this.#work();
  }

  #work() {
    this.#worker = new Worker("doctor-worker.js", { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#hear(data);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#hear({ error: event.message ?? "its script could not be loaded" });
    };
    this.#worker.postMessage({ ...this.#options, from: this.at });
  }

  #hear({ opened, rows, checks, error }) {
    if (opened) [this.device, this.ops] = [opened.device, opened.ops];
    if (rows) {
      this.rows.push(...rows);
      this.at += 1;
    }
    if (error !== undefined) return this.#fail(error);
    if (checks) return this.#end(checks);
    return this.#show(this);
  }

  #fail(error) {
    this.stop();
    // Before anything was examined there is nothing to go on with.
    if (!this.ops.length) return this.#show(this, error);
    if (this.at >= this.ops.length) {
      return this.#end([{ name: "other checks", passed: false, found: `stopped: ${error}` }]);
    }
    const row = { op: this.ops[this.at], dtype: "", passed: false, runs: 0, value_ulp: NaN };
    this.rows.push({ ...row, gradient_ulp: null, relative: NaN, failure: `stopped: ${error}` });
    this.at += 1;
    this.#work();
    return this.#show(this);
  }

  #end(checks) {
    this.stop();
    this.checks = [determinism(this.rows), ...checks];
    this.seconds = (performance.now() - this.began) / 1000;
    return this.#show(this);
  }

  stop() {
    this.#worker.terminate();
  }

  get failures() {
    return [...this.rows, ...this.checks].filter(({ passed }) => !passed);
  }

  get verdict() {
    const [all, failed] = [this.rows.length + this.checks.length, this.failures.length];
    return failed ? `${failed} of ${all} checks failed` : `all ${all} checks passed`;
  }

  /** A page of Markdown, as `taipan doctor --markdown` prints one. */
  get report() {
    const cell = (text) => text.replaceAll("|", "\\|").replaceAll("\n", " ");
    const line = (texts) => `| ${texts.map(cell).join(" | ")} |\n`;
    const rows = this.rows.map((row) => line(cells(row, true)));
    const checks = this.checks.map(({ name, passed, found }) => line([name, word(passed), found]));
    const failures = this.rows.filter((row) => row.failure);
    return [
      `# taipan doctor: ${this.verdict}\n\n`,
      `${this.device}, in ${navigator.userAgent}, ${this.seconds.toFixed(0)} s\n\n`,
      line(["check", "result", "found"]) + "|---|---|---|\n",
      ...checks,
      "\nWorst errors against f64, in units in the last place and relative.\n\n",
      line(COLUMNS) + "|---|---|---:|---:|---:|---|\n",
      ...rows,
      ...failures.map(({ failure }) => `\n- ${cell(failure)}\n`),
    ].join("");
  }
}

export function doctor() {
  const [button, body] = [$("#examine"), $("#doctor-rows")];
  let examination = null;
  let shown = 0;

  const running = (is) => {
    setText($("span", button), is ? "Stop" : "Examine this device");
    $("use", button).setAttribute("href", `icons.svg#${is ? "stop" : "check"}`);
    $("#doctor-quick").disabled = is;
    $("#doctor-progress").hidden = !is;
    $("#doctor-result").setAttribute("aria-busy", String(is));
  };

  const addRows = ({ rows }) => {
    for (const row of rows.slice(shown)) {
      const [op, dtype, ...errors] = cells(row, rows[shown - 1]?.op !== row.op);
      // The result is seen first on a narrow screen.
      const result = errors.pop();
      body.append(
        el(
          "tr",
          { className: row.passed ? "" : "failed" },
          el("th", { scope: "row" }, op),
          ...[dtype, result].map((text) => el("td", { className: "word" }, text)),
          ...errors.map((text) => el("td", {}, text)),
        ),
      );
      shown += 1;
    }
    $("#doctor-table").hidden = !shown;
  };

  const show = (found, error) => {
    if (found !== examination) return;
    addRows(found);
    const { at, ops, checks, failures, device } = found;
    if (error !== undefined) {
      running(false);
      examination = null;
      notice({
        id: "doctor",
        tone: "bad",
        title: "This device could not be examined.",
        text: error,
      });
      return;
    }
    const next = at < ops.length ? ops[at] : "training and functions";
    setText($("#doctor-progress label"), ops.length
      ? `${next}: ${Math.min(at + 1, ops.length)} of ${ops.length}` : "loading");
    const bar = $("#doctor-progress progress");
    [bar.max, bar.value] = [Math.max(ops.length, 1), at];
    if (!checks.length) return;
    running(false);
    const bad = failures.length > 0;
    const text = `${found.verdict[0].toUpperCase()}${found.verdict.slice(1)} on ${device}, in ${
      format.time(found.seconds)}.`;
    $("#doctor-verdict").className = `verdict ${bad ? "bad" : "good"}`;
    setText($("#doctor-verdict"), text);
    $("#doctor-checks").replaceChildren(
      ...checks.map(({ name, passed, found }) =>
        el("div", { className: passed ? "" : "failed" }, el("dt", {}, name),
          el("dd", {}, el("b", {}, word(passed)), found)),
      ),
      ...found.rows.filter((row) => row.failure).map(({ op, dtype, failure }) =>
        el("div", { className: "failed" }, el("dt", {}, `${op} ${dtype}`),
          el("dd", {}, el("b", {}, word(false)), failure)),
      ),
    );
    $("#doctor-done").hidden = false;
    announce(text, { urgent: true });
  };

  const begin = async () => {
    body.replaceChildren();
    shown = 0;
    for (const id of ["done", "table"]) $(`#doctor-${id}`).hidden = true;
    running(true);
    const webgpu = (await missingWebGpu()) === null;
    const options = { webgpu, quick: $("#doctor-quick").checked };
    examination = new Examination(options, (...all) => show(...all));
    show(examination);
  };

  button.addEventListener("click", () => {
    if (examination && !examination.checks.length) {
      examination.stop();
      examination = null;
      running(false);
      return;
    }
    begin();
  });
  $("#doctor-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(examination.report);
      setText($("#doctor-copied"), "Copied.");
    } catch (error) {
      setText($("#doctor-copied"), `The browser does not allow it: ${error.message}`);
    }
  });
}
