"use strict";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const shown = [];

function config(width) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const [ink, line, muted] = [color("--ink"), color("--line"), color("--muted")];
  const text = { labelColor: muted, titleColor: ink, labelFontSize: 12, titleFontSize: 12,
    titleFontWeight: "normal", labelFont: "system-ui, sans-serif", titleFont: "system-ui, sans-serif" };
  return {
    background: "transparent",
    view: { stroke: "transparent" },
    axis: { ...text, gridColor: line, domainColor: line, tickColor: line },
    legend: { ...text, columns: Math.max(1, Math.floor((width - 60) / 170)) },  // they do not wrap
    range: { category: JSON.parse(document.getElementById("colours").textContent) },
    area: { color: "#0072b2" }, bar: { color: "#0072b2" }, point: { color: "#0072b2" },
  };
}

async function draw() {
  for (const view of shown.splice(0)) view.finalize();
  for (const place of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
    const options = { actions: false, renderer: "svg", config: config(place.clientWidth),
      tooltip: { theme: dark.matches ? "dark" : "light" } };
    try {
      shown.push(await vegaEmbed(place, spec, options));
    } catch (error) {
      place.textContent = "The figure cannot be drawn: " + error.message;
      console.error(error);
    }
  }
  document.documentElement.dataset.drawn = String(shown.length);
}

function key(cell) {
  const value = cell.dataset.v;
  return value === undefined ? cell.textContent : Number(value);
}

function sortBy(button) {
  const head = button.parentElement;
  const body = head.closest("table").tBodies[0];
  const column = [...head.parentElement.children].indexOf(head);
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a.cells[column]), key(b.cells[column])];
    const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
    return up ? order : -order;
  });
  body.append(...rows);
}

async function copy(button) {
  await navigator.clipboard.writeText(button.previousElementSibling.textContent);
  button.textContent = "copied";
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button));
}
for (const button of document.querySelectorAll(".command button")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", () => copy(button));
}
dark.addEventListener("change", draw);
let resized;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(draw, 200);
});
draw();
