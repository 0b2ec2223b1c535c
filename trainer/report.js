// Draws the charts of report.html. The page's policy forbids eval, so Vega interprets expressions (ast).
const charts = JSON.parse(document.getElementById("charts").textContent);
const actions = { export: true, source: false, compiled: false, editor: false };
for (const [name, chart] of Object.entries(charts)) {
  vegaEmbed(document.getElementById(name), chart, { ast: true, renderer: "svg", actions });
}
