// What a token could have been: a card with its probability and the alternatives.
import { $, el, format, quoted } from "./dom.js";

export class TokenCard {
  #timer = null;
  #anchor = null;

  /** `choose(index, alternative)` is called for an alternative that is clicked. */
  constructor(box, { choose }) {
    this.box = box;
    this.choose = choose;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "What else it could have written");
    box.addEventListener("pointerenter", () => clearTimeout(this.#timer));
    box.addEventListener("pointerleave", () => this.hideSoon());
    box.addEventListener("focusin", () => clearTimeout(this.#timer));
    box.addEventListener("focusout", () => this.hideSoon());
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  show(anchor, index, token) {
    clearTimeout(this.#timer);
    this.#anchor?.classList.remove("on");
    this.#anchor = anchor;
    anchor.classList.add("on");
    const choices = token.alternatives.map((alternative) => {
      const chosen = alternative.id === token.id;
      const button = el(
        "button",
        {
          type: "button",
          className: chosen ? "chosen" : "",
          // A part of a character cannot be written on its own.
          disabled: alternative.text === "",
          onclick: () => this.choose(index, alternative),
        },
        el("span", {}, quoted(alternative.text)),
        el("span", {}, format.percent(alternative.probability)),
      );
      button.style.setProperty("--p", alternative.probability.toFixed(3));
      return button;
    });
    this.box.replaceChildren(
      el(
        "p",
        {},
        el("b", {}, quoted(token.text)),
        el("span", {}, `${format.percent(token.probability)} likely`),
      ),
      ...choices,
    );
    this.box.hidden = false;
    this.#place();
  }

  /** Below the token, within the box it is in. */
  #place() {
    const within = this.box.offsetParent.getBoundingClientRect();
    const at = this.#anchor.getClientRects()[0] ?? this.#anchor.getBoundingClientRect();
    const left = Math.min(at.left - within.left, within.width - this.box.offsetWidth - 8);
    Object.assign(this.box.style, {
      left: `${Math.max(8, left)}px`,
      top: `${at.bottom - within.top + 2}px`,
    });
  }

  hideSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.hide(), 180);
  }

  hide() {
    clearTimeout(this.#timer);
    this.box.hidden = true;
    this.#anchor?.classList.remove("on");
  }

  enter() {
    $("button", this.box)?.focus();
  }

  #key(event) {
    const all = [...this.box.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement);
    if (event.key === "ArrowDown") all[Math.min(all.length - 1, at + 1)].focus();
    else if (event.key === "ArrowUp" && at > 0) all[at - 1].focus();
    else if (event.key === "ArrowUp" || event.key === "Escape") {
      this.#anchor.focus();
      if (event.key === "Escape") this.hide();
    } else return;
    event.preventDefault();
  }
}
