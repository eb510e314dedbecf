"""The coverage of the statistics of `tandem.compare`, on experiments whose truth is known:
`python benchmarks/coverage.py [--experiments 2000] [--save]`.

Every cell simulates that many experiments and applies the functions that make a report. Scores of
seeds are normal, skewed (lognormal), or normal with one run in ten collapsing to 0. The nominal
values are those of normal seeds. The figures are printed for a reader to judge: none fails the run.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tandem.compare.pairs import ALPHA, CAVEAT
from tandem.compare.statistics.aggregates import interquartile_mean, iqm
from tandem.compare.statistics.curves import (
    FEWEST_FOR_BAND,
    FEWEST_FOR_MEDIAN,
    prediction_band,
    reaching,
)
from tandem.compare.statistics.intervals import bonferroni, estimate, paired_difference, welch
from tandem.compare.statistics.variance_components import (
    VarianceComponents,
    estimate_own,
    estimate_shared,
)

SEEDS = (3, 5, 10)
VARIANTS = (4, 20)
POINTS = 10  # of a learning curve
PROMPTS, SOURCES = 100, 4  # of an evaluation
TOGETHER = 500  # reports that are simulated at once
AGAIN = 10  # times as many experiments, if a figure is above its nominal value
RESULT = Path(__file__).parent / "results" / "coverage.md"
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray]
Table = list[str]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    return random.normal(0.7, 0.05, shape)


def draw_skewed(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    return 0.7 - 0.05 * random.lognormal(0, 1, shape)


def collapsing(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    """Normal scores, of which one in ten is 0."""
    return np.where(random.uniform(size=shape) < 0.1, 0.0, normal(random, shape))


# How seeds score, and the mean and the median of all of them.
KINDS: dict[str, tuple[Draw, float, float]] = {
    "normal": (normal, 0.7, 0.7),
    "skewed": (draw_skewed, 0.7 - 0.05 * math.exp(0.5), 0.65),
    "one in ten dies": (collapsing, 0.63, 0.693),  # 4/9 of the normal ones are below it
}


def coverage(draw: Draw, mean: float, n: int, experiments: int) -> float:
    """Share of experiments whose interval contains the mean."""
    random = np.random.default_rng(n)
    found = [estimate(scores) for scores in draw(random, (experiments, n))]
    # Seeds that all died agree, and have no interval.
    return share(one.low is not None and one.low <= mean <= one.high for one in found)


def share(those: Iterable[bool]) -> float:
    return float(np.mean(list(those)))


def false_claims(
    n: int, variants: int, experiments: int, *, shared: bool, stream: tuple[int, ...] = ()
) -> float:
    """Share of reports on equal variants that claim any "A beats B".

    shared: a seed shifts all variants alike, and the report pairs them.
    """
    random = np.random.default_rng((n, variants, *stream))
    one, other = np.triu_indices(variants, 1)
    wrong = 0
    for start in range(0, experiments, TOGETHER):
        drawn = [equal(random, n, variants, shared) for _ in range(start, experiments)[:TOGETHER]]
        scores = np.stack(drawn)  # [reports, variants, n]
        wrong += claims(scores[:, one], scores[:, other], shared=shared).sum()
    return wrong / experiments


def equal(random: np.random.Generator, n: int, variants: int, shared: bool) -> NDArray:
    scores = normal(random, (variants, n))
    return scores + random.normal(0, 0.05, n) if shared else scores


def claims(a: NDArray, b: NDArray, *, shared: bool) -> NDArray:
    """[reports] bool: whether a report claims any pair; a and b are [reports, pairs, n].

    It does if it claims the pair with the smallest p. SciPy finds this pair; the functions of a
    report judge it among all the others.
    """
    every = (
        stats.ttest_rel(a, b, axis=-1)
        if shared
        else stats.ttest_ind(a, b, axis=-1, equal_var=False)
    )
    test, said = paired_difference if shared else welch, []
    for report, least in enumerate(every.pvalue.argmin(-1)):
        p = test(a[report, least], b[report, least]).p
        assert math.isclose(p, every.pvalue[report, least], rel_tol=1e-6), "SciPy found another p"
        said.append(bonferroni([p, *[None] * (a.shape[1] - 1)])[0] < ALPHA)
    return np.array(said)


LEVELS = {  # true means of variants, in standard deviations of a seed
    "one is better": (1.5, 0.0, 0.0, 0.0),
    "all differ": (3.0, 2.0, 1.0, 0.0),
}


def at_once(n: int, experiments: int, *, shared: bool, true: Sequence[float]) -> float:
    """Share of reports in which every pair's interval contains its true difference."""
    random = np.random.default_rng((n, len(true)))
    test, means, held = paired_difference if shared else welch, 0.05 * np.array(true), 0
    pairs = list(zip(*np.triu_indices(len(true), 1), strict=True))
    for _ in range(experiments):
        y = equal(random, n, len(true), shared) + means[:, None]
        edges = [test(y[i], y[j]).interval(1 - ALPHA / len(pairs)) for i, j in pairs]
        truth = [means[i] - means[j] for i, j in pairs]
        held += all(low <= x <= high for (low, high), x in zip(edges, truth, strict=True))
    return held / experiments


