"use strict";
// The state of the view. It survives a refresh, so everything is identified by name, not by index.
let data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8, DASHES = ["", "7 4", "2 3"]; // the colours are in the style sheet, for light and dark
const SHOWN = 8; // curves drawn initially: one per colour
const MANY_SEEDS = 5; // from here on the lines of single seeds are drawn only on demand
const state = {
  metric: data.metric, axis: data.axis, hidden: new Set(data.variants.slice(SHOWN).map((variant) => variant.name)),
  seeds: data.variants.every((variant) => variant.scores.length < MANY_SEEDS), intervals: true, allPairs: false,
  prompt: null, iteration: null, timeline: false, sorted: {}, folded: {}, slots: new Map(),
};

const colour = (i) => `var(--c${i % COLOURS})`;
const dash = (i) => DASHES[Math.floor(i / COLOURS) % DASHES.length];
// Variants are ordered by rank and keep the colour they had first.
function placeOf(name) {
  if (!state.slots.has(name)) state.slots.set(name, state.slots.size);
  return state.slots.get(name);
}
data.variants.forEach((variant) => placeOf(variant.name));
const isVariant = (name) => data.variants.some((variant) => variant.name === name);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(label, attributes, press) {
  const made = element("button", { type: "button", ...attributes }, ...[label].flat());
  made.addEventListener("click", () => press(made));
  return made;
}

// A sample of a line as drawn in the chart, for legends.
function swatch(i) {
  const made = drawn("svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" });
  made.append(drawn("line", { x1: 1, x2: 21, y1: 5, y2: 5, style: `stroke:${colour(i)}`, "stroke-dasharray": dash(i) }));
  return made;
}

// All digits of a mark of an axis, since marks may differ in the last ones alone.
function digits(value) {
  const size = Math.abs(value), [unit, name] = size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  return `${+(value / unit).toPrecision(12)}${name}`;
}

// About three digits.
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return digits(size < 1 || size >= 1e4 ? +value.toPrecision(3) : +value.toFixed(size >= 100 ? 0 : 2));
}

// The number format of the tables.
const exact = (value) => (value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1000) ? String(+value.toPrecision(3)) : value.toFixed(3));
const interval = (low, high) => (low === null ? "" : ` [${exact(low)}, ${exact(high)}]`);
const edges = (both) => (both ? interval(...both) : "");
const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Minimum and maximum. Math.min(...values) fails for a hundred thousand values.
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= 0.75 * rough);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => +((first + i) * step).toPrecision(12));
}

const line = (points, fx, fy) => points.map(([a, b], i) => `${i ? "L" : "M"}${fx(a).toFixed(1)} ${fy(b).toFixed(1)}`).join("");

// A frame with axes: maps numbers to pixels and draws the grid.
function frame(place, xs, ys, labels, right = 14) {
  const width = Math.max(place.clientWidth, 260), height = Math.round(Math.min(440, Math.max(250, width * 0.5)));
  const [x0, x1] = extent(xs), [low, high] = extent(ys);
  const room = (high - low || 1) * 0.05, [y0, y1] = [low - room, high + room];
  const marks = ticks(y0, y1, 5), left = 16 + 7 * extent(marks.map((at) => digits(at).length))[1];
  const top = 24, bottom = 42;
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": labels.join(" over ") });
  for (const at of marks) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }));
    svg.append(drawn("text", { x: left - 8, y: y(at) + 4, "text-anchor": "end" }, digits(at)));
  }
  for (const at of ticks(x0, x1, width < 500 ? 4 : 8)) {
    svg.append(drawn("text", { x: x(at), y: height - bottom + 20, "text-anchor": "middle" }, digits(at)));
  }
  svg.append(drawn("text", { x: left, y: 12 }, labels[0]));
  svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, labels[1]));
  return { svg, x, y, x0, x1, left, right, top, bottom, width, height };
}
