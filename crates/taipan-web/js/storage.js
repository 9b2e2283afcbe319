// Runs in the browser's own storage (OPFS): taipan/<run>/ has the files that the program keeps in
// the directory of a run, and settings.json. A file is replaced as a whole when it is closed; the
// last file of a checkpoint is trainer.json, and of the data manifest.json. Without it they count
// as absent, so that a tab that is closed meanwhile leaves the checkpoint before.
import { TaipanError } from "./errors.js";

const ROOT = "taipan";
const LAST = ["trainer.json", "manifest.json"];

async function root(create) {
  if (!globalThis.navigator?.storage?.getDirectory) {
    throw new TaipanError("storage", "run: there is no storage for files here, expected OPFS");
  }
  const top = await navigator.storage.getDirectory();
  return top.getDirectoryHandle(ROOT, { create });
}

async function directory(run, create = false) {
  if (!run || /[/\\]/.test(run) || run === "." || run === "..") {
    throw new TaipanError("input", `run: ${JSON.stringify(run)}, expected a name without slashes`);
  }
  return (await root(create)).getDirectoryHandle(run, { create });
}

async function write(parent, path, bytes) {
  const parts = path.split("/");
  const name = parts.pop();
  for (const part of parts) parent = await parent.getDirectoryHandle(part, { create: true });
  const file = await parent.getFileHandle(name, { create: true });
  const out = await file.createWritable();
  try {
    await out.write(bytes);
    await out.close();
  } catch (error) {
    // Nothing of it is kept; the first error says why.
    await out.abort().catch(() => {});
    throw error;
  }
}

const isMissing = (error) => error?.name === "NotFoundError";

async function remove(parent, name) {
  await parent.removeEntry(name, { recursive: true }).catch((error) => {
    if (!isMissing(error)) throw error;
  });
}

const stepOf = (name) => /^checkpoint-(\d+)$/.exec(name)?.[1];

/** The last complete checkpoint of a run: its name and step. */
async function lastCheckpoint(run) {
  let last = null;
  for await (const [name, handle] of run.entries()) {
    const step = Number(stepOf(name) ?? -1);
    if (step < 0 || (last && step <= last.step)) continue;
    const complete = await handle.getFileHandle("trainer.json").then(() => true, () => false);
    if (complete) last = { name, step, handle };
  }
  return last;
}

/** Write files of a run: paths in its directory, each with what reads its bytes. */
export async function store(run, files) {
  const target = await directory(run, true);
  const isLast = ([path]) => Number(LAST.some((name) => path.endsWith(name)));
  const sorted = [...files].sort((a, b) => isLast(a) - isLast(b));
  const written = new Set(sorted.map(([path]) => path.split("/")[0]));
  try {
    for (const [path, read] of sorted) await write(target, path, read());
  } catch (error) {
    // What is incomplete only takes space. The data is needed by checkpoints, if there are any.
    for (const name of written) if (stepOf(name)) await remove(target, name).catch(() => {});
    throw error;
  }
  const last = await lastCheckpoint(target);
  if (!last || !written.has(last.name)) return;
  for await (const name of target.keys()) {
    if (stepOf(name) && name !== last.name) await remove(target, name);
  }
}

/** Forget what a run of this name has stored. */
export async function removeRun(run) {
  const all = await root(false).catch((error) => {
    if (!isMissing(error)) throw error;
  });
  if (all) await remove(all, run);
}

/** The files of a run: those of its data and of its last complete checkpoint. */
export async function fetchRun(run) {
  const found = await directory(run).catch((error) => {
    if (isMissing(error)) throw new TaipanError("input", `resume: there is no run ${run}`);
    throw error;
  });
  const last = await lastCheckpoint(found);
  if (!last) throw new TaipanError("input", `resume: ${run} has no complete checkpoint`);
  const files = {};
  async function read(handle, path) {
    for await (const [name, entry] of handle.entries()) {
      if (entry.kind === "directory") await read(entry, `${path}${name}/`);
      else files[path + name] = new Uint8Array(await (await entry.getFile()).arrayBuffer());
    }
  }
  for await (const [name, entry] of found.entries()) {
    if (entry.kind === "file") files[name] = new Uint8Array(await (await entry.getFile()).arrayBuffer());
    else if (name === last.name || !stepOf(name)) await read(entry, `${name}/`);
  }
  return files;
}

/** The runs that can be resumed, the last one first. */
export async function runs() {
  const all = await root(false).catch((error) => {
    if (isMissing(error) || error.kind === "storage") return null;
    throw error;
  });
  const found = [];
  if (!all) return found;
  for await (const [name, handle] of all.entries()) {
    if (handle.kind !== "directory") continue;
    const last = await lastCheckpoint(handle);
    if (!last) continue;
    const [bytes, modified] = await measure(handle);
    const settings = await handle.getFileHandle("settings.json")
      .then((file) => file.getFile()).then((file) => file.text()).then(JSON.parse, () => null);
    found.push({ name, step: last.step, modified, bytes, settings });
  }
  return found.sort((a, b) => b.modified - a.modified);
}

async function measure(handle) {
  let [bytes, modified] = [0, 0];
  for await (const entry of handle.values()) {
    if (entry.kind === "directory") {
      const [b, m] = await measure(entry);
      [bytes, modified] = [bytes + b, Math.max(modified, m)];
    } else {
      const file = await entry.getFile();
      [bytes, modified] = [bytes + file.size, Math.max(modified, file.lastModified)];
    }
  }
  return [bytes, modified];
}
