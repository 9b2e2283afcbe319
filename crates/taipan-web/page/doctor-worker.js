// Examines op by op, and says what it finds after each.
import init, { Doctor } from "./doctor/doctor.js";

/** Browsers tell little of a GPU; each tells something else. */
async function nameOf(webgpu) {
  if (!webgpu) return "CPU";
  const { description, vendor, architecture } = (await navigator.gpu.requestAdapter()).info;
  return `WebGPU (${description || [vendor, architecture].filter(Boolean).join(" ") || "unnamed"})`;
}

onmessage = async ({ data: { webgpu, quick, from } }) => {
  try {
    await init();
    const doctor = await Doctor.open(webgpu, quick);
    const ops = doctor.ops();
    postMessage({ opened: { device: await nameOf(webgpu), ops } });
    for (let i = from; i < ops.length; i++) {
      postMessage({ rows: JSON.parse(await doctor.examine(i)) });
    }
    postMessage({ checks: JSON.parse(await doctor.checks()) });
  } catch (error) {
    postMessage({ error: String(error?.message ?? error) });
  }
};