def share_found(n: int, experiments: int, true: Sequence[float]) -> tuple[float, float]:
    """Share of true differences that are claimed by Bonferroni, and would be by Holm."""
    random, means = np.random.default_rng(n), 0.05 * np.array(true)
    one, other = np.triu_indices(len(true), 1)
    y = np.stack([equal(random, n, len(true), True) for _ in range(experiments)])
    y += means[:, None]
    p = stats.ttest_rel(y[:, one], y[:, other], axis=-1).pvalue
    real, m = means[one] != means[other], len(one)
    order = np.sort(p, axis=1) <= ALPHA / (m - np.arange(m))
    steps = np.cumprod(order, axis=1).sum(1)  # the number that Holm rejects, the smallest p first
    by_holm = np.argsort(np.argsort(p, axis=1), axis=1) < steps[:, None]
    return float((p[:, real] < ALPHA / m).mean()), float(by_holm[:, real].mean())


def leaving(n: int, experiments: int) -> float:
    """Share of healthy new runs that leave the band of n others at any of its points."""
    random = np.random.default_rng(n)
    outside = 0
    for _ in range(experiments):
        # The quality of a seed is constant, and every point has its own noise.
        curves = normal(random, (n + 1, 1)) + random.normal(0, 0.02, (n + 1, POINTS))
        outside += prediction_band(np.arange(POINTS), curves[:n]).leaves(curves[n]).any()
    return outside / experiments


def medians(draw: Draw, median: float, n: int, experiments: int) -> float:
    """Share of experiments whose interval of the median, of order statistics, contains it."""
    random = np.random.default_rng(n)
    found = [reaching(places) for places in draw(random, (experiments, n)).tolist()]
    return share(one.low <= median <= one.high for one in found)


# Seeds of each task of an experiment over tasks.
TASKS = {
    "n = 3 in each of 7": (3,) * 7,
    "n = 4 in each of 6": (4,) * 6,
    "n = 5 in each of 4": (5,) * 4,
    "n = 10 in each of 4": (10,) * 4,
    "n = 5 in each of 10": (5,) * 10,
    "n = 3, 5, 5, 5, 5": (3, 5, 5, 5, 5),
    "n = 5, 5, 5, 5, 10": (5, 5, 5, 5, 10),
    "n = 3, 3, 3, 11": (3, 3, 3, 11),
}
LIKENESS = {"similar": (0.3, 0.6), "unlike": (0.0, 2.0)}  # first and last of the tasks' means


