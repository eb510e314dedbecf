"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
// Okabe and Ito's colours, which the colour-blind tell apart; dashes tell what follows them apart.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5fd0", "#8a8f98"];
const DASHES = ["", "6 4", "2 3"];
const hidden = new Set();
const colour = (i) => COLOURS[i % COLOURS.length];
const dash = (i) => DASHES[Math.floor(i / COLOURS.length) % DASHES.length];

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

function short(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  return size >= 100 ? value.toFixed(0) : size >= 1 || size === 0 ? String(+value.toFixed(2)) : String(+value.toPrecision(3));
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= 0.75 * rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

// A frame with axes: maps numbers to pixels, and draws the grid that they are read by.
function frame(place, xs, ys, labels) {
  const width = Math.max(place.clientWidth, 280), height = Math.min(420, Math.max(260, width * 0.5));
  const left = 52, right = 12, top = 10, bottom = 40;
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], low = Math.min(...ys), high = Math.max(...ys);
  const room = (high - low || 1) * 0.05, [y0, y1] = [low - room, high + room];
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": labels.join(" over ") });
  for (const at of ticks(y0, y1, 5)) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }));
    svg.append(drawn("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, short(at)));
  }
  for (const at of ticks(x0, x1, width < 500 ? 4 : 8)) {
    svg.append(drawn("text", { x: x(at), y: height - bottom + 18, "text-anchor": "middle" }, short(at)));
  }
  svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, labels[1]));
  return { svg, x, y, x0, x1, left, right, width };
}

const line = (points, fx, fy) => points.map(([a, b], i) => `${i ? "L" : "M"}${fx(a).toFixed(1)} ${fy(b).toFixed(1)}`).join("");

function curves(place, metric, axis) {
  place.replaceChildren();
  const shown = data.variants.map((variant, i) => ({ ...variant, i, curve: variant.curves[metric]?.[axis] }))
    .filter((variant) => variant.curve && !hidden.has(variant.i));
  if (!shown.length) { place.append(element("p", {}, "Nothing was recorded on this axis.")); return; }
  const points = shown.flatMap((v) => [...v.curve.mean, ...v.curve.seeds.flatMap((s) => s.points)]);
  const inBand = shown.flatMap((v) => v.curve.mean.flatMap((p) => p.slice(2)).filter((value) => value !== null));
  // An interval of two seeds may be far wider than what was seen; it is cut at the frame's edge.
  const seen = points.map((p) => p[1]), reach = (Math.max(...seen) - Math.min(...seen) || 1) * 0.5;
  const clamp = (value) => Math.max(Math.min(...seen) - reach, Math.min(Math.max(...seen) + reach, value));
  const f = frame(place, points.map((p) => p[0]), [...seen, ...inBand.map(clamp)], [metric, axis.replace("_", " ")]);
  for (const v of shown) {
    const sure = v.curve.mean.filter((p) => p[2] !== null);
    const edge = [...sure.map((p) => [p[0], clamp(p[3])]), ...sure.map((p) => [p[0], clamp(p[2])]).reverse()];
    if (edge.length) f.svg.append(drawn("path", { d: line(edge, f.x, f.y) + "Z", fill: colour(v.i), "fill-opacity": 0.13 }));
    for (const seed of v.curve.seeds) {
      f.svg.append(drawn("path", { d: line(seed.points, f.x, f.y), fill: "none", stroke: colour(v.i), "stroke-opacity": 0.35, "stroke-width": 1 }));
      const last = seed.points[seed.points.length - 1];
      if (seed.died && last) f.svg.append(drawn("text", { x: f.x(last[0]) - 4, y: f.y(last[1]) + 4, style: `fill:${colour(v.i)}` }, "✕"));
    }
    f.svg.append(drawn("path", { class: "mean", d: line(v.curve.mean, f.x, f.y), fill: "none", stroke: colour(v.i), "stroke-width": 2.5, "stroke-dasharray": dash(v.i) }));
  }
  place.append(f.svg);
  hover(place, f, shown);
}

