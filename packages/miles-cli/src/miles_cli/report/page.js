"use strict";
const tip = document.getElementById("tip");

function show(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18) + "px";
}

addEventListener("mousemove", (event) => {
  const chart = event.target.closest("svg[data-chart]");
  for (const cursor of document.querySelectorAll(".cursor")) cursor.style.visibility = "hidden";
  if (chart) return read(chart, event);
  const marked = event.target.closest("[data-tip]");
  if (marked) show(marked.dataset.tip, event);
  else tip.hidden = true;
});

function read(svg, event) {
  const data = JSON.parse(svg.dataset.chart);
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
  const [x0, x1] = data.x, [s0, s1] = data.steps;
  const wanted = x1 > x0 ? s0 + (at - x0) / (x1 - x0) * (s1 - s0) : s0;
  const steps = data.series.flatMap((one) => one.points.map((point) => point[0]));
  const step = steps.reduce((best, s) => (Math.abs(s - wanted) < Math.abs(best - wanted) ? s : best));
  const x = s1 > s0 ? x0 + (step - s0) / (s1 - s0) * (x1 - x0) : x0;
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  cursor.style.visibility = "visible";
  const lines = data.series.map((one) => {
    const found = one.points.find((point) => point[0] === step);
    return one.label + "  " + (found ? Number(found[1].toPrecision(5)) : "–");
  });
  show("step " + step + "\n" + lines.join("\n"), event);
}
