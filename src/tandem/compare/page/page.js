// The page. Every section is rebuilt when the numbers change; the state of the view stays.
const main = document.querySelector("main");

function section(id, label, title, ...children) {
  const made = element("section", { id }, element("h2", {}, title), ...children);
  main.append(made);
  document.querySelector("nav").append(element("a", { href: `#${id}` }, label));
  return made;
}

const tableOf = (name) => data.tables.find((one) => one.name === name);

// Cells sort by their first number; cells without one come last.
function ordered(rows, column, down) {
  const key = (row) => parseFloat(row[column].match(/^[^\w-]*(-?[\d.]+(e[-+]?\d+)?)/)?.[1] ?? "");
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (isNaN(x) || isNaN(y)) return isNaN(x) && isNaN(y) ? a[column].localeCompare(b[column]) : isNaN(x) - isNaN(y);
    return down ? y - x : x - y;
  };
  return rows.every((row) => isNaN(key(row))) && down ? [...rows].sort(compare).reverse() : [...rows].sort(compare);
}

function table(of) {
  // Two heads may have one text, such as a judge and its change.
  const named = of.columns.map((name, i) => `${name} ${of.columns.slice(0, i).filter((one) => one === name).length}`);
  const body = element("tbody"), heads = of.columns.map((name, column) => {
    const press = () => {
      const before = state.sorted[of.name];
      state.sorted[of.name] = { head: named[column], down: before?.head === named[column] ? !before.down : true };
      fill();
    };
    return element("th", { scope: "col", ...(name === "verdict" ? { class: name } : {}) }, button(name, {}, press));
  });
  const fill = () => {
    const { head: chosen, down } = state.sorted[of.name] ?? {}, column = named.indexOf(chosen);
    heads.forEach((head, i) => head.setAttribute("aria-sort", column !== i ? "none" : down ? "descending" : "ascending"));
    body.replaceChildren(...(column < 0 ? of.rows : ordered(of.rows, column, down)).map((row) => element("tr", {}, ...row.map((cell, i) => {
      const mark = i === 0 && isVariant(cell) ? [swatch(placeOf(cell))] : [];
      const shown = [...(cell.length > 40 ? ["long"] : []), ...(of.columns[i] === "verdict" ? ["verdict"] : [])];
      return element("td", shown.length ? { class: shown.join(" ") } : {}, ...mark, cell);
    }))));
  };
  fill();
  const notes = of.notes.map((note) => element("p", { class: "note" }, note));
  return [element("div", { class: "scroll", tabindex: 0 }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)), ...notes];
}

function folded(of, open) {
  const made = element("details", { class: "table", id: `table-${of.name}` }, element("summary", {}, of.title), ...table(of));
  made.open = state.folded[of.name] ?? open;
  made.addEventListener("toggle", () => { state.folded[of.name] = made.open; });
  return made;
}

const FEW = 10;

// All pairs if they are few; else the best variant against each of the others, by rank.
function chosenPairs() {
  if (data.pairs.length <= FEW || state.allPairs) return data.pairs;
  const ranks = new Map(data.variants.map((variant, i) => [variant.name, i]));
  return data.pairs.filter((pair) => pair.of_best).sort((a, b) => ranks.get(a.other) - ranks.get(b.other));
}

// For example "n = 10, paired t" if it holds for all pairs; else "".
function sharedDesign() {
  const all = new Set(data.pairs.map(design));
  return all.size === 1 ? [...all][0] : "";
}

const design = (pair) => `n = ${[...new Set(pair.n)].join(" and ")}, ${pair.test}`;

