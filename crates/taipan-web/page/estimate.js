// The size slider, and what a size costs here: two seconds of training tell.
import { $, el, format, setText } from "./dom.js";
import { Taipan } from "./package.js";

const SIZES = ["tiny", "small", "medium"];

export async function estimate(session, settings) {
  const slider = $("#size");
  const names = $("#size-names");
  names.replaceChildren(...SIZES.map((name) => el("span", {}, name)));
  const measured = new Map(); // what was probed → what it took
  let probing = null;

  const presets = new Map((await Taipan.presets()).map((preset) => [preset.name, preset]));

  const key = () => JSON.stringify(["size", "batch", "length", "dtype", "device", "tokens", "vocab"]
    .map((name) => settings.get(name)));

  function show() {
    const size = settings.get("size");
    slider.value = SIZES.indexOf(size);
    slider.setAttribute("aria-valuetext", size);
    [...names.children].forEach((name, i) => name.classList.toggle("on", SIZES[i] === size));
    const found = measured.get(key());
    const parameters = found?.parameters ?? presets.get(size)?.parameters;
    setText($("#est-params"), parameters ? format.short(parameters) : "–");
    const wait = probing ? "measuring …" : "–";
    setText($("#est-memory"), found?.bytes ? format.bytes(found.bytes) : wait);
    setText($("#est-time"), found?.failed ?? (found
      ? `about ${format.time(found.secondsPerStep * settings.get("steps"))}` : wait));
    $("#size-block").hidden = Boolean(session.opened);
    const opened = $("#opened");
    opened.hidden = !session.opened;
    if (session.opened && session.model) {
      const close = el("button", { type: "button", className: "soft", onclick: () =>
        session.closeModel() }, "Close it");
      opened.replaceChildren(el("b", {}, session.opened.name), `, opened: ${
        format.short(session.model.parameters)} parameters. Train to teach it more. `, close);
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
      const config = presets.get(settings.get("size"))?.config ?? {};
      measured.set(asked, await Taipan.probe(config, { ...settings.trainOptions(),
        device: settings.get("device"), dtype: settings.get("dtype"), signal: mine.signal }));
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
  slider.addEventListener("input", () => settings.set("size", SIZES[slider.value]));
  settings.addEventListener("change", later);
  session.addEventListener("model", show);
  session.addEventListener("run", show);
  // Training comes first: the probe makes way.
  session.addEventListener("phase", () => session.busy && probing?.abort());
  later();
}
