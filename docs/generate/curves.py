"""Measured learning curves: what benchmarks/algorithms.py kept, as statistics and drawings."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from generate.repository import ROOT

KEPT = ROOT / "benchmarks" / "results" / "algorithms.json"
TASKS = {
    "letters": "sorting 4 to 8 letters, embedded language model",
    "pairs": "preferences over sorted letters, embedded language model",
    "demonstrations": "sorting 4 to 8 letters from demonstrations only, no warm start",
    "shapes": "coloured shapes, embedded flow model",
    "whole": "coloured shapes with the whole recipe, embedded flow model",
    "taught": "coloured shapes, taught by a run of DiffusionNFT, embedded flow model",
    "students": "sorting 4 to 8 letters, taught by a run of GRPO, embedded language model",
    "own_teachers": "sorting 4 to 8 letters, taught by the policy itself with a richer prompt",
    "few_steps": "coloured shapes in one step (DMD2) or two, embedded flow model",
    "masked": "sorting 4 to 8 letters, embedded masked-diffusion model",
    "games": "guessing a number in several turns, embedded language model",
    "riddles": "riddles: a text and the image painted for it, embedded chain",
}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 560, 240, 44, 34, 12, 12


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of one algorithm on one task: for each seed curves {samples: accuracy or reward}."""

    task: str
    algorithm: str
    curves: Sequence[dict[int, float]]  # share of held-out prompts that come out right
    rewards: Sequence[dict[int, float]]  # mean reward of held-out prompts
    cpu_seconds: float
    commits: str
    dates: str
    overrides: Sequence[str]
    ended: int = 0  # runs that a guard ended before their last iteration

    @property
    def first(self) -> float:
        return mean(next(iter(curve.values())) for curve in self.curves)

    @property
    def last(self) -> Sequence[float]:
        return [list(curve.values())[-1] for curve in self.curves]

    @property
    def spread(self) -> str:
        """Standard deviation over seeds of the last point."""
        return f"{stdev(self.last):.3f}" if len(self.last) > 1 else "-"

    def samples_to(self, threshold: float) -> int | None:
        """The median over seeds of where a curve first is there; None: most never are."""
        infinite = 1 << 60
        reached = [
            next((samples for samples, x in curve.items() if x >= threshold), infinite)
            for curve in self.curves
        ]
        found = median(reached)
        return None if found >= infinite / 2 else int(found)


@functools.cache
def read_runs() -> dict[tuple[str, str], Measured]:
    """(task, algorithm) -> its runs so far, at most one of each seed."""
    runs = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    grouped: dict[tuple[str, str], list[dict]] = {}
    for name, run in sorted(runs.items()):
        task, algorithm, _ = name.split("/")
        grouped.setdefault((task, algorithm), []).append(run)
    return {key: _join(*key, found) for key, found in grouped.items()}


def _join(task: str, algorithm: str, runs: Sequence[dict]) -> Measured:
    return Measured(
        task=task,
        algorithm=algorithm,
        curves=[{p["samples"]: p["accuracy"] for p in run["curve"]} for run in runs],
        rewards=[{p["samples"]: p["reward"] for p in run["curve"]} for run in runs],
        cpu_seconds=mean(run["cpu_seconds"] for run in runs),
        commits=", ".join(sorted({run["commit"] for run in runs})),
        dates=", ".join(sorted({run["date"] for run in runs})),
        overrides=[x for x in runs[0]["overrides"] if not x.startswith("seed=")],
        ended=sum("ended" in run for run in runs),
    )


def threshold(task: str) -> float | None:
    """Halfway from where the runs of a task start to the best mean at the end."""
    found = [one for (of, _), one in read_runs().items() if of == task]
    if not found:
        return None
    start, best = mean(x.first for x in found), max(mean(x.last) for x in found)
    return round((start + best) / 2, 3)


def section(algorithm: str) -> str:
    """The learning curves of an algorithm with their statistics, in Markdown."""
    found = [one for (_, name), one in read_runs().items() if name == algorithm]
    if not found:
        return "Not measured yet: `python benchmarks/algorithms.py --save` measures it.\n"
    return "\n".join(_describe(one) for one in found)