// Under a heading with the best variant, a row names only the other one.
function claim(pair, range, ofBest) {
  const text = !ofBest ? pair.text : pair.claim ? `${pair.verb} ${pair.other}` : pair.text.replace(`${pair.better} and `, "");
  const p = pair.p === null ? "" : pair.p < 0.001 ? ", p < 0.001" : `, p = ${pair.p.toFixed(3)}`;
  const numbers = `${exact(pair.mean)}${edges(pair.together)}${p}${sharedDesign() ? "" : `, ${design(pair)}`}`;
  const said = element("div", {}, element("div", { class: "said" }, text), element("p", { class: "note" }, numbers));
  if (pair.advice) said.append(element("p", { class: "note" }, pair.advice));
  return element("li", { class: pair.claim ? "claim" : "open" }, said, element("div", { class: "plot" }, difference(pair, range)));
}

function claims() {
  const list = element("ul", { class: "pairs" });
  const fill = () => {
    const pairs = chosenPairs(), range = rangeOfPairs(pairs), best = data.variants[0].name;
    const ofBest = pairs.length < data.pairs.length && pairs.every((pair) => pair.better === best);
    const head = ofBest ? [element("li", { class: "scale" }, element("h3", {}, swatch(placeOf(best)), best))] : [];
    const axis = element("li", { class: "scale" }, element("p", { class: "note" }, `difference in ${data.metric}`), forestAxis(range));
    list.replaceChildren(...head, ...pairs.map((pair) => claim(pair, range, ofBest)), axis);
  };
  fill();
  const more = data.pairs.length > FEW ? [button(`all ${data.pairs.length} pairs`, { "aria-pressed": state.allPairs }, (pressed) => {
    state.allPairs = !state.allPairs;
    pressed.setAttribute("aria-pressed", state.allPairs);
    fill();
  })] : [];
  const key = element("p", { class: "note" }, `${sharedDesign() ? `${sharedDesign()}. ` : ""}95 % intervals. Thick: simultaneous over all pairs; a claim is made where it excludes 0. Thin: for this pair alone.`);
  return [list, key, ...more, ...(data.caveat ? [element("p", { class: "note caveat" }, data.caveat)] : [])];
}

function bands() {
  const charts = data.bands.variants.map((expected) => {
    const place = element("div", { class: "chart band" });
    const runs = expected.runs.map((run) => element("li", { class: run.holds ? "inside" : "outside" }, element("b", {}, run.name), ` ${run.text}`));
    const made = element("div", {}, element("h3", {}, `${expected.name}, band of n = ${expected.n}`), place, element("ul", { class: "runs" }, ...runs));
    later.push(() => band(place, expected));
    return made;
  });
  const others = data.bands.others.map((run) => element("li", { class: "outside" }, element("b", {}, run.name), ` ${run.text}`));
  return [element("div", { class: "columns wide" }, ...charts), element("ul", { class: "runs" }, ...others), folded(tableOf("band"), false)];
}

// Charts are drawn once their element has a width, and again when it changes.
let later = [];
const redraw = () => later.forEach((draw) => draw());

function pressable(names, chosen, choose) {
  const group = element("div", { class: "group", role: "group" });
  group.append(...names.map((name) => button(name.replace("_", " "), { "data-choice": name, "aria-pressed": name === chosen }, (pressed) => {
    for (const other of group.children) other.setAttribute("aria-pressed", other === pressed);
    choose(name);
  })));
  return group;
}

function switches(draw) {
  return [["seeds", "every seed"], ["intervals", "95 % intervals"]].map(([name, label]) =>
    button(label, { "data-switch": name, "aria-pressed": state[name] }, (pressed) => {
      state[name] = !state[name];
      pressed.setAttribute("aria-pressed", state[name]);
      draw();
    }));
}

