"""Advantages by group beside a bare reshape of groups of one size; `--save` writes results.

`group_relative` (also called `grpo_vectorized`) accepts any ids, in ascending order as from
samplers or shuffled. The reshape handles neither missing scores nor ties. All results must agree.
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

from tandem.advantages.group import group_relative, spread_over_steps, unbiased_std
from tandem.types import Prompt, Rollout, Scores, take

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS, CALLS = 20, 5  # rounds take turns; a round's time is that of so many calls
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
    text = as_text({name: measure(*sizes) for name, sizes in WORKLOADS.items()})
    print(text)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "group_statistics.md").write_text(text)


def measure(prompts: int, group_size: int, steps: int) -> dict[str, float]:
    """Median CPU microseconds per call of each; they take turns."""
    scores, rollout = rows(prompts, group_size, steps)
    order = torch.randperm(len(rollout.mask), generator=torch.Generator().manual_seed(1))
    mixed = (take(scores, order), take(rollout, order))
    general = partial(group_relative, scale=unbiased_std)
    ways: dict[str, Callable[[], Tensor]] = {
        "reshaped": partial(group_relative_by_reshape, scores, rollout, group_size=group_size),
        "rising": partial(general, scores, rollout),
        "shuffled": partial(general, *mixed),
    }
    want = ways["reshaped"]()
    torch.testing.assert_close(ways["rising"](), want)
    torch.testing.assert_close(ways["shuffled"](), want[order])
    laps = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.process_time()
            for _ in range(CALLS):
                way()
            laps[name].append((time.process_time() - began) / CALLS * 1e6)
    return {name: median(times) for name, times in laps.items()}


def group_relative_by_reshape(
    scores: Scores, rollout: Rollout, *, group_size: int, eps: float = 1e-6
) -> Tensor:
    """(R - mean) / (std + eps) of consecutive groups of one size without missing scores."""
    total = scores.total.double().view(-1, group_size)
    relative = (total - total.mean(1, keepdim=True)) / (total.std(1, keepdim=True) + eps)
    return spread_over_steps(relative.view(-1).to(scores.total.dtype), rollout.mask)


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
        f"CPU time, medians of {ROUNDS} interleaved rounds of {CALLS} calls, one thread.\n",
        "| | prompts | group | steps | reshape, us | rising ids, us | shuffled ids, us |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, us in found.items():
        prompts, group_size, steps = WORKLOADS[name]
        lines.append(
            f"| {name} | {prompts} | {group_size} | {steps} | {us['reshaped']:.0f} "
            f"| {us['rising']:.0f} | {us['shuffled']:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
