// Draws the charts, switches the colour scheme, saves charts as SVG, PNG and CSV. No network.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("report-data").textContent);
  const views = {};
  const rootElement = document.documentElement;
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const PNG_SCALE = 2;

  const rowsOf = ({ names, rows }) =>
    rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])));

  const drawChart = async (element) => {
    const figure = page.figures[element.dataset.chart];
    const filled = { ...figure.spec, data: { name: "rows", values: rowsOf(figure) } };
    const { view } = await vegaEmbed(element, filled, {
      actions: false,
      config: page.config,
      mode: "vega-lite",
      renderer: "svg",
      tooltip: { disableDefaultStyle: true },
    });
    views[element.dataset.chart] = view;
  };

  // One after the other, from the top, so that the first screen is there at once.
  const drawAll = async () => {
    for (const element of document.querySelectorAll("[data-chart]")) {
      await drawChart(element);
      await new Promise((resume) => setTimeout(resume));
    }
    rootElement.dataset.drawn = "all";
  };

  // Charts name CSS variables as colours: the browser recolours them with the page.
  const isDark = () => (rootElement.dataset.theme ?? (systemIsDark.matches ? "dark" : "light")) === "dark";
  const themeButton = document.getElementById("theme");
  const labelTheme = () => {
    const other = isDark() ? "Light" : "Dark";
    themeButton.textContent = other;
    themeButton.setAttribute("aria-label", `Switch to ${other.toLowerCase()} colours`);
  };
  const switchTheme = () => {
    rootElement.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("phalanx-theme", rootElement.dataset.theme);
    } catch {
      // Storage is switched off: the choice holds for this visit.
    }
    labelTheme();
  };

  // A saved picture stands on white paper, so it takes the light half of every colour.
  const lightColour = (name) => {
    const value = getComputedStyle(rootElement).getPropertyValue(name).trim();
    return /^light-dark\(\s*([^,]+),/.exec(value)?.[1].trim() ?? value;
  };
  const savedSvg = async (name) => {
    const svg = await views[name].toSVG();
    const coloured = svg.replace(/var\((--[\w-]+)\)/g, (_, variable) => lightColour(variable));
    return coloured.replace(/(<svg[^>]*>)/, '$1<rect width="100%" height="100%" fill="#ffffff"/>');
  };
  const savedPng = async (name) => {
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await savedSvg(name))}`;
    await picture.decode();
    const canvas = document.createElement("canvas");
    canvas.width = picture.naturalWidth * PNG_SCALE;
    canvas.height = picture.naturalHeight * PNG_SCALE;
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  };
  const csvField = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const savedCsv = (name) => {
    const { names, rows } = page.figures[name];
    return [names, ...rows].map((row) => `${row.map(csvField).join(",")}\r\n`).join("");
  };
  const saved = {
    svg: async (name) => new Blob([await savedSvg(name)], { type: "image/svg+xml" }),
    png: savedPng,
    csv: async (name) => new Blob([savedCsv(name)], { type: "text/csv" }),
  };
  const save = async ({ figure, save: kind }) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await saved[kind](figure));
    link.download = `${figure}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  themeButton.addEventListener("click", switchTheme);
  systemIsDark.addEventListener("change", labelTheme);
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-save]");
    if (button && views[button.dataset.figure]) save(button.dataset);
  });
  // What is folded away on the screen is shown on paper.
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  labelTheme();
  window.phalanx = { views, savedSvg, savedPng, savedCsv };
  drawAll();
})();
