// Feed: where the text comes from, and how it arrives.
import { $, $$, el, format, visible } from "./dom.js";
import { droppedFiles, isModel, ofFiles, ofTask, pasted, stories } from "./corpus.js";
import { notice } from "./notices.js";

const PIECE = 600; // tokens

export function feed(session, settings, { openFiles }) {
  const radios = (name) => $$(`input[name="${name}"]`);
  let own = null; // the user's text, while another source is looked at
  let tales = null; // the stories, once the package has told them

  const choose = () => {
    const kind = settings.get("feed");
    for (const radio of radios("kind")) radio.checked = radio.value === kind;
    for (const radio of radios("task")) radio.checked = radio.value === settings.get("task");
    for (const radio of radios("tokens")) radio.checked = radio.value === settings.get("tokens");
    for (const part of $$("[data-kind]")) part.hidden = part.dataset.kind !== kind;
    $("#tokens").hidden = kind === "task";
    $("#vocab-field").hidden = kind === "task" || settings.get("tokens") !== "bpe";
    $(".piece figcaption").textContent =
      kind === "task"
        ? "One example: what it reads, then what it " + "has to say"
        : "How it arrives, token by token";
  };
  const load = () => {
    const kind = settings.get("feed");
    session.setCorpus(
      kind === "sample"
        ? tales
        : kind === "task"
          ? ofTask(settings.get("task"), settings.get("taskLength"))
          : own,
    );
  };

  for (const name of ["kind", "task", "tokens"]) {
    for (const radio of radios(name)) {
      radio.addEventListener("change", () =>
        settings.set(name === "kind" ? "feed" : name, radio.value),
      );
    }
  }
  settings.addEventListener("change", ({ detail: key }) => {
    if (!["feed", "task", "taskLength", "tokens", "vocab"].includes(key)) return;
    choose();
    if (key === "tokens" || key === "vocab") showPiece();
    else if (!session.run) load();
  });

  async function take(files) {
    if (!files.length) return;
    if (isModel(files)) return openFiles(files);
    try {
      const { corpus, refused } = await ofFiles(files);
      if (refused.length) {
        const some = refused.slice(0, 3).join(", ") + (refused.length > 3 ? " and others" : "");
        notice({
          id: "refused",
          tone: "warn",
          title: "Not all of this is text.",
          text: `Left out, because not valid UTF-8: ${some}.`,
        });
      }
      if (!corpus) return;
      own = corpus;
      settings.set("feed", "own");
      if (!session.run) session.setCorpus(own);
    } catch (error) {
      notice({ id: "refused", tone: "bad", title: "That could not be read.", text: error.message });
    }
  }
  for (const [button, input] of [
    ["#pick-files", "#files"],
    ["#pick-folder", "#folder"],
  ]) {
    $(button).addEventListener("click", () => $(input).click());
    $(input).addEventListener("change", async () => {
      await take([...$(input).files]);
      $(input).value = "";
    });
  }
  let typing;
  $("#paste").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const text = $("#paste").value;
      own = text.trim() ? pasted(text) : null;
      if (!session.run) session.setCorpus(own);
    }, 250);
  });

  const veil = (shown) => ($("#veil").hidden = !shown);
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    veil(true);
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && veil(false));
  addEventListener("drop", async (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    veil(false);
    await take(await droppedFiles(event.dataTransfer));
  });

  function showFacts() {
    const { corpus } = session;
    const facts = $("#feed-facts");
    if (!corpus) {
      const telling = settings.get("feed") === "sample";
      return facts.replaceChildren(
        telling ? "One moment …" : "No text yet: drop, choose or paste some.",
      );
    }
    const size =
      corpus.kind === "task"
        ? "new examples in every batch, as many as it takes"
        : format.bytes(corpus.bytes) +
          (session.usesBpe ? "" : `, ${format.count(corpus.bytes)} tokens`) +
          "; a tenth is held out to test it";
    const locked = session.run && session.run.corpus !== corpus;
    facts.replaceChildren(
      el("b", {}, corpus.name),
      el("span", { className: "facts-line" }, locked ? "takes effect with Restart" : size),
    );
  }

  let asked = 0;
  async function showPiece() {
    const box = $("#piece");
    const { corpus } = session;
    box.classList.toggle("bytes", !session.usesBpe);
    const mine = ++asked;
    if (!corpus) return box.replaceChildren();
    if (!session.usesBpe) {
      fill(box, bytes(corpus.head));
      if (corpus.answer) box.append(el("b", {}, ` → ${corpus.answer}`));
      return;
    }
    if (session.run) return;
    box.replaceChildren(el("i", { className: "dim" }, "Looking for frequent pieces of words …"));
    try {
      const model = await session.ensureModel();
      const tokens = await model.tokenize(corpus.head.slice(0, 4 * PIECE));
      if (mine === asked) fill(box, tokens.slice(0, PIECE));
    } catch (error) {
      box.replaceChildren();
      session.fault(error);
    }
  }

  session.addEventListener("corpus", () => {
    choose();
    showFacts();
    showPiece();
  });
  session.addEventListener("run", () => {
    // What was chosen while a run was on is taken up when it has gone.
    if (!session.run) load();
  });
  choose();
  load();
  stories().then(
    (told) => {
      tales = told;
      // Unless the user has chosen something else meanwhile.
      if (!session.corpus && !session.run) load();
    },
    (error) => session.fault(error),
  );
}

function fill(box, tokens) {
  box.replaceChildren(
    ...tokens.map(({ id, text }) => el("span", { title: `token ${id}` }, visible(text))),
  );
}

/** UTF-8 bytes as tokens: a character of several bytes is shown with its last. */
function bytes(text) {
  const tokens = [];
  for (const character of text.slice(0, PIECE)) {
    const encoded = new TextEncoder().encode(character);
    encoded.forEach((id, i) =>
      tokens.push({ id, text: i === encoded.length - 1 ? character : "" }),
    );
  }
  return tokens.slice(0, PIECE);
}
