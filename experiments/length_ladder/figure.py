"""Figure and table of two sweeps: `python -m experiments.length_ladder.figure runs/ladder`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

SHOWN, BEYOND = range(1, 6), (8, 9)  # lengths with demonstrations, and two without
COLOURS = {"grpo": "#1b6ca8", "sft": "#e07a1f"}
NAMES = {"grpo": "GRPO with a checker", "sft": "more demonstrations"}


def main(folder: Path) -> None:
    sweeps = {name: runs_in(folder / name) for name in COLOURS}
    print("\n".join(table(sweeps)))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 3.9), width_ratios=(1.15, 1), layout="constrained"
    )
    draw_frontier(left, sweeps["grpo"])
    for name, runs in sweeps.items():
        draw_curves(right, name, runs)
    right.set(xlabel="CPU-seconds since the warm start", ylim=(-0.02, 1.0))
    right.set_title("pass@1 on lengths 8 and 9, three seeds", loc="left", fontweight="bold")
    right.legend(frameon=False)
    right.spines[["top", "right"]].set_visible(False)
    path = folder / "ladder.png"
    figure.savefig(path, dpi=130)
    print(path)


def runs_in(folder: Path) -> list[list[dict]]:
    """The evaluations of every run of a sweep, each with the CPU-seconds until then."""
    runs = []
    for path in sorted(folder.glob("*/metrics.jsonl")):
        metrics, timing = (
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in (path, path.with_name("timing.jsonl"))
        )
        lines = zip(metrics, timing, strict=True)
        runs.append([m | {"cpu": t["time/cpu"]} for m, t in lines if "eval/accuracy" in m])
    if not runs:
        sys.exit(f"{folder}: no runs; README.md has the command that makes them")
    return runs


def accuracy(line: dict, lengths, k: int = 1) -> float:
    kind = "accuracy" if k == 1 else f"pass@{k}"
    return float(np.mean([line[f"eval/{kind}/length_{length:02d}"] for length in lengths]))


def table(sweeps: dict[str, list[list[dict]]]) -> list[str]:
    """Before and after, seed by seed."""
    rows = [
        "sweep  seed  length 8        length 9        pass@64 of 8, 9 before  lengths 1 to 5  CPU-s"
    ]
    for name, runs in sweeps.items():
        for seed, lines in enumerate(runs):
            first, last = lines[0], lines[-1]
            ladder = "  ".join(
                f"{accuracy(first, [n]):.3f} -> {accuracy(last, [n]):.3f}" for n in BEYOND
            )
            before = ", ".join(f"{accuracy(first, [n], k=64):.3f}" for n in BEYOND)
            kept = f"{accuracy(first, SHOWN):.3f} -> {accuracy(last, SHOWN):.3f}"
            rows.append(f"{name:<6} {seed:<5} {ladder}  {before:<22}  {kept}  {last['cpu']:.1f}")
    return rows


def draw_frontier(axes, runs: list[list[dict]]) -> None:
    """Mean over seeds of the accuracy at each length, by iteration."""
    iterations = [line["iteration"] for line in runs[0]]
    lengths = range(1, 11)
    grid = np.array([[[accuracy(x, [n]) for x in run] for n in lengths] for run in runs]).mean(0)
    picture = axes.imshow(grid, origin="lower", aspect="auto", cmap="YlGnBu", vmin=0, vmax=1)
    axes.axhline(4.5, color="white", lw=2, ls="--")
    axes.text(0, 4.4, "longest demonstration", color="white", fontsize=8, va="top")
    every = max(1, len(iterations) // 8)
    axes.set_xticks(range(0, len(iterations), every), iterations[::every])
    axes.set_yticks(range(10), lengths)
    axes.set(xlabel="iteration of GRPO", ylabel="letters to sort")
    axes.set_title("held-out accuracy, mean of three seeds", loc="left", fontweight="bold")
    axes.figure.colorbar(picture, ax=axes, pad=0.02)


def draw_curves(axes, name: str, runs: list[list[dict]]) -> None:
    for number, lines in enumerate(runs):
        start = lines[0]["cpu"]
        axes.plot(
            [line["cpu"] - start for line in lines],
            [accuracy(line, BEYOND) for line in lines],
            "o-", ms=3, lw=1.6, color=COLOURS[name], alpha=0.9,
            label=NAMES[name] if number == 0 else None,
        )  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
