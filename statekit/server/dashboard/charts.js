// Charts over time with uPlot, small lines, bars and the heat map, in the colours of the theme.

import uPlot from "./vendor/uplot.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { bytes, count, seconds, shortCount, time } from "./format.js";

const UNITS = {
  count: shortCount,
  bytes,
  seconds,
  instant: (value) => time(new Date(value * 1000).toISOString()),
};

/** Return a colour of the theme, as canvases need it. */
function colour(name, alpha = 1) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return alpha === 1 ? found : found.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

const SERIES = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

/** Return a number that changes with the theme, so that charts are drawn again. */
function useTheme() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const next = () => setTurn((n) => n + 1);
    const query = matchMedia("(prefers-color-scheme: dark)");
    query.addEventListener("change", next);
    window.addEventListener("statekit-theme", next);
    return () => {
      query.removeEventListener("change", next);
      window.removeEventListener("statekit-theme", next);
    };
  }, []);
  return turn;
}

/** Labels of an axis of times, by their distance in seconds. */
const CLOCK = [[86_400, "{D} {MMM}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]].map(([step, text]) => [step, text, null, null, null, null, null, null, 1]);

/** Return the steps of an axis of counts: there is nothing between two of them. */
function wholeSteps(series, unit) {
  const isWhole = unit === "count" && series.every((each) => each.values.every((value) => value === null || Number.isInteger(value)));
  if (!isWhole) return {};
  const incrs = [];
  for (let power = 1; power <= 1e15; power *= 10) incrs.push(power, 2 * power, 5 * power);
  return { incrs };
}

const AXIS_FONT = "11px system-ui, sans-serif";
const pen = document.createElement("canvas").getContext("2d");

/** Return the width of an axis on which no label is cut. */
function axisWidth(_plot, labels) {
  pen.font = AXIS_FONT;
  const widths = (labels ?? []).map((label) => pen.measureText(label).width);
  return Math.ceil(Math.max(36, ...widths)) + 18;
}

function options(width, height, series, unit, isTime, xLabel) {
  const text = colour("--muted");
  const show = UNITS[unit];
  const axis = {
    stroke: text,
    font: AXIS_FONT,
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { stroke: colour("--grid"), width: 1, size: 4 },
  };
  const xValues = isTime ? CLOCK : (_, values) => values.map((v) => shortCount(v));
  return {
    width,
    height,
    padding: [8, 24, 0, 0],
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: isTime }, y: { range: (_, low, high) => (unit === "instant" ? uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true) : [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1]) } },
    axes: [
      { ...axis, values: xValues, space: 70, size: 26 },
      { ...axis, ...wholeSteps(series, unit), size: axisWidth, values: (_, values) => values.map((v) => show(v)) },
    ],
    legend: { live: true, markers: { fill: (plot, place) => plot.series[place].stroke(plot, place), width: 0 } },
    hooks: { setCursor: [(plot) => plot.cursor.idx ?? showLast(plot)] },
    series: [
      { label: xLabel, value: (_, v) => (v === null || v === undefined ? "–" : isTime ? time(new Date(v * 1000).toISOString()) : count(v)) },
      ...series.map((each, place) => ({
        label: each.label,
        stroke: colour(SERIES[place % SERIES.length]),
        width: 1.75,
        points: { show: false },
        fill: series.length === 1 ? colour(SERIES[place], 0.13) : undefined,
        value: (_, v) => (v === null || v === undefined ? "–" : show(v)),
      })),
    ],
  };
}

/** Show the last values in the legend, as long as the pointer is elsewhere. */
function showLast(plot) {
  if (plot.data[0].length) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

/** A chart. `x` are seconds since 1970, or numbers; `series` have a label and values. */
export function Chart({ title, unit = "count", x, series, height = 170, isTime = true, xLabel = "time" }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const theme = useTheme();
  const names = series.map((each) => each.label).join("\n");
  const data = [x, ...series.map((each) => each.values)];
  useEffect(() => {
    const element = holder.current;
    const width = () => Math.max(200, element.clientWidth);
    const own = new uPlot(options(width(), height, series, unit, isTime, xLabel), data, element);
    const observer = new ResizeObserver(() => own.setSize({ width: width(), height }));
    observer.observe(element);
    plot.current = own;
    return () => {
      observer.disconnect();
      own.destroy();
    };
  }, [names, unit, theme, height, isTime]);
  useEffect(() => {
    plot.current.setData(data);
    showLast(plot.current);
  }, [x, names, ...series.map((each) => each.values)]);
  const last = series.map((each) => `${each.label} ${UNITS[unit](each.values.at(-1) ?? 0)}`).join(", ");
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <div role="img" aria-label=${`${title}, last values: ${last}`} ref=${holder}></div>
  </figure>`;
}

/** A line without axes. */
export function Sparkline({ values, label, width = 96, height = 24 }) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return html`<span class="muted">–</span>`;
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const points = known.map((value, place) => {
    const x = 1 + (place / (known.length - 1)) * (width - 2);
    return `${x.toFixed(1)},${(height - 2 - ((value - low) / span) * (height - 4)).toFixed(1)}`;
  });
  return html`<svg class="sparkline" role="img" aria-label=${label} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
    <polyline points=${points.join(" ")} />
  </svg>`;
}

/** Cells whose colour says how many rows a key group has, compared with the mean. */
export function HeatMap({ groups, total }) {
  const rows = new Map(groups);
  const sum = groups.reduce((all, [, own]) => all + own, 0);
  const mean = sum / total || 1;
  const most = Math.max(1, ...groups.map(([, own]) => own));
  const columns = total > 512 ? 64 : 32;
  const per = Math.max(1, Math.ceil(total / 2048));
  const cells = [];
  for (let first = 0; first < total; first += per) {
    let own = 0;
    for (let group = first; group < first + per; group += 1) own += rows.get(group) ?? 0;
    cells.push([first, own]);
  }
  const size = columns === 64 ? 11 : 20;
  const [fullest, fullestRows] = groups.reduce((a, b) => (b[1] > a[1] ? b : a), [0, 0]);
  const label = `${count(total)} key groups with ${count(Math.round(mean))} rows on average. The fullest, key group ${fullest}, has ${count(fullestRows)}: ${(fullestRows / mean).toFixed(2)} times the mean.`;
  const height = Math.ceil(cells.length / columns) * size;
  return html`<figure class="heat">
    <svg role="img" aria-label=${label} viewBox=${`0 0 ${columns * size} ${height}`}>
      ${cells.map(([first, own], place) => {
        const level = own === 0 ? 0 : 1 + Math.min(6, Math.floor((own / (most * per)) * 6.999));
        const name = per === 1 ? `key group ${first}` : `key groups ${first} to ${Math.min(total, first + per) - 1}`;
        return html`<rect class=${`level-${level}`} x=${(place % columns) * size} y=${Math.floor(place / columns) * size} width=${size - 2} height=${size - 2} rx="2">
          <title>${`${name}: ${count(own)} rows, ${(own / (mean * per)).toFixed(2)} times the mean`}</title>
        </rect>`;
      })}
    </svg>
    <figcaption>${label}</figcaption>
  </figure>`;
}

/** A bar in a table cell: the share of the largest value. */
export function Bar({ share }) {
  return html`<svg class="bar" aria-hidden="true" viewBox="0 0 100 8" preserveAspectRatio="none"><rect width=${Math.max(0, Math.min(100, share * 100))} height="8" /></svg>`;
}
