// The answers of the variants to one prompt, at one iteration or at all of them.
function cellOf(column, prompt, iteration) {
  const at = data.gallery.prompts.indexOf(prompt);
  return column.cells[at]?.[iteration] ?? [];
}

function answers(cells) {
  if (!cells.length) return [element("p", { class: "note" }, "no sample")];
  const pictures = element("div", { class: "pictures" }), texts = [];
  for (const cell of cells) {
    const said = cell.reward === null ? "no reward" : `reward ${short(cell.reward)}`;
    const picture = cell.picture && element("img", { src: cell.picture, alt: said, title: said });
    if (picture) pictures.append(cell.written === undefined ? picture : element("figure", {}, picture, element("figcaption", {}, cell.written)));
    else texts.push(element("div", { class: "answer" }, element("pre", {}, cell.text), element("span", { class: "badge" }, said)));
  }
  return pictures.childElementCount ? [...texts, pictures] : texts;
}

function moment(prompt, iteration) {
  return element("div", { class: "columns" }, ...data.gallery.columns.map((column) =>
    element("div", { class: "cell" }, element("h3", {}, swatch(placeOf(column.variant)), column.name), ...answers(cellOf(column, prompt, iteration)))));
}

function timeline(prompt) {
  const head = element("tr", {}, element("th", {}, "iteration"), ...data.gallery.columns.map((column) => element("th", {}, swatch(placeOf(column.variant)), column.name)));
  const rows = data.gallery.iterations.map((iteration) => element("tr", {}, element("th", { scope: "row" }, String(iteration)),
    ...data.gallery.columns.map((column) => element("td", { class: "long" }, ...answers(cellOf(column, prompt, iteration).slice(0, 4))))));
  return element("div", { class: "scroll" }, element("table", { class: "timeline" }, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function gallery() {
  const { prompts, iterations } = data.gallery, notes = data.gallery.note ? [element("p", { class: "note" }, data.gallery.note)] : [];
  if (!iterations.length) return notes;
  if (!prompts.includes(state.prompt)) state.prompt = prompts[0];
  const select = element("select", { id: "prompt", "aria-label": "prompt" }, ...prompts.map((text, i) => element("option", { value: i }, clipped(text, 90))));
  const slider = element("input", { id: "slider", type: "range", min: 0, max: iterations.length - 1, "aria-label": "iteration" });
  const said = element("output", { id: "at" }), full = element("pre", { class: "prompt" }), shown = element("div", { id: "shown" });
  const place = () => (iterations.includes(state.iteration) ? iterations.indexOf(state.iteration) : iterations.length - 1);
  const show = () => {
    const at = iterations[place()];
    select.value = prompts.indexOf(state.prompt);
    slider.value = place();
    slider.disabled = state.timeline;
    said.textContent = state.timeline ? "all iterations" : `iteration ${at}`;
    full.textContent = state.prompt;
    shown.replaceChildren(state.timeline ? timeline(state.prompt) : moment(state.prompt, at));
  };
  // On a live page the last iteration stays selected when new ones appear.
  slider.addEventListener("input", () => { state.iteration = +slider.value === iterations.length - 1 ? null : iterations[slider.value]; show(); });
  select.addEventListener("change", () => { state.prompt = prompts[select.value]; show(); });
  const step = (by) => { state.prompt = prompts[(prompts.indexOf(state.prompt) + by + prompts.length) % prompts.length]; show(); };
  const whole = button("all iterations", { id: "timeline", "aria-pressed": state.timeline }, (pressed) => {
    state.timeline = !state.timeline;
    pressed.setAttribute("aria-pressed", state.timeline);
    show();
  });
  show();
  return [
    element("div", { class: "controls" }, button("‹", { "aria-label": "previous prompt" }, () => step(-1)), select, button("›", { "aria-label": "next prompt" }, () => step(1)), whole),
    element("div", { class: "controls" }, slider, said), full, shown,
    element("p", { class: "note" }, "Prompts on which the variants differ most come first, so they are not a representative sample."), ...notes,
  ];
}
