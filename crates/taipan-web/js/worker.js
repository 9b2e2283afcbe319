// The worker: an engine that is asked by messages.
import { Engine } from "./engine.js";
import { TaipanError } from "./errors.js";

const engine = new Engine((why) => postMessage({ lost: why }));

onmessage = async ({ data: { id, method, args } }) => {
  try {
    const result = await engine.call(method, args, (progress) => postMessage({ id, progress }));
    postMessage({ id, result });
  } catch (thrown) {
    const { kind, message } = TaipanError.of(thrown);
    postMessage({ id, error: { kind, message } });
  }
};
