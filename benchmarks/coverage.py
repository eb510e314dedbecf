"""Whether the statistics of `tandem.compare` keep what they promise, on experiments whose truth is
known: `python benchmarks/coverage.py [--experiments 2000] [--save]`.

Every cell simulates so many experiments. Scores of seeds are normal; or skewed (lognormal); or
normal, but one run in ten collapses to 0. What is promised is asked of normal seeds alone; on the
other two the figure is printed as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.compare.comparison import ALPHA, CAVEAT
from tandem.compare.curves import prediction_band
from tandem.compare.intervals import estimate, holm, paired, welch

SEEDS = (3, 5, 10)
VARIANTS = (4, 20)
POINTS = 10  # of a learning curve
RESULT = Path(__file__).parent / "results" / "coverage.md"
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    return random.normal(0.7, 0.05, shape)


def skewed(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    return 0.7 - 0.05 * random.lognormal(0, 1, shape)


def collapsing(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    """One run in ten ends at 0."""
    return np.where(random.uniform(size=shape) < 0.1, 0.0, normal(random, shape))


# How seeds score, and the mean of all of them.
KINDS: dict[str, tuple[Draw, float]] = {
    "normal": (normal, 0.7),
    "skewed": (skewed, 0.7 - 0.05 * float(np.exp(0.5))),
    "one in ten dies": (collapsing, 0.63),
}


def coverage(draw: Draw, mean: float, n: int, experiments: int) -> float:
    """Share of experiments whose interval holds the mean."""
    random = np.random.default_rng(n)
    found = [estimate(scores) for scores in draw(random, (experiments, n))]
    return sum(one.low <= mean <= one.high for one in found) / experiments


def false_claims(n: int, variants: int, experiments: int, *, shared: bool) -> float:
    """Share of reports on equal variants in which any "A beats B" stands.

    shared: a seed moves all variants alike, and the report pairs them.
    """
    random = np.random.default_rng((n, variants))
    wrong = 0
    for _ in range(experiments):
        scores = normal(random, (variants, n))
        if shared:
            scores = scores + random.normal(0, 0.05, n)
        test = paired if shared else welch
        p = holm([test(a, b).p for a, b in combinations(scores, 2)])
        wrong += any(value < ALPHA for value in p)
    return wrong / experiments


def leaving(n: int, experiments: int) -> float:
    """Share of healthy new runs that leave the band of n others at any of its points."""
    random = np.random.default_rng(n)
    outside = 0
    for _ in range(experiments):
        # What a seed is good for stays with it, and every point has noise of its own.
        curves = normal(random, (n + 1, 1)) + random.normal(0, 0.02, (n + 1, POINTS))
        outside += prediction_band(np.arange(POINTS), curves[:n]).leaves(curves[n]).any()
    return outside / experiments


def report(experiments: int) -> str:
    lines = [
        f"# Statistics of a comparison, {experiments} simulated experiments per cell",
        "",
        "## Student's 95 % interval: share that holds the true mean",
        "",
        "| seeds | " + " | ".join(f"n = {n}" for n in SEEDS) + " |",
        "|---" * (len(SEEDS) + 1) + "|",
    ]
    for name, (draw, mean) in KINDS.items():
        found = [coverage(draw, mean, n, experiments) for n in SEEDS]
        lines.append(f"| {name} | " + " | ".join(f"{x:.1%}" for x in found) + " |")
    lines += ["", f"{CAVEAT}.", "", "## Reports on equal variants with any false claim", ""]
    lines += ["| variants, test | " + " | ".join(f"n = {n}" for n in SEEDS) + " |"]
    lines += ["|---" * (len(SEEDS) + 1) + "|"]
    for variants in VARIANTS:
        for shared in (False, True):
            found = [false_claims(n, variants, experiments, shared=shared) for n in SEEDS]
            name = f"{variants}, {'paired t' if shared else 'Welch'}"
            lines.append(f"| {name} | " + " | ".join(f"{x:.1%}" for x in found) + " |")
    lines += ["", f"## Healthy runs that leave their band at any of {POINTS} points", ""]
    lines += ["| seeds of the band | share |", "|---|---|"]
    lines += [f"| {n} | {leaving(n, experiments):.1%} |" for n in (10, 20)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=2000)
    parser.add_argument("--save", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    text = report(arguments.experiments)
    print(text)
    if arguments.save:
        RESULT.write_text(text)
