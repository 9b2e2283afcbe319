// The page: one session, four verbs, and what surrounds them.
import { doctor } from "./doctor.js";
import { $, $$, announce, drawNow, el, format, setText, themeChanged } from "./dom.js";
import { estimate } from "./estimate.js";
import { watchDevice, watchFaults, watchVisibility } from "./faults.js";
import { feed } from "./feed.js";
import { Film } from "./film.js";
import { look } from "./look.js";
import { dismiss, notice } from "./notices.js";
import { Taipan } from "./package.js";
import { Session } from "./session.js";
import { bindControls, Settings } from "./settings.js";
import { download } from "./storage.js";
import { talk } from "./talk.js";
import { train } from "./train.js";

const settings = new Settings();
const session = new Session(settings);

bindControls(settings);
watchFaults(session, settings, { save: () => save("zip") });
watchVisibility(session);
train(session, settings, { film: new Film(session) });
talk(session, settings);
look(session, settings);
feed(session, settings, { openFiles });
estimate(session, settings);
doctor();

// A file at a time is one thing; Open, Save and the runs that are kept are another.
async function openFiles(files) {
  if (!files.length) return;
  const zip = files.find((file) => file.name.endsWith(".zip"));
  const named = Object.fromEntries(files.map((file) => [file.name, file]));
  const weights = files.find((file) => /\.(safetensors|bin)$/.test(file.name)) ?? files[0];
  await open(zip ?? named, (zip ?? weights).name.replace(/\.(zip|safetensors|bin|json)$/, ""));
}

async function open(source, name) {
  try {
    await session.openModel(source, name);
    notice({
      id: "opened",
      title: `${name} is open.`,
      text: "Talk to it, look into it, or feed it and train it further.",
    });
  } catch (error) {
    notice({
      id: "opened",
      tone: "bad",
      title: "That model could not be opened.",
      text: error.message,
    });
  }
}

async function save(kind) {
  if (!session.model) return;
  try {
    if (session.stepping) await session.pause();
    const name = session.opened?.name ?? session.run?.name ?? "taipan";
    if (kind === "zip") return download(`${name}.zip`, await session.model.saveZip());
    for (const [file, bytes] of Object.entries(await session.model.save())) {
      download(file, new Blob([bytes]));
    }
  } catch (error) {
    session.fault(error);
  }
}

$("#open").addEventListener("click", () => $("#open-files").click());
$("#open-files").addEventListener("change", async () => {
  await openFiles([...$("#open-files").files]);
  $("#open-files").value = "";
});

const menu = (shown) => {
  $("#save-menu").hidden = !shown;
  $("#save").setAttribute("aria-expanded", String(shown));
};
$("#save").addEventListener("click", () => {
  menu($("#save-menu").hidden);
  if (!$("#save-menu").hidden) $("#save-menu button").focus();
});
for (const item of $$("[data-save]")) {
  item.addEventListener("click", () => {
    menu(false);
    $("#save").focus();
    save(item.dataset.save);
  });
}
document.addEventListener("click", (event) => !event.target.closest(".menu") && menu(false));
$(".menu").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  menu(false);
  $("#save").focus();
});

$("#share").addEventListener("click", async () => {
  const link = new URL(settings.link(), location.href).href;
  try {
    await navigator.clipboard.writeText(link);
    notice({
      id: "share",
      title: "The link is copied.",
      text:
        "It holds the settings" +
        (session.corpus?.kind === "own" ? ", but not your text: that stays here." : "."),
    });
  } catch {
    // No permission for the clipboard: the address bar has the same link.
    notice({ id: "share", title: "Copy the address of this page.", text: `It is ${link}` });
  }
});

const THEMES = { "": ["dark", "as the system"], dark: ["light", "dark"], light: ["", "light"] };
const root = document.documentElement;
const nameTheme = () =>
  $("#theme").setAttribute("aria-label", `Colours: ${THEMES[root.dataset.theme ?? ""][1]}`);
$("#theme").addEventListener("click", () => {
  const next = THEMES[root.dataset.theme ?? ""][0];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  try {
    localStorage.setItem("taipan-theme", next);
  } catch (error) {
    announce(`The choice of colours is not kept: ${error.message}`, { urgent: true });
  }
  nameTheme();
  themeChanged();
});
nameTheme();

session.addEventListener("model", ({ detail: model }) => {
  $("#save").disabled = !model;
  const chip = $("#device");
  chip.hidden = !model;
  if (!model) return;
  chip.classList.toggle("cpu", model.device.kind === "cpu");
  setText(chip, model.device.kind === "cpu" ? "CPU" : `WebGPU ${model.device.name}`.trim());
});

// Where the verbs are below each other, the one in view is marked in the navigation.
const columns = matchMedia("(min-width: 46rem)");
const spy = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      for (const link of $$(".bar nav a")) {
        if (!columns.matches && link.hash === `#${target.id}`)
          link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  },
  { rootMargin: "-30% 0px -65% 0px" },
);
for (const section of $$(".verb")) spy.observe(section);

async function showRuns() {
  const runs = (await Taipan.runs()).sort((a, b) => b.modified - a.modified);
  $("#runs").replaceChildren(
    ...(runs.length
      ? runs.map((run) =>
          el(
            "div",
            { className: "run" },
            el("b", {}, run.name),
            `step ${format.count(run.step)}, ${format.bytes(run.bytes)}, ${format.clock(
              run.modified,
            )}`,
            el(
              "button",
              {
                type: "button",
                className: "soft",
                "aria-label": `Go on with ${run.name}`,
                onclick: () => goOn(run),
              },
              "Go on",
            ),
            el(
              "button",
              {
                type: "button",
                className: "soft",
                "aria-label": `Remove ${run.name}`,
                onclick: () => session.forget(run.name).catch((error) => session.fault(error)),
              },
              "Remove",
            ),
          ),
        )
      : ["None yet. A run is kept here while it trains, so that a closed tab loses little."]),
  );
  return runs;
}

async function goOn(run) {
  dismiss("resume");
  try {
    await session.resume(run);
    notice({
      id: "resumed",
      title: `Back at step ${format.count(session.run.history.last)}.`,
      text: "Press Go on to train further, exactly as if nothing had happened.",
    });
  } catch (error) {
    session.fault(error);
  }
}

// After the panels' own listeners: buttons, numbers and charts change together.
session.addEventListener("phase", drawNow);
session.addEventListener("stored", () => showRuns().catch((error) => session.fault(error)));

async function start() {
  const [latest] = await showRuns();
  if (latest) offer(latest);
  // `taipan web MODEL` serves a model beside the page and names it in the address.
  const given = new URLSearchParams(location.search).get("model");
  const url = given && new URL(given, location.href);
  if (url && url.origin === location.origin) await open(url, given.replace(/^\/|\/$/g, ""));
  await watchDevice(session);
}

function offer(run) {
  notice({
    id: "resume",
    title: `A run is kept in this browser: ${run.name}.`,
    text: `It had reached step ${format.count(run.step)} on ${format.clock(run.modified)}.`,
    actions: [
      { label: "Go on with it", strong: true, run: () => goOn(run) },
      { label: "Remove it", run: () => session.forget(run.name) },
    ],
  });
}

start().catch((error) => session.fault(error));
