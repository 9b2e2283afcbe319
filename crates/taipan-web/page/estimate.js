// The size slider, and what a size costs here: two seconds of training tell.
import { $, el, format, setText } from "./dom.js";
import { Taipan } from "./package.js";
import { SIZES } from "./settings.js";

const NAMES = Object.keys(SIZES);

export function estimate(session, settings) {
  const slider = $("#size");
  const names = $("#size-names");
  names.replaceChildren(...NAMES.map((name) => el("span", {}, name)));
  const measured = new Map(); // what was probed → what it took
  let probing = null;

  const key = () =>
    JSON.stringify(
      ["size", "batch", "length", "dtype", "device", "tokens", "vocab"].map((name) =>
        settings.get(name),
      ),
    );

  function show() {
    const size = settings.get("size");
    slider.value = NAMES.indexOf(size);
    slider.setAttribute("aria-valuetext", size);
    [...names.children].forEach((name, i) => name.classList.toggle("on", NAMES[i] === size));
    const found = measured.get(key());
    const vocabulary = session.usesBpe ? Number(settings.get("vocab")) : 256;
    setText($("#est-params"), format.short(parametersOf(SIZES[size], vocabulary)));
    const wait = probing ? "measuring …" : "–";
    setText($("#est-memory"), found?.bytes ? format.bytes(found.bytes) : wait);
    setText(
      $("#est-time"),
      found?.failed ??
        (found ? `about ${format.time(found.secondsPerStep * settings.get("steps"))}` : wait),
    );
    $("#size-block").hidden = Boolean(session.opened);
    const opened = $("#opened");
    opened.hidden = !session.opened;
    if (session.opened && session.model) {
      const close = el(
        "button",
        { type: "button", className: "soft", onclick: () => session.closeModel() },
        "Close it",
      );
      opened.replaceChildren(
        el("b", {}, session.opened.name),
        `, opened: ${format.short(session.model.parameters)} parameters. Train to teach it more. `,
        close,
      );
    }
  }

  /** Measures this size, unless that is known or something else is at work. */
  async function probe() {
    probing?.abort();
    if (measured.has(key()) || session.busy || session.run || session.opened) return show();
    const mine = new AbortController();
    probing = mine;
    const asked = key();
    show();
    try {
      measured.set(
        asked,
        await Taipan.probe(SIZES[settings.get("size")], {
          batchSize: settings.get("batch"),
          blockSize: settings.get("length"),
          device: settings.get("device"),
          dtype: settings.get("dtype"),
          signal: mine.signal,
        }),
      );
    } catch (error) {
      // Too large to try is an answer, too.
      if (error.kind === "memory") measured.set(asked, { failed: "too large here" });
      else if (error.kind !== "aborted") measured.set(asked, { failed: error.message });
    }
    if (probing === mine) probing = null;
    show();
  }

  let timer;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(probe, 400);
    show();
  };
  slider.addEventListener("input", () => settings.set("size", NAMES[slider.value]));
  settings.addEventListener("change", later);
  session.addEventListener("model", show);
  session.addEventListener("run", show);
  // Training comes first: the probe makes way.
  session.addEventListener("phase", () => session.busy && probing?.abort());
  later();
}

/** Parameters of a Mamba with tied embeddings, 16 states per channel and a convolution of 4. */
export function parametersOf({ hidden_size: d, num_hidden_layers: layers }, vocabulary) {
  const [inner, states, kernel, rank] = [2 * d, 16, 4, Math.ceil(d / 16)];
  const layer =
    d +
    2 * inner * d +
    inner * (kernel + 1) +
    (rank + 2 * states) * inner +
    (rank + 1) * inner +
    inner * states +
    inner +
    d * inner;
  return vocabulary * d + layers * layer + d;
}
