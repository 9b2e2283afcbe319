// Runs before the first paint, so that a chosen colour scheme never flashes.
{
  const chosen = (() => {
    try {
      return localStorage.getItem("taipan-theme");
    } catch {
      return null; // storage is blocked: the system's scheme it is
    }
  })();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
