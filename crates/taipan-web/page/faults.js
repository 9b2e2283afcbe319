// Faults of a run, told in the page's own words, each with a way on.
import { announce, format } from "./dom.js";
import { dismiss, missingWebGpu, notice } from "./notices.js";
import { Taipan } from "./package.js";

export function watchFaults(session, settings, { save }) {
  let lostAt = null; // the step at which the device was lost last

  const again = (label, change) => ({
    label,
    strong: true,
    run: async () => {
      change?.();
      await session.restart();
      await session.play();
    },
  });
  /** Back to the last save, if there is one, with other settings or the same. */
  const lastSave = async () => (await Taipan.runs()).find((run) => run.name === session.run?.name);

  const told = {
    memory: async (error) =>
      notice({
        id: "memory",
        tone: "bad",
        title: "Out of memory.",
        text:
          `This model and batch need more than the device gives (${error.message}). Take fewer ` +
          "sequences at a time, or a smaller size.",
        actions: [
          again("Halve the batch and restart", () =>
            settings.set("batch", Math.max(1, settings.get("batch") >> 1)),
          ),
          ...(settings.get("size") === "tiny"
            ? []
            : [again("Take the smallest size", () => settings.set("size", "tiny"))]),
        ],
      }),

    notFinite: async (error) => {
      const stored = await lastSave();
      notice({
        id: "finite",
        tone: "bad",
        title: "The loss is no longer a number.",
        text: `It first happened here: ${error.message}. Most often the learning rate is too high.`,
        actions: [
          again("Halve the learning rate and restart", () =>
            settings.set("lr", settings.get("lr") / 2),
          ),
          ...(stored
            ? [
                {
                  label: `Go back to step ${format.count(stored.step)}`,
                  run: () => session.recover(),
                },
              ]
            : []),
        ],
      });
    },

    lost: async (error) => {
      const at = session.run?.history.last ?? 0;
      const wasTraining = session.faultedWhile === "training";
      const why = `The graphics card was reset or taken away (${error.message}).`;
      // Twice at the same place is no accident: leave it to the user.
      const stuck = lostAt !== null && at - lostAt < 10;
      lostAt = at;
      const goOn = async () => {
        const step = await session.recover();
        if (step === null)
          return void notice({
            id: "lost",
            tone: "bad",
            title: "The device was lost.",
            text: `${why} ${at ? "Nothing was saved yet, so it starts anew." : "Try once more."}`,
            actions: at ? [again("Train")] : [],
          });
        notice({
          id: "lost",
          tone: "warn",
          title: "The device was lost.",
          text: `${why} It goes on from the last save, step ${format.count(step)}.`,
        });
        if (wasTraining) await session.play();
      };
      if (!stuck) return goOn();
      notice({
        id: "lost",
        tone: "bad",
        title: "The device was lost again.",
        text: `${why} A smaller batch may be all it takes.`,
        actions: [
          { label: "Go on from the last save", strong: true, run: goOn },
          again("Halve the batch and restart", () =>
            settings.set("batch", Math.max(1, settings.get("batch") >> 1)),
          ),
        ],
      });
    },

    storage: async () =>
      notice({
        id: "storage",
        tone: "warn",
        title: "The browser’s storage is full.",
        text:
          "Training goes on, but this run is no longer kept: closing the tab would lose it. Save " +
          "the model to a file, or remove runs you no longer need.",
        actions: [
          { label: "Save the model", strong: true, run: save },
          {
            label: "Show kept runs",
            run: async () => {
              const kept = document.getElementById("kept");
              kept.open = true;
              kept.scrollIntoView();
              kept.querySelector("summary").focus();
            },
          },
        ],
      }),

    input: async (error) =>
      notice({ id: "input", tone: "bad", title: "That does not work.", text: error.message }),
  };

  session.addEventListener("fault", async ({ detail: error }) => {
    const tell =
      told[error?.kind] ??
      (async () =>
        notice({
          id: "fault",
          tone: "bad",
          title: "Something went wrong.",
          text: `${error?.message ?? error}`,
        }));
    try {
      await tell(error);
    } catch (second) {
      notice({ id: "fault", tone: "bad", title: "Something went wrong.", text: second.message });
    }
  });
  session.addEventListener("run", () => ["memory", "finite", "storage"].forEach(dismiss));
}

/** Says at the start what this browser lacks. */
export async function watchDevice(session) {
  const why = await missingWebGpu();
  if (why) {
    notice({
      id: "webgpu",
      tone: "warn",
      title: "No WebGPU here, so it runs on the CPU.",
      text: `Everything works, a good deal slower; the smallest size is the right one. ${why}`,
    });
  }
  session.addEventListener("model", ({ detail: model }) => {
    if (model?.device.kind === "cpu" && model.device.why && !why) {
      notice({ id: "webgpu", tone: "warn", title: "It runs on the CPU.", text: model.device.why });
    }
  });
}

/** Browsers slow down what is out of sight: say so when the user is back. */
export function watchVisibility(session) {
  let before = null;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      before = session.phase === "training" ? session.run.history.last : null;
      if (before !== null) {
        notice({
          id: "tab",
          title: "This tab is in the background.",
          text:
            "Training goes on, but the " +
            "browser may slow it down. Keep the tab in a window of its own to avoid that.",
        });
      }
    } else if (before !== null) {
      const steps = (session.run?.history.last ?? before) - before;
      notice({
        id: "tab",
        title: "Welcome back.",
        text: `${format.count(steps)} steps ran while this tab was hidden.`,
      });
      announce(`${steps} steps ran while this tab was hidden`, { urgent: true });
    }
  });
}