function legend(draw) {
  const made = element("div", { class: "controls", id: "legend" });
  const say = () => [...made.querySelectorAll(".chip")].forEach((chip, i) => chip.setAttribute("aria-pressed", !state.hidden.has(data.variants[i].name)));
  data.variants.forEach(({ name }) => {
    const chip = button([swatch(placeOf(name)), name], { class: "chip", title: "click: show or hide; double click: show only this one" }, () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      say(); draw();
    });
    chip.addEventListener("dblclick", () => {
      const alone = data.variants.every((other) => state.hidden.has(other.name) === (other.name !== name));
      state.hidden = new Set(alone ? [] : data.variants.map((other) => other.name).filter((other) => other !== name));
      say(); draw();
    });
    made.append(chip);
  });
  if (data.variants.length > SHOWN) {
    made.append(button("all", { title: "show all curves, or only the highest ones" }, () => {
      state.hidden = new Set(state.hidden.size ? [] : data.variants.slice(SHOWN).map((variant) => variant.name));
      say(); draw();
    }));
  }
  say();
  return made;
}

function learning() {
  const chart = element("div", { class: "chart", id: "curve", tabindex: 0, "aria-label": "learning curves; arrow keys show the values" });
  const draw = () => curves(chart);
  const metrics = element("select", { id: "metric", "aria-label": "metric" }, ...data.metrics.map((name) => element("option", {}, name)));
  metrics.value = state.metric;
  metrics.addEventListener("change", () => { state.metric = metrics.value; draw(); });
  const axes = pressable(data.axes, state.axis, (axis) => { state.axis = axis; draw(); });
  axes.id = "axes";
  later.push(draw);
  return [element("div", { class: "controls" }, metrics, axes, element("div", { class: "group" }, ...switches(draw))), legend(draw), chart,
    element("p", { class: "note" }, "Mean over seeds at each iteration, drawn at the mean axis value of the seeds, with Student's 95 % interval. A cross marks where a seed died. A seed that ended early counts with its last score.")];
}

// Below the headline: other differences between the variants, and what to run next.
function advice() {
  const [sentence, ...commands] = data.next;
  const next = sentence ? [element("p", {}, element("b", {}, "Next: "), sentence), ...commands.map((one) => element("pre", { class: "command" }, one))] : [];
  return [...data.warnings.map((one) => element("p", { class: "warning" }, one)), ...next];
}

function render() {
  later = [];
  main.replaceChildren();
  document.querySelector("nav").replaceChildren();
  document.getElementById("headline").textContent = data.headline;
  document.getElementById("advice").replaceChildren(...advice());
  document.getElementById("meta").textContent = data.meta;
  document.getElementById("provenance").textContent = data.provenance;
  if (data.bands) section("bands", "Band", `Compared with ${data.bands.name}`, ...bands());
  if (data.pairs.length) section("claims", "Claims", "What can be claimed", ...claims());
  const judged = tableOf("judges");
  if (judged) section("judges", "Judge", judged.title, ...table(judged));
  if (data.variants.length) {
    const dots = element("div", { class: "chart", id: "finals" });
    later.push(() => finals(dots));
    section("scores", "Scores", `Last ${data.metric} of every seed`, dots);
    section("curves", "Curves", "Learning curves", ...learning());
  }
  if (data.profiles.length) {
    const chart = element("div", { class: "chart", id: "profile" });
    later.push(() => profiles(chart));
    const names = data.profiles.map((one, i) => element("span", {}, swatch(i), ` ${one.name}, n = ${one.n} scores`));
    section("tasks", "Tasks", "Over all tasks", chart, element("div", { class: "controls" }, ...names), folded(tableOf("tasks"), true));
  }
  if (data.gallery.iterations.length || data.gallery.note) section("samples", "Samples", "Samples during training", ...gallery());
  const placed = data.profiles.length ? ["band", "judges", "tasks"] : ["band", "judges"];
  const rest = data.tables.filter((one) => !placed.includes(one.name));
  if (rest.length) section("tables", "Tables", "Tables", ...rest.map((one) => folded(one, one.rows.length <= 2 * FEW)));
  redraw();
}

function dress() {
  const theme = document.getElementById("theme"), root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const say = () => { theme.textContent = now() === "dark" ? "light" : "dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = now() === "dark" ? "light" : "dark"; say(); });
  dark.addEventListener("change", say);
  say();
}

addEventListener("resize", redraw);
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
dress();
render();
