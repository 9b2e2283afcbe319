// What the op suite asks of the page that runs it, as `./tests.js`: see crates/taipan/src/check/web.rs.

const channel = new MessageChannel();
let awake;
channel.port1.onmessage = () => awake();

/** Wait until the browser has gone on with its other tasks. A timer would wait 4 ms. */
export const suspend = new WebAssembly.Suspending(() => new Promise((resolve) => {
  awake = resolve;
  channel.port2.postMessage(null);
}));

let webgpu = false;
let text = "";
let memory;

export const on_webgpu = () => (webgpu ? 1 : 0);

export const report = (at, length) => {
  text = new TextDecoder().decode(new Uint8Array(memory.buffer, at, length));
};

/** An instance of the suite; one whose test failed is not used again. */
export async function open(url, device) {
  webgpu = device === "webgpu";
  const wasm = await (await import(url)).default();
  ({ memory } = wasm);
  const count = wasm.tests();
  const names = Array.from({ length: count }, (_, i) => (wasm.test_name(i), text));
  const call = WebAssembly.promising(wasm.run_test);
  const run = async (i) => {
    text = "";
    try {
      await call(i);
      return null;
    } catch (error) {
      return text || String(error);
    }
  };
  return { names, run };
}
