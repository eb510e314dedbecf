"""Plots of a run, from its metrics.jsonl alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tandem.record import durable, jsonl
from tandem.record.finished import CURVES
from tandem.record.fonts import boxes_for_missing_letters
from tandem.record.galleries import draw_progress
from tandem.record.panels import PAINTED, Lines, Panel, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1f2933", "#e3e7eb"
COLOURS = ("#1b6ca8", "#e07a1f", "#2f9e5b", "#b83b5e")
SMOOTHING = 0.03  # standard deviation of the smoothing kernel, as a share of the points
# Evaluations and sources up to which the heat map grows: beyond 2^16 pixels nothing draws it.
MOST_COLUMNS, MOST_ROWS = 60, 120
FRONTIER = 0.5  # accuracy that the line on the heat map follows

Points = tuple[list[int], list[float]]


def draw_run(run_dir: Path) -> None:
    """Draw every plot that has data; curves.png last, as it marks a finished run."""
    draw_heatmap(run_dir)
    draw_progress(run_dir)
    draw_curves(run_dir)


def draw_curves(run_dir: Path) -> Path:
    """Draw curves.png in the run directory: every panel that has data."""
    from matplotlib.figure import Figure

    lines = jsonl.read(run_dir / "metrics.jsonl")
    panels = panels_of(lines)
    tries = _tries(lines)
    count = len(panels) + bool(tries)
    columns = 3 if count > 4 else max(1, min(2, count))
    rows = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(4.3 * columns, 2.8 * rows + 0.3), layout="constrained")
    places = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    if tries:
        _draw_tries(places.pop(2 if count > 2 else -1), tries)
    for axes, panel in zip(places, panels, strict=True):
        _draw(axes, panel, lines)
    return _save(figure, run_dir / CURVES, run_dir.name)


def draw_heatmap(run_dir: Path) -> Path | None:
    """heatmap.png: accuracy of every source against iteration; None with fewer than two sources.

    Sources that are numbered (length_02, length_03) get a line where accuracy falls through 1/2.
    """
    from matplotlib.figure import Figure

    lines = [line for line in jsonl.read(run_dir / "metrics.jsonl") if "eval/accuracy" in line]
    prefix = "eval/accuracy/"
    names = {name for line in lines for name in line if name.startswith(prefix)}
    sources = sorted((name.removeprefix(prefix) for name in names), key=_natural)
    if len(sources) < 2:
        return None
    grid = [[_number(line.get(prefix + source)) for line in lines] for source in sources]
    columns, rows = min(max(len(lines), 8), MOST_COLUMNS), min(len(sources), MOST_ROWS)
    figure = Figure(figsize=(2.4 + 0.45 * columns, 1.3 + 0.38 * rows), layout="constrained")
    under = "ODE" if any(PAINTED in line for line in lines) else "T = 1"
    axes = _draw_grid(figure, grid, sources, [line["iteration"] for line in lines])
    _finish(axes, f"held-out accuracy, {under}", "iteration", legend=False)
    axes.grid(False)
    return _save(figure, run_dir / "heatmap.png", run_dir.name)


def find_frontier(column: Sequence[float]) -> float:
    """The place in a column, easiest first, where accuracy falls below 1/2, by interpolation."""
    for i, value in enumerate(column):
        if not value >= FRONTIER:
            below = column[i - 1] if i else 1.0
            return i - 0.5 if i == 0 else i - 1 + (below - FRONTIER) / (below - value)
    return len(column) - 0.5


def smooth(values: Sequence[float]) -> list[float]:
    """The values smoothed by a centred Gaussian kernel, so without lag."""
    reach = max(1.0, SMOOTHING * len(values))
    offsets = np.arange(-math.ceil(3 * reach), math.ceil(3 * reach) + 1)
    kernel = np.exp(-0.5 * (offsets / reach) ** 2)
    padded = np.pad(np.stack([values, np.ones(len(values))]), ((0, 0), (len(kernel) // 2,) * 2))
    total, weight = (np.convolve(row, kernel, mode="valid") for row in padded)
    return (total / weight).tolist()


def _points(lines: Lines, name: str) -> Points:
    known = [(line["iteration"], line[name]) for line in lines if line.get(name) is not None]
    return [i for i, _ in known], [value for _, value in known]


def _tries(lines: Lines) -> dict[int, dict[int, float]]:
    """Iteration -> k -> pass@k, for the first and the last time that it was measured."""
    found: dict[int, dict[int, float]] = {}
    for line in lines:
        ks = {int(n[10:]): x for n, x in line.items() if re.fullmatch(r"eval/pass@\d+", n)}
        known = {k: x for k, x in sorted(ks.items()) if x is not None}
        if len(known) > 1:
            found[line["iteration"]] = known
    return {
        iteration: found[iteration] for iteration in sorted({*list(found)[:1], *list(found)[-1:]})
    }


def _draw(axes: Axes, panel: Panel, lines: Lines) -> None:
    drawn = [name for name in panel.names if _points(lines, name)[0]]
    for name, colour in zip(drawn, COLOURS, strict=False):
        _draw_curve(axes, _points(lines, name), name, label=panel.names[name], colour=colour)
    _finish(axes, panel.title, "iteration", legend=len(drawn) > 1)
    axes.set_xlim(0, max(1, lines[-1]["iteration"]))
    if panel.share:
        axes.set_ylim(-0.02, 1.02)
    elif panel.floor is not None:
        axes.set_ylim(bottom=panel.floor)


def _draw_curve(axes: Axes, points: Points, name: str, *, label: str, colour: str) -> None:
    x, y = points
    if name.startswith("eval/"):
        axes.plot(x, y, "o-", color=colour, lw=1.8, ms=3.5, label=label)
        return
    # A training number is of one iteration's samples, so noisy: points with a smoothed line.
    axes.plot(x, y, "o", color=colour, alpha=0.22, ms=3, mew=0)
    axes.plot(x, smooth(y), "-", color=colour, lw=1.8, label=label)


def _draw_tries(axes: Axes, tries: Mapping[int, Mapping[int, float]]) -> None:
    for (iteration, by_k), colour in zip(tries.items(), ("#8895a3", COLOURS[0]), strict=False):
        label = f"iteration {iteration}"
        axes.plot(list(by_k), list(by_k.values()), "o-", color=colour, lw=1.8, ms=4, label=label)
    axes.set_xscale("log", base=2)
    ticks = sorted({k for by_k in tries.values() for k in by_k})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_ylim(-0.02, 1.02)
    _finish(axes, "held-out pass@k", "k tries", legend=True)


def _finish(axes: Axes, title: str, along: str, *, legend: bool) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold")
    axes.set_xlabel(along, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, length=0)
    axes.grid(color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=INK, lw=0.8)
    if legend:
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.4)


def _draw_grid(
    figure: Figure, grid: list[list[float]], sources: list[str], iterations: list[int]
) -> Axes:
    axes = figure.add_subplot()
    picture = axes.imshow(
        grid, origin="lower", aspect="auto", cmap="YlGnBu", vmin=0, vmax=1, interpolation="nearest"
    )
    if all(re.search(r"\d+$", source) for source in sources):
        edge = [find_frontier(column) for column in zip(*grid, strict=True)]
        axes.plot(range(len(edge)), edge, color="white", lw=4.5, solid_capstyle="round")
        axes.plot(range(len(edge)), edge, color="#e07a1f", lw=2.2, label="accuracy 1/2")
        axes.legend(loc="upper left", fontsize=8.5, framealpha=0.9, edgecolor="none")
    every = math.ceil(len(iterations) / 12)
    shown = range(0, len(iterations), every)
    axes.set_xticks(list(shown), [str(iterations[i]) for i in shown])
    titled = range(0, len(sources), math.ceil(len(sources) / MOST_ROWS))
    named = [sources[i].replace("_", " ") for i in titled]
    axes.set_yticks(list(titled), named, parse_math=False)
    bar = figure.colorbar(picture, ax=axes, pad=0.02, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8.5, colors=INK, length=0)
    return axes


def _natural(name: str) -> list[tuple[int, str]]:
    """length_10 after length_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _save(figure: Figure, path: Path, title: str) -> Path:
    figure.suptitle(title, x=0.01, ha="left", fontsize=9, color="#6b7785", parse_math=False)
    drawn = BytesIO()
    with boxes_for_missing_letters():
        figure.savefig(drawn, format="png", dpi=130, facecolor="white")
    durable.replace(path, drawn.getvalue())
    return path