def middles(seeds: Sequence[int], likeness: str, experiments: int) -> float:
    """Share of experiments whose bootstrap interval contains the true interquartile mean."""
    random = np.random.default_rng(tuple(seeds))
    levels = random.permutation(np.linspace(*LIKENESS[likeness], len(seeds)))
    many = levels[:, None] + normal(random, (len(seeds), 250_000))
    truth = float(iqm(many.ravel(), np.ones(many.size)))
    held = []
    for _ in range(experiments):
        tasks = zip(levels, seeds, strict=True)
        found = interquartile_mean({str(x): x + normal(random, (n,)) for x, n in tasks})
        held.append(found.low <= truth <= found.high)
    return share(held)


# Standard deviations of seeds, of prompts within their source, and of the residual.
NOISES = {"seeds larger": (0.1, 0.2, 0.2), "prompts larger": (0.02, 0.4, 0.2)}


def answers(random: np.random.Generator, kind: str, n: int, *, shared: bool) -> NDArray:
    """Answers [n, PROMPTS], with very different means of the sources."""
    seed, prompt, rest = NOISES[kind]
    prompts = random.normal(0, prompt, (1 if shared else n, PROMPTS))
    level = np.arange(PROMPTS) % SOURCES
    return random.normal(0, seed, (n, 1)) + prompts + level + random.normal(0, rest, (n, PROMPTS))


