// The curves shown on this axis: x, mean, low, high and seeds of each variant. A seed without its
// own x has the x of the mean.
function seenCurves() {
  return data.variants.map((variant) => ({ name: variant.name, i: placeOf(variant.name), ...variant.curves[state.metric], x: variant.curves[state.metric]?.x[state.axis] }))
    .filter((variant) => variant.x && !state.hidden.has(variant.name))
    .map((variant) => ({ ...variant, seeds: variant.seeds.map((seed) => ({ ...seed, x: seed.x[state.axis] ?? variant.x })) }));
}

function curves(place) {
  place.replaceChildren();
  const shown = seenCurves();
  if (!shown.length) { place.append(element("p", { class: "note" }, "Nothing to draw: no variant is selected, or not all runs recorded this axis.")); return; }
  const seen = shown.flatMap((v) => [...v.mean, ...(state.seeds ? v.seeds.flatMap((s) => s.y) : [])]);
  // An interval may be far wider than the curves; it is clipped at the frame.
  const [least, most] = extent(seen), reach = (most - least || 1) * 0.5;
  const clamp = (value) => Math.max(least - reach, Math.min(most + reach, value));
  const edges = state.intervals ? shown.flatMap((v) => [...v.low, ...v.high]).filter((value) => value !== null).map(clamp) : [];
  const named = place.clientWidth >= 700 && shown.length <= 12;
  const right = named ? 24 + 7 * extent(shown.map((v) => clipped(v.name, 20).length))[1] : 14;
  const f = frame(place, shown.flatMap((v) => [...v.x, ...(state.seeds ? v.seeds.flatMap((s) => s.x) : [])]), [...seen, ...edges], [state.metric, state.axis.replace("_", " ")], right);
  for (const v of shown) variant(f, v, clamp);
  if (named) names(f, shown);
  place.append(f.svg);
  reader(place, f, shown);
}

function variant(f, v, clamp) {
  const points = v.x.map((x, i) => [x, v.mean[i], v.low[i], v.high[i]]), sure = points.filter((p) => p[2] !== null);
  if (state.intervals && sure.length) {
    const edge = [...sure.map((p) => [p[0], clamp(p[3])]), ...sure.map((p) => [p[0], clamp(p[2])]).reverse()];
    f.svg.append(drawn("path", { class: "interval", d: `${line(edge, f.x, f.y)}Z`, style: `fill:${colour(v.i)}` }));
  }
  for (const seed of state.seeds ? v.seeds : []) {
    const own = seed.y.map((y, i) => [seed.x[i], y]), last = own[own.length - 1];
    f.svg.append(drawn("path", { class: "seed", d: line(own, f.x, f.y), style: `stroke:${colour(v.i)}` }));
    if (seed.died && last) f.svg.append(drawn("text", { class: "cross", x: f.x(last[0]), y: f.y(last[1]) + 5, style: `fill:${colour(v.i)}`, "text-anchor": "middle" }, "✕"));
  }
  f.svg.append(drawn("path", { class: "mean", d: line(points, f.x, f.y), style: `stroke:${colour(v.i)}`, "stroke-dasharray": dash(v.i) }));
}

// Names at the ends of lines, moved apart if the ends are close.
function names(f, shown) {
  const ends = shown.map((v) => ({ v, x: f.x(v.x[v.x.length - 1]), y: f.y(v.mean[v.mean.length - 1]) })).sort((a, b) => a.y - b.y);
  const lowest = f.height - f.bottom;
  ends.forEach((end, i) => { end.at = i ? Math.max(end.y, ends[i - 1].at + 15) : end.y; });
  const over = Math.max(0, ends[ends.length - 1].at - lowest);
  for (const end of ends) f.svg.append(drawn("text", { class: "name", x: f.width - f.right + 8, y: end.at - over + 4, style: `fill:${colour(end.v.i)}` }, clipped(end.v.name, 20)));
}

