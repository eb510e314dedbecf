// The page from its numbers: every section is made anew when they change, and the state stays.
const main = document.querySelector("main");

function section(id, label, title, ...children) {
  const made = element("section", { id }, element("h2", {}, title), ...children);
  main.append(made);
  document.querySelector("nav").append(element("a", { href: `#${id}` }, label));
  return made;
}

const tableOf = (name) => data.tables.find((one) => one.name === name);

// Numbers sort as numbers, by the first one of a cell; what has none comes last.
function ordered(rows, { column, down }) {
  const key = (row) => parseFloat(row[column].match(/^[^\w-]*(-?[\d.]+(e[-+]?\d+)?)/)?.[1] ?? "");
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (isNaN(x) || isNaN(y)) return isNaN(x) && isNaN(y) ? a[column].localeCompare(b[column]) : isNaN(x) - isNaN(y);
    return down ? y - x : x - y;
  };
  return rows.every((row) => isNaN(key(row))) && down ? [...rows].sort(compare).reverse() : [...rows].sort(compare);
}

function table(of) {
  const body = element("tbody"), heads = of.columns.map((name, column) => {
    const press = () => {
      const before = state.sorted[of.name];
      state.sorted[of.name] = { column, down: before?.column === column ? !before.down : true };
      fill();
    };
    return element("th", { scope: "col" }, button(name, {}, press));
  });
  const fill = () => {
    const order = state.sorted[of.name];
    heads.forEach((head, i) => head.setAttribute("aria-sort", order?.column !== i ? "none" : order.down ? "descending" : "ascending"));
    body.replaceChildren(...(order ? ordered(of.rows, order) : of.rows).map((row) => element("tr", {}, ...row.map((cell, i) => {
      const mark = i === 0 && placeOf(cell) >= 0 ? [swatch(placeOf(cell))] : [];
      return element("td", cell.length > 40 ? { class: "long" } : {}, ...mark, cell);
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

function claims() {
  const reach = reachOfPairs();
  const list = element("ul", { class: "pairs" });
  const fill = () => list.replaceChildren(...data.pairs.slice(0, state.allPairs ? undefined : FEW).map((pair) => {
    const p = pair.p === null ? "no p" : pair.p < 0.001 ? "p < .001" : `p = ${+pair.p.toFixed(3)}`.replace("0.", ".");
    const numbers = `${exact(pair.mean)}${interval(pair.low, pair.high)}, ${p}, n = ${[...new Set(pair.n)].join(" and ")}, ${pair.test}`;
    const said = element("div", {}, element("div", { class: "said" }, pair.text), element("p", { class: "note" }, numbers));
    return element("li", { class: pair.claim ? "claim" : "open" }, said, difference(pair, reach));
  }));
  fill();
  const more = data.pairs.length > FEW ? [button(`all ${data.pairs.length} pairs`, { "aria-pressed": state.allPairs }, (pressed) => {
    state.allPairs = !state.allPairs;
    pressed.setAttribute("aria-pressed", state.allPairs);
    fill();
  })] : [];
  return [list, ...more, ...(data.caveat ? [element("p", { class: "note caveat" }, data.caveat)] : [])];
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

// Charts are drawn once their place has a width, and again when it changes.
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
  const say = () => [...made.children].forEach((chip, i) => chip.setAttribute("aria-pressed", !state.hidden.has(data.variants[i].name)));
  data.variants.forEach(({ name }, i) => {
    const chip = button([swatch(i), name], { class: "chip", title: "click: show or hide; double click: this one alone" }, () => {
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
  say();
  return made;
}

function learning() {
  const chart = element("div", { class: "chart", id: "curve", tabindex: 0, "aria-label": "learning curves; arrow keys read them" });
  const draw = () => curves(chart);
  const metrics = element("select", { id: "metric", "aria-label": "metric" }, ...data.metrics.map((name) => element("option", {}, name)));
  metrics.value = state.metric;
  metrics.addEventListener("change", () => { state.metric = metrics.value; draw(); });
  const axes = pressable(data.axes, state.axis, (axis) => { state.axis = axis; draw(); });
  axes.id = "axes";
  later.push(draw);
  return [element("div", { class: "controls" }, metrics, axes, element("div", { class: "group" }, ...switches(draw))), legend(draw), chart,
    element("p", { class: "note" }, "Mean over seeds at each iteration, drawn at the mean place of the seeds, with Student's 95 % interval. A cross is where a seed died. A seed that ends before the others counts with the last score it has.")];
}

function render() {
  later = [];
  main.replaceChildren();
  document.querySelector("nav").replaceChildren();
  document.getElementById("headline").textContent = data.headline;
  document.getElementById("meta").textContent = data.meta;
  document.getElementById("provenance").textContent = data.provenance;
  if (data.bands) section("bands", "Band", `Beside ${data.bands.name}`, ...bands());
  if (data.pairs.length) section("claims", "Claims", "What can be claimed", ...claims());
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
  if (data.gallery.iterations.length || data.gallery.note) section("samples", "Samples", "Samples through training", ...gallery());
  const placed = data.profiles.length ? ["band", "tasks"] : ["band"];
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
