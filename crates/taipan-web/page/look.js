// Look: what only a state-space model can show, from one inspection of a short text.
import { $, el, format, perFrame, quoted, setText, visible } from "./dom.js";
import { Curve } from "./curve.js";
import { Heat } from "./heat.js";
import { tableBehind } from "./table.js";

const TOKENS = 128;
/** Of the training time, what looking may take. */
const SHARE = 0.1;

export function look(session, settings) {
  let seen = null; // the last Inspection
  let seenAt = ""; // the step it shows
  let lane = "Channel"; // what has a step size of its own
  let layer = 0;
  let channel = 0; // 0 for all, otherwise 1 + its index
  let attention = null; // of `layer`, [tokens, tokens]
  let deltas = null; // of `layer` by channel, [tokens, channels]
  let spent = 0; // seconds of inspection during training
  let last = 0; // of these, the last one's
  let looking = false;

  const usualText = () => (session.corpus?.head ?? "").slice(0, TOKENS);
  const text = () => $("#look-text").value || usualText();

  const heatNorm = new Heat($("#norm"), {
    label: "Norm of the state, layers by tokens",
    onCell: (row, col) => {
      light(col);
      $("#norm-readout").value =
        row === null
          ? ""
          : attends(row)
            ? `layer ${row + 1} is attention: it has no state`
            : `layer ${row + 1} after ${name(col)}: ${format.number(
                seen.stateNorm[row * seen.tokens.length + col],
              )}`;
    },
  });
  const heatAttention = new Heat($("#attention"), {
    label: "Hidden attention, tokens by earlier tokens",
    onCell: (row, col) => {
      light(row, col);
      $("#attention-readout").value =
        row === null
          ? ""
          : `${name(row)} draws on ${name(col)}${
              row === col ? " (itself)" : `, ${row - col} back`
            }: ${format.number(attention[row * seen.tokens.length + col])}`;
    },
  });
  const reach = new Curve($("#reach-plot"), {
    onCursor: (x) => {
      const back = x === null ? null : Math.round(x);
      light(back === null ? null : seen.tokens.length - 1 - back);
      $("#reach-readout").value =
        back === null
          ? ""
          : `${back} tokens back, ${name(
              seen.tokens.length - 1 - back,
            )}: ${format.number(reachAt(back))}`;
    },
  });
  const plot = $("#reach-plot");
  plot.tabIndex = 0;
  plot.setAttribute("role", "application");
  plot.setAttribute("aria-label", "Gradient by distance. Arrow keys move along the curve.");

  const name = (token) => quoted(seen.tokens[token].text);
  /** Whether a layer is attention alone. */
  const attends = (i) => Number.isNaN(seen.delta[i * seen.tokens.length]);
  const reachAt = (back) => {
    const n = seen.tokens.length;
    return seen.gradientReach[layer * n + n - 1 - back];
  };

  /** Lights one token, or two, wherever the text is shown. */
  function light(token, other = null) {
    for (const strip of [$("#delta"), $("#attention-text")]) {
      for (const lit of strip.querySelectorAll(".lit, .lit2")) lit.classList.remove("lit", "lit2");
      if (token === null || token === undefined) continue;
      strip.children[token]?.classList.add("lit");
      if (other !== null && other !== token) strip.children[other]?.classList.add("lit2");
    }
  }

  $("#look-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      if (session.stepping) {
        spent = -Infinity; // between the next two steps, whatever it takes
        return;
      }
      await inspect(await session.ensureModel());
    } catch (error) {
      session.fault(error);
    }
  });
  $("#layer").addEventListener("input", async () => {
    layer = Number($("#layer").value) - 1;
    await details();
  });
  $("#channel").addEventListener("input", async () => {
    channel = Number($("#channel").value);
    if (channel && !deltas) await details();
    show();
  });

  // Between steps, as long as all looking together stays within its share of the time.
  session.betweenSteps.push(async (seconds) => {
    const asked = spent === -Infinity;
    if (looking || (!asked && (!settings.get("live") || document.hidden))) return;
    if (!asked && spent + last > SHARE * seconds) return;
    const started = performance.now();
    try {
      await inspect(session.model);
    } catch (error) {
      // Looking must not end a run: it stops looking instead, and says why.
      settings.set("live", false);
      session.emit("fault", error);
    }
    last = (performance.now() - started) / 1000;
    spent = asked ? last : spent + last;
  });

  async function inspect(model) {
    if (looking || !text()) return;
    looking = true;
    setText($("#look-caption"), "Looking …");
    try {
      seen = await model.inspect(await shortened(model));
      seenAt = session.run
        ? `after step ${format.count(session.run.history.last)}`
        : session.opened
          ? `of ${session.opened.name}`
          : "before any training";
      lane = /mamba$/.test(model.config.model_type ?? "mamba") ? "Channel" : "Head";
      layer = Math.min(layer, seen.layers - 1);
      channel = Math.min(channel, seen.channels);
      await details();
    } finally {
      looking = false;
    }
  }

  /** The text, cut to what can be shown. */
  async function shortened(model) {
    const tokens = await model.tokenize(text().slice(0, 16 * TOKENS));
    return tokens.length <= TOKENS
      ? text()
      : tokens
          .slice(0, TOKENS)
          .map((t) => t.text)
          .join("");
  }

  /** What belongs to one layer is fetched when it is shown. */
  async function details() {
    const of = seen;
    const [a, d] = await Promise.all([of.attention(layer), channel ? of.deltaOf(layer) : null]);
    if (of !== seen) return;
    [attention, deltas] = [a, d];
    show();
  }

  const tables = [
    tableBehind("delta", () => perToken(seen?.delta)),
    tableBehind("attention", () => ({
      columns: [
        { name: "token", text: true },
        { name: "draws on", text: true },
        { name: "back" },
        { name: "weight" },
      ],
      rows: strongest(),
    })),
    tableBehind("half", () => ({
      columns: [{ name: "tokens" }, ...layers().map((i) => ({ name: `layer ${i + 1}` }))],
      rows: seen
        ? bins().map((b) => [
            `${format.number(b.from)} to ${format.number(b.to)}`,
            ...layers().map((i) => format.count(b.counts[i])),
          ])
        : [],
    })),
    tableBehind("norm", () => perToken(seen?.stateNorm)),
    tableBehind("reach", () => ({
      columns: [{ name: "tokens back" }, { name: "token", text: true }, { name: "gradient" }],
      rows: seen
        ? seen.tokens.map((_, back) => [
            String(back),
            name(seen.tokens.length - 1 - back),
            format.number(reachAt(back)),
          ])
        : [],
    })),
  ];
  const layers = () => Array.from({ length: seen?.layers ?? 0 }, (_, i) => i);

  /** A table of `values`, [layers, tokens]: a row for each token. */
  function perToken(values) {
    return {
      columns: [
        { name: "token", text: true },
        ...layers().map((i) => ({ name: `layer ${i + 1}` })),
      ],
      rows: (seen?.tokens ?? []).map((t, k) => [
        quoted(t.text),
        ...layers().map((i) =>
          attends(i) ? "–" : format.number(values[i * seen.tokens.length + k]),
        ),
      ]),
    };
  }

  function strongest() {
    if (!attention) return [];
    const n = seen.tokens.length;
    const cells = [];
    for (let row = 0; row < n; row++) {
      for (let col = 0; col < row; col++) cells.push([row, col, attention[row * n + col]]);
    }
    return cells
      .sort((a, b) => b[2] - a[2])
      .slice(0, 100)
      .map(([row, col, weight]) => [
        name(row),
        name(col),
        String(row - col),
        format.number(weight),
      ]);
  }

  function bins() {
    const { edges, counts } = seen.halfLives;
    const n = edges.length - 1;
    return Array.from({ length: n }, (_, b) => ({
      from: edges[b],
      to: edges[b + 1],
      counts: layers().map((i) => counts[i * n + b]),
    }));
  }

  const show = perFrame(() => {
    $("#views").classList.toggle("none", !seen);
    if (!seen) return;
    const n = seen.tokens.length;
    const attending = layers().filter(attends).map((i) => i + 1);
    setText(
      $("#look-caption"),
      `${n} tokens, ${seen.layers} layers, ${format.count(seen.channels)} ` +
        `${lane.toLowerCase()}s each` +
        (attending.length ? `, attention in layer ${attending.join(", ")}` : "") +
        `; ${seenAt}.`,
    );
    range($("#layer"), 1, seen.layers, layer + 1);
    setText($("#layer-show"), `${layer + 1} / ${seen.layers}`);
    $(".v-delta").classList.toggle("without", attends(layer));
    range($("#channel"), 0, attends(layer) ? 0 : seen.channels, channel);
    setText($("#channel-name"), lane);
    setText($("#channel-show"), channel ? String(channel) : "all");
    strip($("#delta"));
    strip($("#attention-text"));
    shade(deltaOf());
    heatAttention.set({
      rows: n,
      cols: n,
      values: attention,
      lower: true,
      perRow: true,
      shade: Math.sqrt,
    });
    $("#norm").style.height = `${Math.max(4, Math.min(16, 1.35 * seen.layers))}rem`;
    heatNorm.set({
      rows: seen.layers,
      cols: n,
      values: seen.stateNorm,
      perRow: true,
      shade: (v) => v,
    });
    bars();
    const x = Array.from({ length: n }, (_, i) => i);
    const line = (i) => x.map((back) => seen.gradientReach[i * n + n - 1 - back]);
    reach.set({
      log: true,
      xMax: n - 1,
      lines: [
        ...layers()
          .filter((i) => i !== layer)
          .map((i) => ({ x, y: line(i), colour: "old" })),
        { x, y: line(layer), colour: "accent", width: 2.25, main: true },
      ],
    });
    for (const refresh of tables) refresh();
  });

  function deltaOf() {
    const n = seen.tokens.length;
    if (!channel || !deltas) return seen.delta.subarray(layer * n, (layer + 1) * n);
    return Float32Array.from({ length: n }, (_, k) => deltas[k * seen.channels + channel - 1]);
  }

  function shade(delta) {
    const [low, high] = [Math.min(...delta), Math.max(...delta)];
    const none = attends(layer);
    setText($("#delta-low"), none ? "none: this layer is attention" : format.number(low));
    setText($("#delta-high"), none ? "" : format.number(high));
    delta.forEach((value, k) => {
      const span = $("#delta").children[k];
      span.style.setProperty("--d", none ? "0" : ((value - low) / (high - low || 1)).toFixed(3));
      span.title = none ? "" : `Δ ${format.number(value)}`;
    });
  }

  /** The text as spans, one per token, made again only when it is another text. */
  function strip(box) {
    const key = seen.tokens.map((t) => t.id).join(" ");
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    box.replaceChildren(...seen.tokens.map((t) => el("span", {}, visible(t.text))));
  }

  function bars() {
    if (attends(layer)) {
      $("#half").replaceChildren(el("p", {}, "This layer is attention: it forgets nothing."));
      return;
    }
    const all = bins();
    const most = Math.max(1, ...all.map((b) => b.counts[layer]));
    const columns = el(
      "div",
      {
        className: "columns",
        role: "img",
        "aria-label": `Half-lives of layer ${layer + 1}; the table below has the numbers`,
      },
      ...all.map((b) => {
        const bar = el("i", {
          title: `${format.number(b.from)} to ${format.number(b.to)} tokens: ${format.count(
            b.counts[layer],
          )}`,
        });
        bar.style.setProperty("--h", (b.counts[layer] / most).toFixed(4));
        return bar;
      }),
    );
    const edges = seen.halfLives.edges;
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((at) => edges[Math.round(at * (edges.length - 1))]);
    $("#half").replaceChildren(
      columns,
      el(
        "div",
        { className: "ticks", "aria-hidden": "true" },
        ...ticks.map((t) => el("span", {}, format.number(t))),
      ),
      el("p", {}, "tokens until half is forgotten"),
    );
  }

  session.addEventListener("corpus", () => ($("#look-text").placeholder = usualText()));
  session.addEventListener("run", () => (spent = last = 0));
  session.addEventListener("model", () => {
    seen = attention = deltas = null;
    setText($("#look-caption"), "Train a little or open a model, then look.");
    show();
  });
  show();
}

function range(input, min, max, value) {
  Object.assign(input, { min, max, value, disabled: max <= min });
}