// The values of the curves at one point, by pointer, touch or arrow keys, each with its n.
function reader(place, f, shown) {
  const tip = element("div", { class: "tip", hidden: "", role: "status" });
  const rule = drawn("line", { class: "rule", y1: f.top, y2: f.height - f.bottom, visibility: "hidden" });
  const xs = [...new Set(shown.flatMap((v) => v.x))].sort((a, b) => a - b);
  const nearest = (list, value) => list.reduce((best, x, i) => (Math.abs(x - value) < Math.abs(list[best] - value) ? i : best), 0);
  let at = -1;
  const read = (to) => {
    at = Math.max(0, Math.min(xs.length - 1, to));
    const rows = shown.map((v) => ({ v, i: nearest(v.x, xs[at]) })).sort((a, b) => b.v.mean[b.i] - a.v.mean[a.i]);
    tip.replaceChildren(element("b", {}, `${short(xs[at])} ${state.axis.replace("_", " ")}`), ...rows.slice(0, 12).map(({ v, i }) => {
      const alive = v.seeds.filter((seed) => seed.y.length > i).length;
      const said = `${exact(v.mean[i])}${interval(v.low[i], v.high[i])}`, n = `n = ${v.seeds.length}${alive < v.seeds.length ? `, ${alive} got here` : ""}`;
      return element("div", {}, swatch(v.i), element("span", {}, clipped(v.name, 32)), element("b", {}, said), element("i", {}, n));
    }), ...(rows.length > 12 ? [element("div", {}, `and ${rows.length - 12} lower`)] : []));
    tip.hidden = false;
    const scale = f.svg.clientWidth / f.width, left = f.x(xs[at]) * scale;
    rule.setAttribute("x1", f.x(xs[at])); rule.setAttribute("x2", f.x(xs[at])); rule.setAttribute("visibility", "visible");
    tip.style.left = `${left + 14 + tip.offsetWidth < place.clientWidth ? left + 14 : Math.max(0, left - 14 - tip.offsetWidth)}px`;
  };
  const hide = () => { tip.hidden = true; at = -1; rule.setAttribute("visibility", "hidden"); };
  const follow = (event) => {
    const box = f.svg.getBoundingClientRect(), px = ((event.clientX - box.left) / box.width) * f.width;
    read(nearest(xs, f.x0 + ((px - f.left) / (f.width - f.left - f.right)) * (f.x1 - f.x0)));
  };
  f.svg.append(rule);
  f.svg.addEventListener("pointermove", follow);
  f.svg.addEventListener("pointerdown", follow);
  f.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  place.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { event.preventDefault(); read(at < 0 ? (step > 0 ? 0 : xs.length - 1) : at + step); }
    if (event.key === "Escape") hide();
  };
  place.onblur = hide;
  place.append(tip);
}

