// What it reads: the sample, the user's own files or paste, or a generated task.
import { sampleText } from "./sample.js";

/** Files larger than this in total would not fit a tab beside a model. */
const MAX_BYTES = 200e6;

const TASKS = {
  "selective-copying": {
    name: "Selective copying",
    // What is read, a bar, what is to be said: dots are to be skipped.
    example: (length) => {
      const letters = "GATEKOBI".slice(0, Math.max(3, Math.round(length / 4)));
      const gaps = [2, 1, 3, 1, 2, 4, 1, 2];
      return [...letters].map((c, i) => ".".repeat(gaps[i]) + c).join("") + ".|" + letters;
    },
  },
  "induction-heads": {
    name: "Induction",
    example: () => "q d w #k a p x m d f e q n #|k",
  },
  parity: {
    name: "Parity",
    example: () => "1 0 0 1 1 0 1|odd, odd, odd, even, odd, odd, even",
  },
};

/** A corpus is { kind, name, source, bytes, head }; `source` is what the package trains on. */
export function sample() {
  return (tales ??= ofText("sample", "Harbour tales", sampleText()));
}
let tales;

export function pasted(text) {
  return ofText("own", "Pasted text", text);
}

function ofText(kind, name, text) {
  return { kind, name, source: text, bytes: new Blob([text]).size, head: text.slice(0, 20_000) };
}

export function ofTask(task, length) {
  const head = TASKS[task].example(length);
  return { kind: "task", name: TASKS[task].name, source: { task, length }, bytes: 0, head };
}

/** Text files as documents, in the order of their names. Says which were not text. */
export async function ofFiles(files) {
  const total = files.reduce((sum, file) => sum + file.size, 0);
  if (total > MAX_BYTES) {
    throw new RangeError(`${Math.round(total / 1e6)} MB found, expected at most 200 MB of text`);
  }
  const sorted = [...files].sort((a, b) => (path(a) < path(b) ? -1 : 1));
  const documents = [];
  const refused = [];
  let bytes = 0;
  for (const file of sorted) {
    const text = await asText(file);
    if (text === null) refused.push(path(file));
    else if (text.trim()) {
      documents.push({ name: path(file), text });
      bytes += file.size;
    }
  }
  if (!documents.length) return { refused };
  const name = documents.length === 1 ? documents[0].name : `${documents.length} files`;
  const head = documents[0].text.slice(0, 20_000);
  return { corpus: { kind: "own", name, source: documents, bytes, head }, refused };
}

const path = (file) => file.webkitRelativePath || file.path || file.name;

/** The text of a file; null if it is not valid UTF-8. */
async function asText(file) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}

/** The files of a drop, with those in its folders. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files];
  const files = [];
  for (const entry of entries) await collect(entry, "", files);
  return files;
}

async function collect(entry, folder, files) {
  if (entry.isFile) {
    const file = await new Promise((found, failed) => entry.file(found, failed));
    file.path = folder + entry.name;
    files.push(file);
    return;
  }
  const reader = entry.createReader();
  // Readers hand out at most 100 entries at a time.
  for (;;) {
    const some = await new Promise((found, failed) => reader.readEntries(found, failed));
    if (!some.length) return;
    for (const inner of some) {
      if (!inner.name.startsWith(".")) await collect(inner, `${folder}${entry.name}/`, files);
    }
  }
}

/** Is this a model rather than text? */
export const isModel = (files) => files.some((f) => /\.(safetensors|zip|bin)$/.test(f.name));

/** All of a corpus as one text, as a tokenizer is trained on it. */
export function wholeText({ source }) {
  return typeof source === "string" ? source : source.map(({ text }) => text).join("\n\n");
}
