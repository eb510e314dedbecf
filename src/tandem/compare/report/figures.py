"""The plots of a comparison as vector graphics, for papers."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from tandem.compare.comparison import Comparison
from tandem.compare.learning_curves import align_curves, draw_mean
from tandem.compare.pairs import choose_pairs
from tandem.compare.scores import bounds_of, rank
from tandem.record.fonts import boxes_for_missing_letters
from tandem.record.foreign import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, as in the report.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#e69f00", "#56b4e9", "#7a5fd0", "#8a8f98"),
)
DASHES = ("-", "--", ":")
MANY_SEEDS = 5  # from here on single seeds are not drawn, as in the report
NAME = 30  # characters per line of a variant's name
LINE = 0.17  # inches per line of a name


def draw_plots(found: Comparison, line: str) -> dict[str, bytes]:
    """curves.pdf, scores.pdf and, over many tasks, profiles.pdf, by name; `line` is their
    provenance, written into the metadata."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    draw = {"curves": _draw_curves, "scores": _draw_scores}
    draw |= {"profiles": _draw_profiles} if found.over_tasks else {}
    files = {}
    for name, onto in draw.items():
        figure = Figure(layout="constrained")
        FigureCanvasPdf(figure)
        names = onto(figure.add_subplot(), found)
        figure.set_size_inches(5.5, 3 + LINE * sum(1 + name.count("\n") for name in names))
        # No date, so that the same runs give the same file.
        about = {"Subject": line, "CreationDate": None}
        drawn = BytesIO()
        with boxes_for_missing_letters():
            figure.savefig(drawn, format="pdf", metadata=about)
        files[f"{name}.pdf"] = drawn.getvalue()
    return files


def _literal(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return plain(text).replace("$", r"\$")


def _label(name: str, count: int) -> str:
    """A variant and its number of scores, in lines."""
    lines = wrap(f"{name} (n = {count})", NAME, break_on_hyphens=False)
    return "\n".join(map(_literal, lines))


def choose_style(place: int) -> dict[str, str]:
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash}


def _draw_curves(axes: Axes, found: Comparison) -> list[str]:
    """Each `_draw_` returns the labels it has drawn, for which the figure needs space."""
    few = all(len(one.scores) < MANY_SEEDS for one in found.variants)
    for place, one in enumerate(rank(found.variants)):
        curves = align_curves(one.variant.runs, found.metric, found.axis)
        if curves is None:
            continue
        own = choose_style(place)
        for x, seed, lived in zip(curves.x, curves.y, curves.lived, strict=True) if few else ():
            axes.plot(x[lived], seed[lived], alpha=0.3, linewidth=0.6, **own)
        points = draw_mean(curves, bounds_of(found.metric))
        # Without an interval low and high are None, which becomes NaN and leaves a gap.
        x, mean, low, high = np.array(points, dtype=np.float64).T
        axes.plot(x, mean, linewidth=1.6, label=_label(one.variant.name, len(curves.y)), **own)
        axes.fill_between(x, low, high, alpha=0.15, color=own["color"], linewidth=0)
    axes.set(xlabel=found.axis.replace("_", " "), ylabel=_literal(found.metric))
    return _add_legend(axes)


def _add_legend(axes: Axes) -> list[str]:
    """Below the plot, where it hides no curve."""
    curves, names = axes.get_legend_handles_labels()
    if names:
        axes.figure.legend(
            curves, names, loc="outside lower center", ncols=2, frameon=False, fontsize="small"
        )
    return names


def _draw_profiles(axes: Axes, found: Comparison) -> list[str]:
    for place, one in enumerate(found.over_tasks):
        own, profile = choose_style(place), one.profile
        name = _label(one.name, one.mean.scores)
        axes.plot(profile.thresholds, profile.share, label=name, linewidth=1.6, **own)
        edges = (profile.low, profile.high)
        axes.fill_between(profile.thresholds, *edges, alpha=0.15, color=own["color"], linewidth=0)
    axes.set(xlabel=_literal(f"threshold of {found.metric}"), ylabel="share of runs above it")
    return _add_legend(axes)


def _draw_scores(axes: Axes, found: Comparison) -> list[str]:
    ranked = rank(found.variants)
    for place, (one, other) in enumerate(pairwise(ranked)):  # lines between the dots of one seed
        for seed in choose_pairs(one, other) if one.variant.task == other.variant.task else ():
            both = [one.by_seed[seed], other.by_seed[seed]]
            axes.plot(both, [place, place + 1], color="0.7", linewidth=0.5, zorder=0)
    for place, one in enumerate(ranked):
        colour, own = choose_style(place)["color"], one.estimate
        axes.plot(one.scores, [place] * len(one.scores), "o", color=colour, alpha=0.6, markersize=4)
        axes.plot([own.mean] * 2, [place - 0.3, place + 0.3], color="black")
        if own.low is not None:
            axes.plot([own.low, own.high], [place] * 2, color=colour, alpha=0.5, linewidth=3)
    names = [_label(one.variant.name, one.estimate.n) for one in ranked]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel=_literal(f"last {found.metric} of every seed"))
    return names
