// Train: the button, the numbers and the curve.
import { $, announce, format, perFrame, setIcon, setText } from "./dom.js";
import { Curve, nearest, sparkline } from "./curve.js";
import { smooth } from "./history.js";
import { tableBehind } from "./table.js";

const STAGES = {
  loading: () => "Getting ready …",
  compiling: (done, total) =>
    `Compiling programs for the graphics card: ${done} of ${total}. ` +
    "Only before the first step.",
  tokenizing: (done, total) => `Reading the text: ${format.percent(total ? done / total : 0)}`,
  saving: () => "Saving …",
};

export function train(session, settings, { film }) {
  const go = $("#go");
  go.addEventListener("click", () =>
    session.phase === "training" ? session.pause() : session.play(),
  );
  $("#step").addEventListener("click", () => session.stepOnce());
  $("#restart").addEventListener("click", () => session.restart());

  const curve = new Curve($("#loss-plot"), { onCursor: showCursor });
  for (const option of ["#smooth", "#log"]) $(option).addEventListener("change", () => update());
  film.onFrame = (step) => {
    curve.mark = step;
    curve.draw();
  };

  const lossTable = tableBehind("loss", () => {
    const history = session.run?.history;
    const accuracy = history?.held.accuracy.some((a) => a !== null);
    const columns = [
      "step",
      "loss, training",
      "loss, held out",
      ...(accuracy ? ["accuracy"] : []),
      "gradient norm",
      "tokens per second",
    ].map((name) => ({ name }));
    const rows = (history?.step ?? []).map((step, i) => {
      const at = history.held.step.indexOf(step);
      return [
        format.count(step),
        format.loss(history.loss[i]),
        at < 0 ? "" : format.loss(history.held.loss[at]),
        ...(accuracy ? [at < 0 ? "" : format.percent(history.held.accuracy[at])] : []),
        format.number(history.norm[i]),
        format.count(history.speed[i]),
      ];
    });
    return { columns, rows };
  });

  function showCursor(x) {
    const history = session.run?.history;
    const readout = $("#loss-readout");
    if (x === null || !history?.step.length) return void (readout.value = "");
    const i = nearest(history.step, x);
    const held = history.held.step.length ? nearest(history.held.step, x) : -1;
    const text =
      `step ${format.count(history.step[i])}: training ${format.loss(history.loss[i])}` +
      (held < 0
        ? ""
        : `, held out ${format.loss(history.held.loss[held])}` +
          ` (at step ${format.count(history.held.step[held])})`) +
      `, gradient norm ${format.number(history.norm[i])}`;
    readout.value = text;
    const plot = $("#loss-plot");
    plot.setAttribute("aria-valuenow", history.step[i]);
    plot.setAttribute("aria-valuetext", text);
  }

  const update = perFrame(() => {
    const { run, earlier } = session;
    const history = run?.history;
    const behind = earlier.map(({ step, loss }) => ({
      x: step,
      y: smooth(loss),
      colour: "old",
      width: 1.5,
    }));
    const lines = [...behind];
    if (history) {
      const smoothed = $("#smooth").checked;
      if (smoothed)
        lines.push({ x: history.step, y: history.loss, colour: "accent", alpha: 0.25, width: 1 });
      lines.push({
        x: history.step,
        y: smoothed ? smooth(history.loss) : history.loss,
        colour: "accent",
        width: 2.25,
        main: true,
        dots: history.step.length < 3,
      });
      lines.push({
        x: history.held.step,
        y: history.held.loss,
        colour: "held",
        width: 2,
        dash: [5, 3],
        dots: true,
        main: true,
      });
    }
    const reached = Math.max(...lines.map((line) => line.x.at(-1) ?? 0), 0);
    curve.set({ lines, log: $("#log").checked, xMax: Math.max(10, nice(reached * 1.05)) });
    $("#key-old").hidden = $("#key-old-text").hidden = !earlier.length;
    showNumbers(run);
    if (curve.cursor !== null) showCursor(curve.cursor);
    $("#loss-plot").setAttribute("aria-valuemax", reached);
    lossTable();
  });

  function showNumbers(run) {
    const history = run?.history;
    const total = run?.options.steps ?? settings.get("steps");
    const last = history?.last ?? 0;
    $("#stat-step").replaceChildren(format.count(last), small(` / ${format.count(total)}`));
    const recent = history?.speed.slice(-20) ?? [];
    const speed = recent.length ? recent.reduce((a, b) => a + b) / recent.length : 0;
    setText($("#stat-loss"), history?.loss.length ? format.loss(smooth(history.loss).at(-1)) : "–");
    const accuracy = history?.held.accuracy.at(-1) ?? null;
    setText($("#stat-held-name"), accuracy === null ? "loss, held out" : "held out, correct");
    setText(
      $("#stat-held"),
      accuracy !== null
        ? format.percent(accuracy)
        : history?.held.loss.length
          ? format.loss(history.held.loss.at(-1))
          : "–",
    );
    setText($("#stat-speed"), speed ? format.short(speed) : "–");
    setText($("#stat-norm"), history?.norm.length ? format.number(history.norm.at(-1)) : "–");
    setText(
      $("#stat-left"),
      session.phase === "done"
        ? "done"
        : speed && last < total
          ? format.time(((total - last) * perStep) / speed)
          : "–",
    );
    go.style.setProperty("--done", total ? last / total : 0);
    sparkline($("#spark-speed"), history?.speed ?? [], "edge");
    sparkline($("#spark-norm"), history?.norm ?? [], "edge");
    const { stepping } = session;
    document.title =
      stepping || session.phase === "paused"
        ? `${Math.floor((100 * last) / total)} %${stepping ? "" : " (paused)"} · taipan`
        : "taipan: train a language model in this tab";
  }

  function showPhase() {
    const { phase, corpus } = session;
    const training = phase === "training";
    go.classList.toggle("running", training);
    go.disabled = phase === "preparing" || phase === "pausing" || !corpus;
    setIcon(go, training ? "pause" : "play");
    setText(
      $("span", go),
      {
        idle: "Train",
        preparing: "One moment",
        training: "Pause",
        pausing: "Pausing",
        paused: "Go on",
        done: "Train anew",
        failed: "Train anew",
      }[phase],
    );
    $("#step").disabled = session.busy || !corpus;
    $("#restart").disabled = !session.run || phase === "preparing" || phase === "pausing";
    if (!session.busy) $("#progress").hidden = true;
    showSettings();
    if (phase === "done") announce("Training is done", { urgent: true });
    if (phase === "paused") announce("Training is paused", { urgent: true });
  }

  const KEYS = [
    "steps",
    "lr",
    "schedule",
    "warmup",
    "batch",
    "length",
    "decay",
    "clip",
    "seed",
    "dtype",
    "device",
    "sampleEvery",
    "prompt",
  ];
  function showSettings() {
    const count = settings.changed(KEYS).length;
    setText($("#settings-changed"), count ? `${count} changed` : "");
    const now = settings.snapshot();
    const then = session.run?.settings;
    $("#settings-note").hidden = !then || ![...KEYS, "size"].some((key) => now[key] !== then[key]);
    const field = $('[data-setting="prompt"]');
    field.placeholder = session.usualPrompt();
  }

  session.addEventListener("progress", ({ detail: { stage, done, total } }) => {
    const box = $("#progress");
    box.hidden = stage === "saving" && session.phase === "training";
    const text = STAGES[stage](done, total);
    setText($("#progress-text"), text);
    const bar = $("#progress-bar");
    if (total > 1) Object.assign(bar, { max: total, value: done });
    else bar.removeAttribute("value");
    announce(text);
  });
  let perStep = 0; // tokens
  session.addEventListener("step", ({ detail: step }) => {
    perStep = step.tokens;
    $("#progress").hidden = true;
    announce(`Step ${step.step} of ${session.run.options.steps}, loss ${format.loss(step.loss)}`);
    update();
  });
  for (const event of ["phase", "corpus"]) session.addEventListener(event, showPhase);
  for (const event of ["phase", "run"]) session.addEventListener(event, () => update());
  settings.addEventListener("change", () => {
    showSettings();
    update();
  });
  showPhase();
  update();
}

const small = (text) => Object.assign(document.createElement("small"), { textContent: text });

/** The next round number: an axis that grows in steps does not tremble. */
function nice(x) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, x)));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((m) => m * power).find((v) => v >= x) ?? x;
}
