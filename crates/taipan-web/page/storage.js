// The page's own record of a run: text, settings, curve and film. The package keeps weights,
// optimiser and data order in OPFS; both together make a run that goes on after a reload.
const DATABASE = "taipan-page";
// A text may be large and never changes; what a run has shown is small and often written.
const STORES = ["runs", "texts"];

function open() {
  return new Promise((found, failed) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      for (const store of STORES) request.result.createObjectStore(store, { keyPath: "name" });
    };
    request.onsuccess = () => found(request.result);
    request.onerror = () => failed(request.error);
  });
}

/** One transaction: `use` gets the stores by name, and returns requests, which become results. */
async function transaction(mode, use) {
  const database = await open();
  try {
    return await new Promise((done, failed) => {
      const work = database.transaction(STORES, mode);
      const requests = use(Object.fromEntries(STORES.map((s) => [s, work.objectStore(s)])));
      work.oncomplete = () => done(requests.map((request) => request.result));
      work.onabort = work.onerror = () => failed(work.error);
    });
  } finally {
    database.close();
  }
}

export const putText = (name, corpus) =>
  transaction("readwrite", ({ texts }) => [texts.put({ name, corpus })]);
export const putRecord = (record) => transaction("readwrite", ({ runs }) => [runs.put(record)]);
export const removeRecord = (name) =>
  transaction("readwrite", ({ runs, texts }) => [runs.delete(name), texts.delete(name)]);

/** The record of a run with its text; undefined if either is missing. */
export async function getRecord(name) {
  const [record, text] = await transaction("readonly", ({ runs, texts }) => [
    runs.get(name),
    texts.get(name),
  ]);
  return record && text ? { ...record, corpus: text.corpus } : undefined;
}

export const isFull = (error) => error?.name === "QuotaExceededError" || error?.kind === "storage";

/** Hands a file to the user. */
export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The browser reads the blob after this call.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