// One row per variant, by rank: a dot per seed, the mean and its interval. A line joins the dots of
// seeds that are paired.
function finals(place) {
  const rows = data.variants.map((v) => ({ ...v, i: placeOf(v.name) }));
  const width = Math.max(place.clientWidth, 260), step = 46, pad = 12, height = rows.length * step + 44;
  const inside = rows.flatMap((v) => v.scores.map((s) => s.score));
  const [least, most] = extent(inside), room = (most - least || Math.abs(most) || 1) * 0.12;
  const [low, high] = [least - room, most + room];
  const x = (value) => pad + ((Math.max(low, Math.min(high, value)) - low) / (high - low)) * (width - 2 * pad);
  const y = (row) => row * step + 33;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `last ${data.metric} of every seed` });
  for (const at of ticks(low, high, width < 500 ? 4 : 8)) {
    svg.append(drawn("line", { class: "grid", x1: x(at), x2: x(at), y1: 4, y2: height - 40 }));
    svg.append(drawn("text", { x: x(at), y: height - 24, "text-anchor": "middle" }, digits(at)));
  }
  svg.append(drawn("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, data.metric));
  const ofSeed = rows.map((v) => new Map(v.scores.map((s) => [s.seed, s.score])));
  data.joined.forEach((seeds, row) => seeds.filter((seed) => ofSeed[row].has(seed) && ofSeed[row + 1].has(seed)).forEach((seed) => {
    svg.append(drawn("line", { class: "pair", x1: x(ofSeed[row].get(seed)), x2: x(ofSeed[row + 1].get(seed)), y1: y(row), y2: y(row + 1) }));
  }));
  rows.forEach((v, row) => {
    const said = `${exact(v.mean)}${interval(v.low, v.high)}, n = ${v.scores.length}`;
    const name = clipped(v.name, Math.floor((width - 2 * pad) / 6.6 - said.length - 2));
    svg.append(drawn("text", { class: "name halo", x: pad, y: y(row) - 15 }, name));
    svg.append(drawn("text", { class: "halo", x: width - pad, y: y(row) - 15, "text-anchor": "end" }, said));
    if (v.low !== null) svg.append(drawn("line", { class: "reach", x1: x(v.low), x2: x(v.high), y1: y(row), y2: y(row), style: `stroke:${colour(v.i)}` }));
    for (const s of v.scores) {
      const dot = drawn("circle", { class: s.finished ? "dot" : "dot open", cx: x(s.score), cy: y(row), r: 4, style: `--own:${colour(v.i)}` });
      dot.append(drawn("title", {}, `seed ${s.seed}: ${exact(s.score)}${s.died ? ", died" : s.running ? ", still running" : s.finished ? "" : ", not finished"}`));
      svg.append(dot);
    }
    svg.append(drawn("line", { class: "middle", x1: x(v.mean), x2: x(v.mean), y1: y(row) - 9, y2: y(row) + 9 }));
  });
  place.replaceChildren(svg);
}

// A row of the forest: the difference of a pair, its own interval (thin) and its simultaneous one
// (thick), on a scale shared by all rows, in per cent of the width.
const forestX = ([least, most]) => (value) => `${(2 + ((Math.max(least, Math.min(most, value)) - least) / (most - least)) * 96).toFixed(2)}%`;

function difference(pair, range) {
  const said = `difference ${exact(pair.mean)}${edges(pair.together)}`, x = forestX(range);
  const svg = drawn("svg", { class: "difference", role: "img", "aria-label": said });
  for (const at of ticks(...range, 4)) svg.append(drawn("line", { class: at ? "grid" : "zero", x1: x(at), x2: x(at), y1: "0%", y2: "100%" }));
  const marks = drawn("svg", { y: "50%", overflow: "visible" });
  const mark = (name, from, to, y1, y2) => marks.append(drawn("line", { class: name, x1: x(from), x2: x(to), y1, y2 }));
  if (pair.together) mark("together", ...pair.together, 0, 0);
  if (pair.alone) {
    mark("alone", ...pair.alone, 0, 0);
    for (const end of pair.alone) mark("alone", end, end, -4, 4);
  }
  mark("middle", pair.mean, pair.mean, -10, 10);
  svg.append(marks);
  return svg;
}

// The axis of the forest, below the last row.
function forestAxis(range) {
  const x = forestX(range), marks = ticks(...range, 4).map((at) => {
    const share = parseFloat(x(at)), place = share < 8 ? "0" : share > 92 ? "-100%" : "-50%";
    return element("span", { style: `left:${share}%;transform:translateX(${place})` }, digits(at));
  });
  return element("div", { class: "axis", "aria-hidden": "true" }, ...marks);
}

// The range of all intervals; one far wider than any difference is clipped.
function rangeOfPairs(pairs) {
  const [, most] = extent([...pairs.map((pair) => pair.mean), 1e-12]);
  const ends = pairs.flatMap((pair) => [...(pair.together ?? []), ...(pair.alone ?? [])]);
  const [low, high] = extent([0, most, ...ends]);
  return [Math.max(low, -2 * most), Math.min(high, 3 * most)];
}

// Over many tasks: the share of runs above each threshold, with its interval.
function profiles(place) {
  const f = frame(place, data.profiles[0].x, [0, 1], ["share of runs above a threshold", `threshold of ${data.metric}`]);
  data.profiles.forEach((one, i) => {
    const along = (ys) => one.x.map((x, j) => [x, ys[j]]);
    f.svg.append(drawn("path", { class: "interval", d: `${line([...along(one.high), ...along(one.low).reverse()], f.x, f.y)}Z`, style: `fill:${colour(i)}` }));
    f.svg.append(drawn("path", { class: "mean", d: line(along(one.share), f.x, f.y), style: `stroke:${colour(i)}`, "stroke-dasharray": dash(i) }));
  });
  place.replaceChildren(f.svg);
}

// The band of one variant of an experiment, and the runs compared with it.
function band(place, expected) {
  const zip = (ys) => expected.x.map((x, i) => [x, ys[i]]).filter((p) => p[1] !== null);
  const low = zip(expected.low), high = zip(expected.high), runs = expected.runs.map((run) => ({ ...run, points: zip(run.y) }));
  const ys = [...low, ...high, ...zip(expected.mean), ...runs.flatMap((run) => run.points)].map((p) => p[1]);
  const f = frame(place, expected.x, ys, [data.bands.metric, "iterations"]);
  if (low.length) f.svg.append(drawn("path", { class: "expected", d: `${line([...high, ...low.reverse()], f.x, f.y)}Z` }));
  f.svg.append(drawn("path", { class: "expected-mean", d: line(zip(expected.mean), f.x, f.y) }));
  for (const run of runs) {
    f.svg.append(drawn("path", { class: run.holds ? "own" : "own outside", d: line(run.points, f.x, f.y) }));
    expected.x.forEach((x, i) => {
      if (!run.outside[i]) return;
      const dot = drawn("circle", { class: "outside", cx: f.x(x), cy: f.y(run.y[i]), r: 5 });
      dot.append(drawn("title", {}, `${run.name}: ${exact(run.y[i])} at ${x}, band${interval(expected.low[i], expected.high[i])}, n = ${expected.n}`));
      f.svg.append(dot);
    });
  }
  place.replaceChildren(f.svg);
}
