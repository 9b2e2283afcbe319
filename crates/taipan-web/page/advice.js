/** What to do in a browser without WebGPU, from its user agent. */
export function advice(agent) {
  const version = (name) => Number(agent.match(new RegExp(`${name}/(\\d+)`))?.[1] ?? 0);
  if (/Firefox\//.test(agent)) {
    return /Windows|Mac OS/.test(agent) && version("Firefox") < 145
      ? "Update Firefox: newer versions have WebGPU."
      : "In Firefox, open about:config and set dom.webgpu.enabled to true, then reload.";
  }
  if (/Chrome\//.test(agent)) {
    if (version("Chrome") < 121) return "Update this browser: newer versions have WebGPU.";
    return /Linux(?!.*Android)/.test(agent)
      ? "On Linux, enable chrome://flags/#enable-unsafe-webgpu and start the browser again."
      : "Look for “hardware acceleration” in the browser’s settings and switch it on.";
  }
  if (/Safari\//.test(agent)) {
    return (
      "Safari has WebGPU from version 26 on. Update the system, or enable WebGPU under Settings, " +
      "Feature Flags."
    );
  }
  return "A current Chrome, Edge, Firefox or Safari has WebGPU.";
}
