// The page's own record of a run: text, settings, curve and film. The package keeps weights,
// optimiser and data order in OPFS; both together make a run that goes on after a reload.
const DATABASE = "taipan-page";
const STORE = "runs";

function open() {
  return new Promise((found, failed) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "name" });
    request.onsuccess = () => found(request.result);
    request.onerror = () => failed(request.error);
  });
}

async function transaction(mode, use) {
  const database = await open();
  try {
    return await new Promise((done, failed) => {
      const work = database.transaction(STORE, mode);
      const request = use(work.objectStore(STORE));
      work.oncomplete = () => done(request.result);
      work.onabort = work.onerror = () => failed(work.error ?? request.error);
    });
  } finally {
    database.close();
  }
}

export const putRecord = (record) => transaction("readwrite", (store) => store.put(record));
export const getRecord = (name) => transaction("readonly", (store) => store.get(name));
export const removeRecord = (name) => transaction("readwrite", (store) => store.delete(name));

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
