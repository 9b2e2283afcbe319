// Examines op by op, and says what it finds after each.
import init, { Doctor } from "./doctor/doctor.js";

onmessage = async ({ data: { webgpu, quick, from } }) => {
  try {
    await init();
    const doctor = await Doctor.open(webgpu, quick);
    const ops = doctor.ops();
    postMessage({ opened: { device: doctor.device(), ops } });
    for (let i = from; i < ops.length; i++) {
      postMessage({ rows: JSON.parse(await doctor.examine(i)) });
    }
    postMessage({ checks: JSON.parse(await doctor.checks()) });
  } catch (error) {
    postMessage({ error: String(error?.message ?? error) });
  }
};
