// Before the page is painted: the theme that the reader chose here, if any. Not a module, so that nothing flashes.
(() => {
  const chosen = localStorage.getItem("redrive-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
