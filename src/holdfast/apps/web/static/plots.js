// Draws what stands in data-plot as lines over time, anew whenever the page has been sent new parts.
"use strict";

(() => {
  const drawn = new Map();
  // All that is drawn is counted: there is no half of it between two lines.
  const whole = [1, 2, 5].flatMap((one) => Array.from({ length: 12 }, (_, zeros) => one * 10 ** zeros)).sort((a, b) => a - b);
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { ink: of("--soft"), line: of("--line"), lines: ["--accent", "--busy", "--warn", "--bad", "--good", "--calm"].map(of) };
  };

  const draw = () => {
    for (const [place, plot] of drawn) {
      plot.destroy();
      drawn.delete(place);
    }
    const tones = colours();
    const axis = { stroke: tones.ink, grid: { stroke: tones.line, width: 1 }, ticks: { stroke: tones.line, width: 1 } };
    for (const place of document.querySelectorAll("[data-plot]")) {
      const told = JSON.parse(place.dataset.plot);
      const series = told.lines.map((one, at) => ({
        label: one.name, stroke: tones.lines[at % tones.lines.length], width: 1.5, points: { show: false },
      }));
      const options = {
        width: place.clientWidth, height: 220, series: [{}, ...series],
        axes: [axis, { ...axis, size: 60, incrs: whole }], scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] } },
      };
      place.textContent = "";
      drawn.set(place, new uPlot(options, [told.at, ...told.lines.map((one) => one.values)], place));
    }
  };

  document.addEventListener("htmx:sse:after:message", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); });
  draw();
})();
