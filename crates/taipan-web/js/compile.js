// Pipelines compiled asynchronously and in parallel. The library creates a pipeline when a kernel
// is first used, one after the other, and a browser then compiles them one after the other. While
// `warmUp` runs, a pipeline is a placeholder that a browser compiles in the background, and nothing
// is dispatched: one step on a copy of the model finds all kernels of a step.

const placeholders = new WeakMap();
let pending = null;

function install() {
  const device = globalThis.GPUDevice?.prototype;
  const pass = globalThis.GPUComputePassEncoder?.prototype;
  if (!device?.createComputePipelineAsync || !pass || device.taipan) return;
  Object.defineProperty(device, "taipan", { value: true });
  const { createComputePipeline } = device;
  const { setPipeline, dispatchWorkgroups } = pass;
  device.createComputePipeline = function create(descriptor) {
    if (!pending) return createComputePipeline.call(this, descriptor);
    const placeholder = {};
    const entry = { pipeline: null };
    placeholders.set(placeholder, entry);
    // The descriptor may be changed by its owner; a kernel that is refused is refused again, with
    // its reason, when it is used.
    entry.create = () => createComputePipeline.call(this, descriptor);
    pending.add(this.createComputePipelineAsync(descriptor).then(
      (pipeline) => { entry.pipeline = pipeline; }, () => {}));
    return placeholder;
  };
  pass.setPipeline = function set(pipeline) {
    const entry = placeholders.get(pipeline);
    if (pending) return;
    setPipeline.call(this, entry ? (entry.pipeline ??= entry.create()) : pipeline);
  };
  pass.dispatchWorkgroups = function dispatch(x, y, z) {
    if (!pending) dispatchWorkgroups.call(this, x, y, z);
  };
}

/** Run `step` without its dispatches, and then wait for the pipelines that it needs. */
export async function warmUp(step, onProgress) {
  install();
  if (!globalThis.GPUDevice?.prototype.taipan) return 0;
  const started = new Set();
  let done = 0;
  pending = { add: (promise) => started.add(promise.then(() => onProgress(++done, started.size))) };
  try {
    await step();
  } finally {
    pending = null;
  }
  onProgress(done, started.size);
  await Promise.all(started);
  return started.size;
}