function hover(place, f, shown) {
  const tip = element("div", { class: "tip", hidden: "" });
  place.append(tip);
  f.svg.addEventListener("pointermove", (event) => {
    const box = f.svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * f.width;
    const value = f.x0 + ((at - f.left) / (f.width - f.left - f.right)) * (f.x1 - f.x0);
    tip.replaceChildren();
    for (const v of shown) {
      const near = v.curve.mean.reduce((a, b) => (Math.abs(b[0] - value) < Math.abs(a[0] - value) ? b : a));
      const range = near[2] === null ? "" : ` [${short(near[2])}, ${short(near[3])}]`;
      const swatch = element("span", { class: "swatch", style: `background:${colour(v.i)}` });
      tip.append(element("div", {}, swatch, `${v.name}: ${short(near[1])}${range} at ${short(near[0])}, n = ${v.curve.seeds.length}`));
    }
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX - box.left + 12, Math.max(0, box.width - 300))}px`;
    tip.style.top = `${event.clientY - box.top + 12}px`;
  });
  f.svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// One dot for each seed, the mean and its interval: a row for each variant.
function finals(place) {
  place.replaceChildren();
  const rows = data.variants, width = Math.max(place.clientWidth, 280), step = 30, left = 16, right = 16;
  const inside = rows.flatMap((v) => v.scores.map((s) => s.score));
  const [low, high] = [Math.min(...inside), Math.max(...inside)], room = (high - low || 1) * 0.25;
  const x = (value) => left + ((Math.max(low - room, Math.min(high + room, value)) - low + room) / (high - low + 2 * room || 1)) * (width - left - right);
  const height = rows.length * (step + 14) + 26;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `last ${data.metric} of every seed` });
  rows.forEach((v, i) => {
    const y = i * (step + 14) + step;
    svg.append(drawn("text", { x: left, y: y - 12 }, `${v.name} (n = ${v.scores.length})`));
    if (v.low !== null) svg.append(drawn("line", { x1: x(v.low), x2: x(v.high), y1: y, y2: y, stroke: colour(i), "stroke-width": 3, "stroke-opacity": 0.5 }));
    for (const s of v.scores) {
      const dot = drawn("circle", { class: "seed", cx: x(s.score), cy: y, r: 4, fill: s.died ? "none" : colour(i), stroke: colour(i) });
      dot.append(drawn("title", {}, `seed ${s.seed}: ${short(s.score)}${s.died ? ", died" : ""}`));
      svg.append(dot);
    }
    svg.append(drawn("line", { x1: x(v.mean), x2: x(v.mean), y1: y - 9, y2: y + 9, stroke: "var(--ink)", "stroke-width": 2 }));
  });
  for (const at of ticks(low - room, high + room, width < 500 ? 4 : 8)) {
    svg.append(drawn("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, short(at)));
  }
  place.append(svg);
}

function table(of) {
  const head = element("tr", {}, ...of.columns.map((name) => element("th", {}, name)));
  const rows = of.rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", cell.length > 40 ? { class: "long" } : {}, cell))));
  const notes = of.notes.map((note) => element("p", { class: "note" }, note));
  return [element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))), ...notes];
}

function gallery(place) {
  const { prompts, iterations } = data.gallery;
  const prompt = element("select", { "aria-label": "prompt" }, ...prompts.map((text, i) => element("option", { value: i }, text.length > 90 ? text.slice(0, 90) + "…" : text)));
  const slider = element("input", { id: "slider", type: "range", min: 0, max: iterations.length - 1, value: iterations.length - 1, "aria-label": "iteration" });
  const said = element("output", { id: "at" }), columns = element("div", { class: "columns" });
  const full = element("pre", { class: "note" });
  const show = () => {
    const at = iterations[slider.value];
    said.textContent = `iteration ${at}`;
    full.textContent = prompts[prompt.value];
    columns.replaceChildren(...data.gallery.columns.map((column) => {
      const cells = column.cells[prompt.value]?.[at] ?? [];
      const pictures = element("div", { class: "pictures" }), texts = [];
      for (const cell of cells) {
        const said = cell.reward === null ? "no reward" : `reward ${short(cell.reward)}`;
        if (cell.picture) pictures.append(element("img", { src: cell.picture, alt: said, title: said }));
        else texts.push(element("pre", { title: said }, cell.text), element("p", { class: "note" }, said));
      }
      const empty = cells.length ? [] : [element("p", {}, "no sample here")];
      return element("div", { class: "cell" }, element("h3", {}, column.name), ...texts, ...(pictures.childElementCount ? [pictures] : []), ...empty);
    }));
  };
  slider.addEventListener("input", show);
  prompt.addEventListener("change", show);
  place.append(element("div", { class: "controls" }, prompt), element("div", { class: "controls" }, slider, said), full, columns);
  show();
}

function pressable(names, chosen, choose) {
  const group = element("div", { class: "controls", role: "group" });
  for (const name of names) {
    const button = element("button", { type: "button", "data-choice": name, "aria-pressed": String(name === chosen) }, name.replace("_", " "));
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      choose(name);
    });
    group.append(button);
  }
  return group;
}

function section(title, ...children) {
  const made = element("section", {}, element("h2", {}, title), ...children);
  document.querySelector("main").append(made);
  return made;
}

function main() {
  const chosen = { metric: data.metric, axis: data.axis };
  const claims = element("ul", { class: "verdicts" }, ...data.verdicts.map((v) => element("li", v.claim ? { class: "claim" } : {}, v.text)));
  if (data.verdicts.length) section("What can be claimed", claims);
  const chart = element("div", { class: "chart", id: "curves" }), dots = element("div", { class: "chart", id: "finals" });
  const redraw = () => { curves(chart, chosen.metric, chosen.axis); finals(dots); };
  const metrics = element("select", { id: "metric", "aria-label": "metric" }, ...data.metrics.map((name) => element("option", { value: name }, name)));
  metrics.value = data.metric;
  metrics.addEventListener("change", () => { chosen.metric = metrics.value; redraw(); });
  const axes = pressable(data.axes, chosen.axis, (axis) => { chosen.axis = axis; redraw(); });
  axes.id = "axes";
  const legend = element("div", { class: "controls", id: "legend" });
  data.variants.forEach((variant, i) => {
    const swatch = element("span", { class: "swatch", style: `background:${colour(i)}` });
    const button = element("button", { type: "button", "aria-pressed": "true" }, swatch, variant.name);
    button.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      button.setAttribute("aria-pressed", String(!hidden.has(i)));
      redraw();
    });
    legend.append(button);
  });
  section("Learning curves", element("p", {}, "Mean of all seeds with Student's 95 % interval; every seed is drawn faint, and a cross is where one died."),
    element("div", { class: "controls" }, element("label", {}, "metric "), metrics), axes, legend, chart);
  section(`Last ${data.metric} of every seed`, dots);
  for (const of of data.tables) section(of.title, ...table(of));
  if (data.gallery.iterations.length) gallery(section("Samples through training"));
  const theme = document.getElementById("theme"), root = document.documentElement;
  const set = (name) => { root.dataset.theme = name; theme.textContent = name === "dark" ? "light" : "dark"; };
  set(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  theme.addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
  addEventListener("resize", redraw);
  redraw();
}

main();