def _describe(one: Measured) -> str:
    goal = threshold(one.task)
    needed = one.samples_to(goal)
    over_seeds = {
        "stability: standard deviation over seeds": one.spread,
        "worst seed": f"{min(one.last):.3f}",
    }
    rows = {
        "share right, from start to end": f"{one.first:.3f} to {mean(one.last):.3f}",
        **(over_seeds if len(one.curves) > 1 else {}),
        f"efficiency: samples until {goal:.3f} (median of seeds)": f"{needed:,}"
        if needed is not None
        else "not reached by most seeds",
        **({"runs that a guard ended early": f"{one.ended}"} if one.ended else {}),
        "CPU-seconds of a run, evaluations included": f"{one.cpu_seconds:.0f}",
        "measured": f"{one.dates} at {one.commits}, seeds: {len(one.curves)}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    command = " ".join(one.overrides)
    return (
        f"**{TASKS[one.task][0].upper()}{TASKS[one.task][1:]}.**\n\n"
        f'<div class="curve">{drawing([("", one.curves)])}</div>\n\n'
        f"| | |\n|---|---|\n{table}\n\n    python train.py {command}\n"
    )


def ranking(task: str) -> str:
    """A table of all algorithms that were measured on a task, the best first."""
    found = [one for (of, _), one in read_runs().items() if of == task]
    if not found:
        return "Not measured yet.\n"
    goal = threshold(task)
    rows = [
        f"| [`{one.algorithm}`](../conf/algorithm/{one.algorithm}.yaml) | {mean(one.last):.3f} | "
        f"{one.spread} | {len(one.curves)} | {min(one.last):.3f} | "
        f"{_count(one.samples_to(goal))} | "
        f"{one.cpu_seconds:.0f} |"
        for one in sorted(found, key=lambda x: -mean(x.last))
    ]
    head = (
        f"| algorithm | share right at the end | std over seeds | seeds | worst seed | "
        f"samples until {goal:.3f} | CPU-s |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    return "\n".join([head, *rows, ""])


def _count(samples: int | None) -> str:
    return "never" if samples is None else f"{samples:,}"


def drawing(lines: Sequence[tuple[str, Sequence[dict[int, float]]]]) -> str:
    """Curves of share right over samples: thin lines are seeds, the thick one is their mean."""
    widest = max(max(curve) for _, curves in lines for curve in curves)
    shapes = [*_axes(widest)]
    for number, (name, curves) in enumerate(lines):
        shapes += _family(name, curves, widest, f"c{number}")
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="share right over samples">{"".join(shapes)}</svg>'
    )


def _family(name: str, curves: Sequence[dict[int, float]], widest: int, kind: str) -> Iterator[str]:
    for curve in curves:
        yield _line(curve, widest, f"{kind} seed")
    # The mean goes as far as the shortest run, which a guard may have ended.
    ends = zip(*(curve.items() for curve in curves), strict=False)
    middle = {int(mean(x for x, _ in at)): mean(y for _, y in at) for at in ends}
    yield _line(middle, widest, kind)
    if name:
        x, y = _place(*list(middle.items())[-1], widest)
        yield f'<text class="{kind}" x="{x - 4:.0f}" y="{y - 8:.0f}" class="end">{name}</text>'


def _line(curve: dict[int, float], widest: int, kind: str) -> str:
    points = " ".join("{:.1f},{:.1f}".format(*_place(x, y, widest)) for x, y in curve.items())
    return f'<polyline class="{kind}" points="{points}"/>'


def _place(samples: float, share: float, widest: int) -> tuple[float, float]:
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return LEFT + across * samples / widest, TOP + down * (1 - share)


def _axes(widest: int) -> Iterator[str]:
    for share in (0, 0.25, 0.5, 0.75, 1):
        _, y = _place(0, share, widest)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>'
    for part in (0, 0.5, 1):
        x, _ = _place(widest * part, 0, widest)
        anchor = "end" if part == 1 else "middle"
        yield (
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">'
            f"{widest * part:,.0f}</text>"
        )
    yield (
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 2}" text-anchor="middle">samples</text>'
        f'<text x="{LEFT + 6}" y="{TOP + 12}">share right</text>'
    )
