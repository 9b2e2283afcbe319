// What it reads: stories, the user's own files or paste, or a generated task.
import { Taipan } from "./package.js";

/** Files larger than this in total would not fit a tab beside a model. */
const MAX_BYTES = 200e6;

/** A task's name, and an example of `length` tokens: what is read, what is to be said. */
const TASKS = {
  "selective-copying": [
    "Selective copying",
    (length) => {
      const letters = "GABEKOPI".slice(0, Math.min(8, Math.max(1, length >> 2)));
      // Spread over the length, at places that do not look regular.
      const places = [...letters].map((_, i) =>
        Math.floor(((i + ((i * 5) % 4) / 5) * length) / letters.length),
      );
      const read = Array.from({ length }, (_, at) => letters[places.indexOf(at)] ?? ".").join("");
      return [`${read}|`, letters];
    },
  ],
  "induction-heads": [
    "Induction",
    (length) => {
      const read = Array.from({ length }, (_, at) => "dakpebmhcnfgoijl"[(at * 7 + (at >> 3)) % 16]);
      const at = Math.floor(length / 3);
      [read[at], read[length - 1]] = ["#", "#"];
      return [read.join(""), read[at + 1]];
    },
  ],
  parity: [
    "Parity",
    (length) => {
      const read = Array.from({ length }, (_, at) => ((at * at * 3 + at) % 7) % 2).join("");
      return [read, (read.match(/1/g) ?? []).length % 2 ? "o" : "e"];
    },
  ],
};

/** A corpus is { kind, name, source, bytes, head }; `source` is what the package trains on. */
export async function stories() {
  return ofDocuments("sample", "Little stories", await Taipan.stories());
}

export function pasted(text) {
  return ofDocuments("own", "Pasted text", text);
}

/** A text, or several with their names. */
function ofDocuments(kind, name, source) {
  const texts = textsOf(source);
  const head = texts.slice(0, 100).join("\n\n").slice(0, 20_000);
  return { kind, name, source, bytes: new Blob(texts).size, head };
}

const textsOf = (source) =>
  typeof source === "string" ? [source] : source.map(({ text }) => text);

export function ofTask(task, length) {
  const [name, example] = TASKS[task];
  const [head, answer] = example(length);
  return { kind: "task", name, source: { task, length }, bytes: 0, head, answer };
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
  for (const file of sorted) {
    const text = await asText(file);
    if (text === null) refused.push(path(file));
    else if (text.trim()) documents.push({ name: path(file), text });
  }
  if (!documents.length) return { refused };
  const name = documents.length === 1 ? documents[0].name : `${documents.length} files`;
  return { corpus: ofDocuments("own", name, documents), refused };
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
  return textsOf(source).join("\n\n");
}
