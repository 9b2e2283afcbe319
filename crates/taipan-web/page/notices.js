// What the page has to say when something is not as it should be: what happened, what it means,
// what to do.
import { advice } from "./advice.js";
import { $, announce, el } from "./dom.js";

/** Shows a notice. A second one of the same id takes the place of the first. */
export function notice({ id, tone = "info", title, text, actions = [], closes = true }) {
  const row = el(
    "div",
    { className: "row" },
    ...actions.map(({ label, run, strong }) =>
      el(
        "button",
        {
          type: "button",
          className: strong ? "strong" : "soft",
          onclick: async () => {
            dismiss(id);
            await run();
          },
        },
        label,
      ),
    ),
  );
  const close = el("button", {
    type: "button",
    className: "close",
    "aria-label": "Close this notice",
    onclick: () => dismiss(id),
  });
  close.innerHTML = '<svg aria-hidden="true"><use href="icons.svg#close"/></svg>';
  const node = el(
    "div",
    { id: `notice-${id}`, className: `notice ${tone}` },
    el("p", {}, el("b", {}, title), text),
    ...(closes ? [close] : []),
    row,
  );
  const shown = $(`#notice-${id}`);
  if (shown) shown.replaceWith(node);
  else $("#notices").prepend(node);
  announce(`${title} ${text}`, { urgent: true });
}

export function dismiss(id) {
  $(`#notice-${id}`)?.remove();
}

/** Why there is no WebGPU, and what to do about it in this browser; null if there is. */
export async function missingWebGpu() {
  if (!isSecureContext) {
    return "Browsers give WebGPU only to pages from https or localhost. Open this page that way.";
  }
  if (!navigator.gpu) return advice(navigator.userAgent);
  // Chrome has navigator.gpu even where it blocks the graphics card.
  if (!(await navigator.gpu.requestAdapter().catch(() => null))) {
    return (
      "The browser knows WebGPU but found no graphics card it may use. Look for “hardware " +
      "acceleration” in its settings; on Linux, chrome://flags/#enable-unsafe-webgpu may help."
    );
  }
  return null;
}
