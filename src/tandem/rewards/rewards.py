"""Several rewards at once: who is asked when, and what a sample is worth in sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from tandem.rewards.concurrency import CallQueue
from tandem.rewards.result import ABSTAINED, Verdict, fault_of
from tandem.rewards.reward import Reward
from tandem.types import Prompt, Scores


class Rewards:
    """The weighted sum of named rewards.

    A reward that gives None leaves a sample to the others; one that fails leaves it without a
    score, because a sum without its term would be another reward. None from all is no score either.
    A reward that a prompt does not name among its own is not asked, which is no fault of anybody.
    """

    def __init__(self, components: Mapping[str, Reward]) -> None:
        if not components:
            raise ValueError("no reward: choose one, for example reward=exact_match")
        self.components = dict(components)
        self.faults: Counter[str] = Counter()  # reason -> missing numbers since last popped
        self.lines = {
            name: CallQueue() for name, component in components.items() if component.waits
        }

    @property
    def primary(self) -> str:
        """The first reward: what accuracy means and DAPO filters by, unless told otherwise."""
        return next(iter(self.components))

    @property
    def waits(self) -> bool:
        """Whether one of them waits for somebody else, so that it pays to begin early."""
        return bool(self.lines)

    def __call__(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> Scores:
        """group: [B], the same number for the samples of a group; None: each stands alone."""
        return self.begin(outputs, prompts, group)()

    def begin(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> Callable[[], Scores]:
        """Ask those that wait for somebody else, each in a thread of its own.

        What comes back asks the others, waits for all, and gives the scores. To begin again before
        is fine: every reward is asked in the order of these calls.
        """
        # Here and not in a thread, where a copy would wait for what the sampler does next.
        outputs = [one.cpu() if isinstance(one, Tensor) else one for one in outputs]
        group = None if group is None else group.cpu()
        answers: dict[str, Callable[[], list[Verdict]]] = {}
        for name, component in self.components.items():
            ask = partial(_judged_by, name, component, outputs, prompts, group)
            answers[name] = self.lines[name].put(ask).result if component.waits else ask
        # While some wait, the others compute.
        order = sorted(answers, key=self.lines.__contains__)
        return lambda: self.summed({name: answers[name]() for name in order}, len(outputs))

    def summed(self, judged: Mapping[str, list[Verdict]], count: int) -> Scores:
        """What each reward said of `count` samples, as one number for each of them."""
        parts, total = {}, torch.zeros(count, dtype=torch.float64)
        scored, failed = (torch.zeros(count, dtype=torch.bool) for _ in range(2))
        for name, component in self.components.items():
            reasons = [reason for _, reason in judged[name]]
            self.faults.update(fault_of(name, reason) for reason in reasons if reason is not None)
            numbers = [math.nan if number is None else number for number, _ in judged[name]]
            parts[name] = torch.tensor(numbers, dtype=torch.float32)
            total += component.weight * parts[name].double().nan_to_num(0.0)
            scored |= ~parts[name].isnan()
            failed |= torch.tensor([r not in (None, ABSTAINED) for r in reasons], dtype=torch.bool)
        scored &= ~failed
        return Scores(total=torch.where(scored, total, 0).float(), parts=parts, scored=scored)

    def pop_faults(self) -> dict[str, int]:
        """How many numbers were missing for which reason since the last call."""
        faults, self.faults = dict(self.faults), Counter()
        return faults


def _judged_by(
    name: str,
    component: Reward,
    outputs: Sequence[str],
    prompts: Sequence[Prompt],
    group: Tensor | None,
) -> list[Verdict]:
    """As `Reward.judge`; neither number nor reason where the reward is not asked."""
    asked = [i for i, prompt in enumerate(prompts) if prompt.judged_by(name)]
    own = None if group is None else group[asked]
    answers = component.judge([outputs[i] for i in asked], [prompts[i] for i in asked], own)
    judged: list[Verdict] = [(None, None)] * len(outputs)
    for i, answer in zip(asked, answers, strict=True):
        judged[i] = answer
    return judged