def apart(kind: str, n: int, experiments: int, *, same: bool) -> tuple[float, ...]:
    """The estimated variances by seeds and by prompts over the true ones, on average, and how often
    the interval for any evaluation set contains the true mean."""
    random = np.random.default_rng((n, same))
    sources = [str(i % SOURCES) for i in range(PROMPTS)]
    found: list[VarianceComponents] = []
    for _ in range(experiments):
        y = answers(random, kind, n, shared=same)
        found.append(estimate_shared(y, sources) if same else estimate_own(list(y), [sources] * n))
    seed, prompt, rest = (sd**2 for sd in NOISES[kind])
    by_prompts = (prompt + rest / n if same else (prompt + rest) / n) / PROMPTS
    truth, ends = (SOURCES - 1) / 2, [one.interval for one in found]
    return (
        float(np.mean([one.seeds for one in found])) / (seed / n),
        float(np.mean([one.prompts for one in found])) / by_prompts,
        share(low <= truth <= high for low, high in ends),
        share(one.by_prompts == (by_prompts > seed / n) for one in found),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    lines = [head, ["---"] * len(head), *rows]
    return ["", *("| " + " | ".join(line) + " |" for line in lines), ""]


def per_seeds(name: str, rows: Iterable[tuple[str, Sequence[float]]]) -> Table:
    said = [(label, *(f"{x:.1%}" for x in found)) for label, found in rows]
    return table([name, *(f"n = {n}" for n in SEEDS)], said)


def of_means(experiments: int) -> Table:
    rows = [
        (name, [coverage(draw, mean, n, experiments) for n in SEEDS])
        for name, (draw, mean, _) in KINDS.items()
    ]
    return [
        "## Student's 95 % interval: share that holds the true mean",
        *per_seeds("seeds", rows),
        f"{CAVEAT}.",
        "",
    ]


def of_claims(experiments: int) -> Table:
    rows, again = [], []
    for variants in VARIANTS:
        for pairs in (False, True):
            name = f"{variants}, {'paired t' if pairs else 'Welch'}"
            found = [false_claims(n, variants, experiments, shared=pairs) for n in SEEDS]
            rows.append((name, found))
            again += [
                (name, n, more_claims(n, variants, experiments, shared=pairs))
                for n, x in zip(SEEDS, found, strict=True)
                if x > ALPHA
            ]
    title = '## Reports on equal variants with any false "A beats B"'
    return [title, *per_seeds("variants", rows), *again_with_more(again, experiments * AGAIN)]


def more_claims(n: int, variants: int, experiments: int, *, shared: bool) -> float:
    return false_claims(n, variants, AGAIN * experiments, shared=shared, stream=(1,))


def again_with_more(again: Sequence[tuple[str, int, float]], experiments: int) -> Table:
    """Figures above their nominal value, simulated again with more and other random numbers."""
    said = [f"{name} at n = {n}: {x:.1%} ± {error(x, experiments)}" for name, n, x in again]
    many = f"What is above {ALPHA:.0%} once more, with {experiments} experiments: "
    return [f"{many}{'; '.join(said)}.", ""] if said else []


def error(share: float, experiments: int) -> str:
    return f"{math.sqrt(share * (1 - share) / experiments):.1%}"


def of_intervals_together(experiments: int) -> Table:
    rows = [
        (f"{name}, {'paired t' if shared else 'Welch'}", found)
        for name, true in {**LEVELS, "20 equal": (0.0,) * 20}.items()
        for shared in (False, True)
        if (found := [at_once(n, experiments, shared=shared, true=true) for n in SEEDS])
    ]
    title = "## Simultaneous 95 % intervals: share of reports in which all of them hold"
    return [title, *per_seeds("variants", rows)]


def of_power(experiments: int) -> Table:
    rows = []
    for name, true in LEVELS.items():
        both = [share_found(n, experiments, true) for n in SEEDS]
        rows += [(f"{name}, Bonferroni", [x for x, _ in both])]
        rows += [(f"{name}, Holm", [x for _, x in both])]
    title = "## True differences that are claimed, and that Holm would claim"
    said = (
        "Four variants, paired t. Holm's claims have no intervals that say how large a difference "
        "is as long as one pair is left open; this is the price of having them."
    )
    return [title, "", said, *per_seeds("variants", rows)]


def of_bands(experiments: int) -> Table:
    rows = [(str(n), f"{leaving(n, experiments):.1%}") for n in (FEWEST_FOR_BAND, 20)]
    title = f"## Healthy runs that leave their band at any of {POINTS} points"
    return [title, *table(["seeds of the band", "share"], rows)]


def of_others(experiments: int) -> Table:
    rows = [
        (f"median, {name}", f"n = {n}", medians(draw, median, n, experiments))
        for name, (draw, _, median) in KINDS.items()
        for n in (FEWEST_FOR_MEDIAN, 10)
    ]
    rows += [
        (f"interquartile mean over {likeness} tasks", name, middles(seeds, likeness, experiments))
        for likeness in LIKENESS
        for name, seeds in TASKS.items()
    ]
    held = [(of, seeds, f"{x:.1%}") for of, seeds, x in rows]
    title = "## Other 95 % intervals: share that holds the truth"
    return [title, *table(["of", "seeds", "share"], held)]


def of_noises(experiments: int) -> Table:
    rows = []
    for kind in NOISES:
        for same in (True, False):
            for n in SEEDS:
                *ratios, held, right = apart(kind, n, experiments, same=same)
                which = "the same" if same else "of its own"
                cells = (f"{x:.2f}" for x in ratios)
                rows.append((kind, which, str(n), *cells, f"{held:.1%}", f"{right:.0%}"))
    head = ("truth", "prompts of a seed", "n", "by seeds", "by prompts", "held", "larger one named")
    return [
        f"## Noise of seeds and noise of {PROMPTS} prompts",
        "",
        "Mean of what is found, as a share of the true variance (a variance found below 0 counts "
        "as 0, which is too much on the mean where the truth is small); how often the interval for "
        "any evaluation set holds the true mean; how often the larger noise is named.",
        *table(head, rows),
    ]


def report(experiments: int) -> str:
    lines = [
        f"# Statistics of a comparison, {experiments} simulated experiments per cell",
        "",
        f"So many tell a share of 95 % or of 5 % to ± {error(ALPHA, experiments)} (one standard "
        "error).",
        "",
    ]
    for part in (
        of_means,
        of_claims,
        of_intervals_together,
        of_power,
        of_bands,
        of_others,
        of_noises,
    ):
        start = time.process_time()
        lines += part(experiments)
        print(f"{part.__name__}: {time.process_time() - start:.0f} CPU-seconds", flush=True)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=2000)
    parser.add_argument("--save", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    text = report(arguments.experiments)
    print(text)
    if arguments.save:
        RESULT.write_text(text)
