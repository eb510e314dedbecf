"""The savings of packing and token budgets on rows of very different lengths.

One update in one process: forward and backward of every row, cut in four ways that take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}

import torch
from torch import Tensor

from tandem.experience import Budget
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.records import TokenSample
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.memory.tracker import Peak
from tandem.policies.request import Request
from tandem.types import take

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, LONGEST, PROMPT = 48, 512, 8
LENGTH = {"mean": 4.0, "std": 0.9}  # of the logarithm
BUDGET = 2048  # tokens of a micro-batch
SIZE = {"hidden_size": 128, "num_layers": 4, "head_dim": 32, "intermediate_size": 384}
WAYS = {
    "padded, one pass": Budget(),
    "padded, cut by rows": Budget(rows=4),
    "padded, cut by tokens": Budget(max_tokens=BUDGET),
    "packed, cut by tokens": Budget(max_tokens=BUDGET, packed=True),
}
BASE = "padded, cut by tokens"
Report = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    report = measure(chosen.rounds)
    print(as_text(report), flush=True)
    if chosen.save:
        (RESULTS / "packing.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "packing.md").write_text(as_text(report))


def measure(rounds: int) -> Report:
    policies = {packed: policy_that(packs=packed) for packed in (False, True)}
    sample, mask = rows_of_tokens()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks, gradients = {}, {}
    for turn in range(rounds + 1):  # the first one warms up, and measures memory and gradients
        for way, budget in WAYS.items():
            policy = policies[budget.packed]
            policy.zero_grad(set_to_none=False)
            with Peak(tensors_of(policy)) if turn == 0 else Clock(seconds[way]) as seen:
                update(policy, sample, mask, budget)
            if turn == 0:
                peaks[way] = seen.most
                gradients[way] = [p.grad.clone() for p in policy.trainable().values()]
    read = sample.prompt_length + mask.sum(1) - 1
    return {
        "rows": ROWS,
        "tokens": int(read.sum()),
        "longest": int(read.max()),
        "rounds": rounds,
        "parts": {way: len(budget.cut(read)) for way, budget in WAYS.items()},
        "cpu_s": {way: median(laps) for way, laps in seconds.items()},
        "cpu_ratio": {way: by_round(laps, seconds[BASE]) for way, laps in seconds.items()},
        "peak_mib": {way: peak / 2**20 for way, peak in peaks.items()},
        "largest_gradient_gap": gap(gradients["packed, cut by tokens"], gradients[BASE]),
    }


class Clock:
    """CPU seconds of the blocks that run under it."""

    def __init__(self, laps: list[float]) -> None:
        self.laps = laps

    def __enter__(self) -> Clock:
        self.began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.laps.append(time.process_time() - self.began)


def policy_that(*, packs: bool) -> LanguagePolicy:
    build = partial(tiny_lm, seed=0, max_positions=2 * LONGEST, **SIZE)
    policy = LanguagePolicy(build=build, packing=packs)
    policy.load(Request(sampling=Sampling(max_new_tokens=8)))
    for parameter in policy.trainable().values():
        parameter.grad = torch.zeros_like(parameter)
    return policy


def rows_of_tokens() -> tuple[TokenSample, Tensor]:
    """Answers of log-normal lengths after short prompts."""
    noise = torch.Generator().manual_seed(0)
    steps = torch.randn(ROWS, generator=noise) * LENGTH["std"] + LENGTH["mean"]
    length = steps.exp().long().clamp(4, LONGEST - PROMPT)
    tokens = torch.randint(2, 36, (ROWS, PROMPT + int(length.max())), generator=noise)
    sample = TokenSample(
        tokens=tokens,
        prompt_length=torch.full((ROWS,), PROMPT),
        temperature=torch.ones(ROWS),
    )
    return sample, torch.arange(int(length.max())) < length[:, None]


def update(policy: LanguagePolicy, sample: TokenSample, mask: Tensor, budget: Budget) -> None:
    """As in a training step: every row once, in parts; the cost of cutting is included."""
    for part in budget.cut(sample.prompt_length + mask.sum(1) - 1):
        evidence = policy.scorer(take(sample, part), mask[part])
        (evidence.logp.sum() / mask.sum()).backward()


def tensors_of(policy: LanguagePolicy) -> Iterator[Tensor]:
    for parameter in policy.network.parameters():
        yield parameter
        yield parameter.grad
    yield from policy.network.buffers()


def by_round(laps: list[float], base: list[float]) -> float:
    return median(own / other for own, other in zip(laps, base, strict=True))


def gap(own: list[Tensor], other: list[Tensor]) -> float:
    """Largest difference of any entry over the largest entry."""
    largest = max(float(x.abs().max()) for x in other)
    return max(float((x - y).abs().max()) for x, y in zip(own, other, strict=True)) / largest


def as_text(report: Report) -> str:
    rows = [
        f"| {way} | {report['parts'][way]} | {report['cpu_s'][way]:.2f} | "
        f"{report['cpu_ratio'][way]:.2f} | {report['peak_mib'][way]:.0f} | "
        f"{report['peak_mib'][way] / report['peak_mib'][BASE]:.2f} |\n"
        for way in WAYS
    ]
    return (
        f"### {report['rows']} rows of log-normal lengths, {report['tokens']} tokens, the longest "
        f"row {report['longest']}; at most {BUDGET} tokens a part; {report['rounds']} rounds\n\n"
        "| rows | parts | CPU s | to padded by tokens | peak MiB of tensors | to padded by tokens "
        "|\n|---|---|---|---|---|---|\n" + "".join(rows) + "\n"
        "Largest difference of a gradient between packed and padded rows, in float32, by the "
        f"largest entry: {report['largest_gradient_gap']:.1e}\n"
    )


if __name__ == "__main__":
    main()
