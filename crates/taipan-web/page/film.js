// The film: one prompt, completed again and again while it trains.
import { $, el, format, perFrame, reducedMotion, setIcon, setText } from "./dom.js";
import { tableBehind } from "./table.js";

export class Film {
  #frames = [];
  #count = 0; // of frames when they were last shown
  #prompt = "";
  #at = -1;
  #following = true; // shows the newest frame until somebody scrubs
  #timer = null;
  /** Called with the step of the frame that is shown; null for the newest. */
  onFrame = () => {};

  constructor(session) {
    this.slider = $("#film-at");
    this.button = $("#film-play");
    this.show = perFrame(() => this.#show());
    this.slider.addEventListener("input", () => {
      this.#stop();
      this.#go(Number(this.slider.value));
    });
    this.button.addEventListener("click", () => (this.#timer ? this.#stop() : this.#play()));
    this.table = tableBehind("film", () => ({
      columns: [{ name: "step" }, { name: "text", text: true }],
      rows: this.#frames.map(({ step, text }) => [format.count(step), this.#prompt + text]),
    }));
    this.show();
    session.addEventListener("run", () => this.#load(session));
    session.addEventListener("step", () => this.#load(session));
  }

  #load(session) {
    const frames = session.run?.history.frames ?? [];
    if (frames === this.#frames && frames.length === this.#count) return;
    this.#frames = frames;
    this.#count = frames.length;
    this.#prompt = session.run?.options.samplePrompt ?? "";
    if (this.#following || this.#at >= frames.length) this.#at = frames.length - 1;
    this.show();
    this.table();
  }

  #go(index) {
    this.#at = index;
    this.#following = index === this.#frames.length - 1;
    this.show();
  }

  #play() {
    if (this.#at === this.#frames.length - 1) this.#go(0);
    // Five frames a second; two for those who like it calm.
    this.#timer = setInterval(
      () => {
        if (this.#at >= this.#frames.length - 1) return this.#stop();
        this.#go(this.#at + 1);
      },
      reducedMotion() ? 500 : 200,
    );
    this.show();
  }

  #stop() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.show();
  }

  #show() {
    const count = this.#frames.length;
    this.slider.disabled = this.button.disabled = count < 2;
    Object.assign(this.slider, { max: Math.max(0, count - 1), value: Math.max(0, this.#at) });
    setIcon(this.button, this.#timer ? "pause" : "play");
    this.button.setAttribute("aria-label", this.#timer ? "Pause the film" : "Play the film");
    const frame = this.#frames[this.#at];
    if (!frame) {
      this.onFrame(null);
      setText($("#film-caption"), "");
      $("#film-frame").replaceChildren(
        el(
          "span",
          { className: "dim" },
          "Every few steps it " + "completes one prompt. Watch noise become words.",
        ),
      );
      return;
    }
    const caption = `step ${format.count(frame.step)}, frame ${this.#at + 1} of ${count}`;
    setText($("#film-caption"), caption);
    this.slider.setAttribute("aria-valuetext", caption);
    $("#film-frame").replaceChildren(el("b", {}, this.#prompt), frame.text);
    this.onFrame(this.#following ? null : frame.step);
  }
}
