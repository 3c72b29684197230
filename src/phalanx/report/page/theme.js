// Runs before anything is drawn, so that the chosen colour scheme does not flash.
try {
  const chosen = localStorage.getItem("phalanx-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is switched off: the system's colour scheme is used.
}
document.documentElement.classList.add("scripted");
