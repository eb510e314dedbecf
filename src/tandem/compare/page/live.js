// Polls the server for new numbers and keeps the view.
const PAUSE = 3000, PATIENCE = 20000; // milliseconds
let waiting = null, held = false, touched = -Infinity;
const touch = () => { touched = performance.now(); };
addEventListener("keydown", touch, true);
addEventListener("pointerdown", () => { held = true; touch(); }, true);
addEventListener("pointermove", (event) => { if (event.buttons) touch(); else held = false; }, true);
addEventListener("pointerup", () => { held = false; }, true);
addEventListener("pointercancel", () => { held = false; }, true);

// A refresh would close an open list and interrupt dragging a slider. A list keeps the focus after a
// choice, so it is taken for open only for some time after the last key or touch.
const busy = () => performance.now() - touched < PATIENCE && (held || document.activeElement?.tagName === "SELECT");

function take(found) {
  const at = scrollY, focused = document.activeElement?.id;
  data = found;
  if (!data.metrics.includes(state.metric)) state.metric = data.metric;
  if (!data.axes.includes(state.axis)) state.axis = data.axis;
  render();
  scrollTo(0, at);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  const light = document.getElementById("live"), now = new Date().toLocaleTimeString();
  try {
    const answer = await fetch(`data.json?tag=${(waiting ?? data).tag}`, { cache: "no-store" });
    const fault = answer.ok ? "" : await answer.text();
    if (answer.status === 200) waiting = await answer.json();
    light.className = fault ? "lost fault" : "";
    light.textContent = fault || `live, ${now}`;
  } catch {
    if (light.className !== "lost") light.textContent = `server not reachable since ${now}`;
    light.className = "lost";
  }
  try {
    if (waiting && !busy()) {
      take(waiting);
      waiting = null;
    }
  } catch (error) {
    light.className = "lost fault";
    light.textContent = String(error);
  }
  setTimeout(refresh, PAUSE);
}

refresh();
