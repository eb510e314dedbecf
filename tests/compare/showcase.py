"""Realistic run directories, to look at the report page and to test it.

`PYTHONPATH=tests/compare:src python -m showcase FOLDER` writes all kinds.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from written_runs import write_run

from tandem.record.run_record import RunRecord

# The end of an algorithm's curve, its half time, and the spread of its seeds.
LANGUAGE = {
    "grpo": (0.81, 15, 0.02),
    "rloo": (0.81, 16, 0.03),
    "dapo": (0.86, 13, 0.02),
    "reinforce": (0.58, 30, 0.06),
}
FLOWS = {"grpo": (0.72, 15, 0.03), "nft": (0.83, 10, 0.02)}
PROMPTS = ("sort cab>", "sort zyx>", "sort a very long list of letters: qwertyuiopasdfghjkl>")
COLOURS = {"red circle": (210, 60, 50), "blue circle": (50, 90, 210)}
ITERATIONS, EVERY = 60, 5
MOMENTS = 4  # number of evaluations with pictures


def curve(algorithm, seed, kind):
    """Scores of every evaluation: saturating from 0.08, with the noise of 128 prompts."""
    end, half, apart = kind[algorithm]
    random = np.random.default_rng([seed, *algorithm.encode()])
    end += apart * random.normal()
    x = np.arange(0, ITERATIONS + 1, EVERY)
    y = end - (end - 0.08) * 2 ** (-x / half) + 0.012 * random.normal(size=len(x))
    return np.clip(y, 0, 1).tolist()


def language(folder: Path, seeds: int = 10) -> Path:
    """Four algorithms; the last seed of the last one dies before its end."""
    for algorithm in LANGUAGE:
        for seed in range(seeds):
            place = folder / f"{algorithm}-{seed}"
            scores = curve(algorithm, seed, LANGUAGE)
            dies = algorithm == "reinforce" and seed == seeds - 1
            scores = scores[:6] if dies else scores
            write_run(
                place, scores, seed=seed, algorithm=algorithm, every=EVERY, iterations=ITERATIONS
            )
            if seed == 0:
                write_texts(place, algorithm, scores)
    return folder


def write_texts(place: Path, algorithm: str, scores) -> None:
    record = RunRecord(place)
    for number, score in enumerate(scores):
        rows = [
            {
                "kind": "eval",
                "source": "letters",
                "prompt": prompt,
                "output": "".join(sorted(prompt[5:-1])) if score > 0.4 else f"{prompt[5:]} <i>?",
                "reward": round(score, 3),
            }
            for prompt in PROMPTS
            for _ in range(2)
        ]
        record.samples(number * EVERY, rows)


def flows(folder: Path, seeds: int = 5) -> Path:
    for algorithm in FLOWS:
        for seed in range(seeds):
            place = folder / f"{algorithm}-{seed}"
            scores = curve(algorithm, seed, FLOWS)
            write_run(place, scores, seed=seed, algorithm=algorithm, every=EVERY)
            if seed == 0:
                write_pictures(place, scores)
    return folder


def write_pictures(place: Path, scores, size: int = 16) -> None:
    """Images of circles that emerge from noise."""
    record = RunRecord(place)
    random = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    inside = (((x - size / 2) ** 2 + (y - size / 2) ** 2) < (size / 3) ** 2)[..., None]
    for number in np.linspace(0, len(scores) - 1, MOMENTS).astype(int).tolist():
        score = scores[number]
        rows = [
            {
                "kind": "eval",
                "source": prompt.replace(" ", "_"),
                "prompt": prompt,
                "output": draw_image(np.where(inside, colour, 235), score, random),
                "reward": round(score, 3),
            }
            for prompt, colour in COLOURS.items()
            for _ in range(8)
        ]
        record.samples(number * EVERY, rows)


def draw_image(clean, score, random) -> torch.Tensor:
    noisy = clean * score + random.uniform(0, 255, clean.shape) * (1 - score)
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8))


def newcomers(folder: Path) -> Path:
    """New runs of two of the algorithms: one fails, one has another learning rate."""
    common = {"every": EVERY, "iterations": ITERATIONS}
    for algorithm in ("grpo", "reinforce"):
        for seed in (20, 21):
            fails = algorithm == "reinforce" and seed == 21
            scores = [(0.4 if fails else 1.0) * y for y in curve(algorithm, seed, LANGUAGE)]
            place = folder / f"{algorithm}-{seed}"
            write_run(place, scores, seed=seed, algorithm=algorithm, **common)
    other = curve("grpo", 22, LANGUAGE)
    write_run(folder / "other-22", other, seed=22, optimizer={"lr": 3e-4}, **common)
    return folder


def many(folder: Path, seeds: int = 5) -> Path:
    """Twenty variants: five algorithms at four rates, one of which warms up longer."""
    random = np.random.default_rng(0)
    x = np.arange(0, ITERATIONS + 1, 3 * EVERY)
    for place, algorithm in enumerate(("grpo", "rloo", "dapo", "gspo", "cispo")):
        for rate in (1e-4, 2e-4, 4e-4, 8e-4):
            for seed in range(seeds):
                end = 0.5 + 0.05 * place + 60 * rate + 0.03 * random.normal()
                y = end - (end - 0.1) * 2 ** (-x / 12) + 0.01 * random.normal(size=len(x))
                typed = [f"algorithm={algorithm}", f"optimizer.lr={rate}", f"seed={seed}"]
                write_run(
                    folder / f"{algorithm}-{rate}-{seed}",
                    np.clip(y, 0, 1).tolist(),
                    seed=seed,
                    algorithm=algorithm,
                    every=3 * EVERY,
                    optimizer={"lr": rate},
                    schedule={"warmup": 20 if algorithm == "gspo" else 5},
                    overrides=typed,
                )
    return folder


if __name__ == "__main__":
    target = Path(sys.argv[1])
    language(target / "language")
    flows(target / "flows")
    newcomers(target / "newcomers")
    many(target / "many")
