// Talk: text that appears token by token, and forks wherever one clicks.
import { $, announce, drawNow, el, format, perFrame, quoted, setText, visible } from "./dom.js";
import { tableBehind } from "./table.js";
import { TokenCard } from "./token_card.js";

export function talk(session, settings) {
  /** [{ start, tokens: [Token], fork: index of the first token of its own }] */
  let branches = [];
  let current = -1;
  let writing = null; // the AbortController of what is being written, from the click on
  let waiting = null; // the same, until there is a model for it
  let shown = 0; // tokens of the current branch that are on the page
  const box = $("#written-text");
  const branch = () => branches[current];

  const card = new TokenCard($("#card"), {
    choose: (index, alternative) => fork(index, alternative),
  });

  $("#talk-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const start = $("#prompt").value || session.prompt;
    write({ start, tokens: [], fork: 0 }, start, {});
  });
  $("#more").addEventListener("click", () => {
    const { start, tokens } = branch();
    const state = tokens.at(-1)?.state;
    write(branch(), state ? "" : start + textOf(tokens), { state });
  });
  $("#stop").addEventListener("click", () => writing?.abort());

  function open(fresh) {
    branches = [...branches.slice(-8), fresh];
    current = branches.length - 1;
    redraw();
  }

  /** Goes on from the state before a token, with another token or with another draw. */
  function fork(index, alternative) {
    if (session.phase === "preparing") return;
    const { start, tokens } = branch();
    const kept = tokens.slice(0, index);
    const state = kept.at(-1)?.state;
    if (alternative) kept.push({ ...alternative, alternatives: tokens[index].alternatives });
    // Without a state (it is of the first token, or of earlier weights) all of it is read again.
    const prompt = state ? (alternative?.text ?? "") : start + textOf(kept);
    write({ start, tokens: kept, fork: index }, prompt, { state });
  }

  /** Writes on in `into`, the branch that is shown or a new one. */
  async function write(into, prompt, more) {
    writing?.abort();
    const mine = new AbortController();
    writing = waiting = mine;
    showState();
    try {
      if (session.stepping) await session.pause();
      // A new model forgets the branches of the one before: they come first.
      const model = await session.ensureModel();
      if (mine.signal.aborted) return;
      waiting = null;
      if (into !== branch()) open(into);
      const options = {
        ...settings.generateOptions(),
        ...more,
        alternatives: 6,
        snapshots: true,
        ignoreEos: true,
        signal: mine.signal,
      };
      for await (const token of model.generate(prompt, options)) {
        if (mine.signal.aborted) break;
        into.tokens.push(token);
        if (into === branch()) flush();
      }
      announce(
        `Written: ${into.tokens
          .slice(into.fork)
          .map((t) => t.text)
          .join("")}`,
        { urgent: true },
      );
    } catch (error) {
      if (!mine.signal.aborted) session.fault(error);
    } finally {
      if (writing === mine) writing = null;
      if (waiting === mine) waiting = null;
      drawNow();
      showState();
    }
  }

  const flush = perFrame(() => {
    if (!branch()) return;
    const { tokens, fork: own } = branch();
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    for (; shown < tokens.length; shown++) {
      const button = el(
        "button",
        { type: "button", className: "t", tabIndex: shown ? -1 : 0, "data-index": shown },
        visible(tokens[shown].text),
      );
      button.style.setProperty("--p", tokens[shown].probability.toFixed(3));
      const spoken = nameOfBlank(tokens[shown].text);
      if (spoken) button.setAttribute("aria-label", spoken);
      if (own > 0 && shown === own) button.classList.add("forked");
      box.append(button);
    }
    if (atEnd) box.scrollTop = box.scrollHeight;
    table();
  });

  function redraw() {
    shown = 0;
    card.hide();
    box.replaceChildren(el("span", { className: "start" }, branch()?.start ?? ""));
    $("#branches").hidden = branches.length < 2;
    $("#branches").replaceChildren(
      "Versions ",
      ...branches.map((b, i) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(i === current),
            "aria-label": `Version ${i + 1}`,
            onclick: () => {
              writing?.abort();
              current = i;
              redraw();
            },
          },
          String(i + 1),
        ),
      ),
    );
    flush();
    showState();
  }

  const table = tableBehind("talk", () => ({
    columns: [
      { name: "token", text: true },
      { name: "probability" },
      { name: "likeliest instead", text: true },
    ],
    rows: (branch()?.tokens ?? []).map((token) => [
      quoted(token.text),
      format.percent(token.probability),
      token.alternatives
        .filter((a) => a.id !== token.id)
        .slice(0, 3)
        .map((a) => `${quoted(a.text)} ${format.percent(a.probability)}`)
        .join("  "),
    ]),
  }));

  // Hover and focus show a token's card; a click forks. A finger has no hover: its first tap shows
  // the card, the second forks.
  let touched = null;
  const tokenAt = (event) => event.target.closest?.("button.t");
  const reveal = (button) => {
    const index = Number(button.dataset.index);
    for (const other of box.querySelectorAll(".t[tabindex='0']")) other.tabIndex = -1;
    button.tabIndex = 0;
    card.show(button, index, branch().tokens[index]);
  };
  box.addEventListener("pointerover", (event) => {
    const button = tokenAt(event);
    if (button && event.pointerType !== "touch") reveal(button);
  });
  box.addEventListener("pointerleave", () => card.hideSoon());
  box.addEventListener("focusin", (event) => tokenAt(event) && reveal(tokenAt(event)));
  box.addEventListener("focusout", () => card.hideSoon());
  box.addEventListener("click", (event) => {
    const button = tokenAt(event);
    if (!button) return;
    if (event.pointerType === "touch" && touched !== button) {
      touched = button;
      return reveal(button);
    }
    touched = null;
    fork(Number(button.dataset.index));
  });
  box.addEventListener("keydown", (event) => {
    const button = tokenAt(event);
    if (!button) return;
    const all = [...box.querySelectorAll("button.t")];
    const at = Number(button.dataset.index);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "ArrowDown") card.enter();
    else if (event.key === "Escape") card.hide();
    else if (to !== undefined) all[Math.min(all.length - 1, Math.max(0, to))].focus();
    else return;
    event.preventDefault();
  });

  function showState() {
    const { phase, model } = session;
    const training = phase === "training";
    setText($("#write span"), training ? "Pause and write" : "Write");
    $("#write").disabled =
      phase === "preparing" || phase === "pausing" || (!model && !session.corpus);
    $("#more").disabled = Boolean(writing) || session.busy || !branch();
    $("#stop").hidden = !writing;
    const empty = !branch();
    $("#talk-empty").hidden = !empty;
    setText(
      $("#talk-empty"),
      model
        ? "Press Write. Temperature 0 always takes the likeliest token; " + "more makes it bolder."
        : "It has learned nothing yet: what it writes now is noise. Press " +
            "Write to see it, or train first and pause whenever you are curious.",
    );
    $("#talk-legend").hidden = empty;
    $("#prompt").placeholder = session.prompt;
  }

  // States belong to the weights they were computed with.
  session.addEventListener("model", () => {
    if (writing !== waiting) writing.abort();
    branches = [];
    current = -1;
    redraw();
  });
  session.addEventListener("step", () => {
    for (const { tokens } of branches) for (const token of tokens) delete token.state;
  });
  session.addEventListener("phase", () => {
    if (session.phase === "training") writing?.abort();
    showState();
  });
  session.addEventListener("corpus", showState);
  redraw();
}

/** What a screen reader says for a token without letters; null for others. */
function nameOfBlank(text) {
  if (text.trim()) return null;
  return text === "" ? "part of a character" : text.includes("\n") ? "line end" : "space";
}

const textOf = (tokens) => tokens.map((token) => token.text).join("");
