"""Group statistics of rows side by side against the general ones; `--save` writes results.

`grpo_vectorized` reshapes consecutive groups of one size; `group_relative` takes any ids. Both are
given the same rows and must give the same advantages.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from tandem.advantages.group import group_relative, grpo_vectorized, unbiased_std
from tandem.types import Prompt, Rollout, Scores

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS, CALLS = 30, 20  # rounds take turns; a round's time is that of so many calls
WORKLOADS = {  # prompts, group size, steps
    "the statistics alone, a small iteration": (64, 8, 1),
    "the statistics alone, a large one": (512, 16, 1),
    "the statistics alone, a very large one": (8192, 16, 1),
    "with advantages for 1,024 steps": (512, 16, 1024),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    text = as_text({name: measured(*sizes) for name, sizes in WORKLOADS.items()})
    print(text)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "group_statistics.md").write_text(text)


def measured(prompts: int, group_size: int, steps: int) -> dict[str, float]:
    """Median microseconds of a call of either, which take turns."""
    scores, rollout = rows(prompts, group_size, steps)
    ways: dict[str, Callable[[Scores, Rollout], Tensor]] = {
        "general": partial(group_relative, scale=unbiased_std),
        "vectorized": partial(grpo_vectorized, group_size=group_size),
    }
    torch.testing.assert_close(*(way(scores, rollout) for way in ways.values()))
    laps = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                way(scores, rollout)
            laps[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return {name: median(times) for name, times in laps.items()}


def rows(prompts: int, group_size: int, steps: int) -> tuple[Scores, Rollout]:
    generator = torch.Generator().manual_seed(0)
    batch = prompts * group_size
    total = torch.rand(batch, generator=generator)
    scored = torch.ones(batch, dtype=torch.bool)
    rollout = Rollout(
        sample=None,
        outputs=("",) * batch,
        prompts=(Prompt(id=0, source="benchmark", text="?"),) * batch,
        mask=torch.ones(batch, steps, dtype=torch.bool),
        group=torch.arange(prompts).repeat_interleave(group_size),
        length=torch.full((batch,), steps),
        truncated=torch.zeros(batch, dtype=torch.bool),
    )
    return Scores(total=total, parts={"score": total}, scored=scored), rollout


def as_text(found: dict[str, dict[str, float]]) -> str:
    lines = [
        f"Medians of {ROUNDS} interleaved rounds of {CALLS} calls, float32 on one CPU thread.\n",
        "| | prompts | group | steps | general, us | vectorized, us | general / vectorized |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, us in found.items():
        prompts, group_size, steps = WORKLOADS[name]
        lines.append(
            f"| {name} | {prompts} | {group_size} | {steps} | {us['general']:.0f} "
            f"| {us['vectorized']:.0f} | {us['general'] / us['vectorized']:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
