"""Rewards of samples: user functions whose failures are contained, and their weighted sum."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from tandem.contracts import facts_of
from tandem.rewards.concurrency import CallQueue, at_once, lost_output
from tandem.rewards.films import OfFrames, combine_frames, select_frames
from tandem.rewards.result import (
    ABSTAINED,
    LARGEST,
    Verdict,
    attempt,
    copy_of,
    fault_of,
    number_of,
    one_each,
)
from tandem.rewards.signature import rows_of_groups
from tandem.threads import result_of
from tandem.types import Prompt, Scores, is_film


class Rewards:
    """The weighted sum of named rewards.

    A reward that gives None is left out of the sum; one that fails leaves the sample without a
    score, because a sum without its term would be a different reward. None from all is no score.
    A reward that a prompt does not list does not score it, which is not counted as a fault.
    A reward of weight 0 is a judge, measured but never trained on: scores are bit-identical without
    it. If all have weight 0, every sample scores 0.
    """

    def __init__(
        self, components: Mapping[str, Reward], *, full: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """full: the number from which a reward is full, where it is known."""
        if not components:
            raise ValueError("no reward: choose one, for example reward=exact_match")
        self.components = dict(components)
        self.trained = {name: one for name, one in components.items() if one.weight}
        self.full = full
        self.dtype, self.folder = torch.get_default_dtype(), os.getcwd()  # of the process
        # Of trained rewards (False) and judges (True): reason -> missing numbers since last popped.
        self.faults: dict[bool, Counter[str]] = defaultdict(Counter)
        self.queues = {
            name: CallQueue() for name, component in components.items() if component.waits
        }
        # Whether a trained reward waits for another machine, so that starting early saves time.
        self.waits = bool(self.queues.keys() & self.trained.keys())

    def __call__(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> Scores:
        """group: [B], the same number for the samples of a group; None: no groups."""
        return self.begin(outputs, prompts, group)()

    def begin(
        self,
        outputs: Sequence[str],
        prompts: Sequence[Prompt],
        group: Tensor | None = None,
        *,
        iteration: int = 0,
        faults: dict[bool, Counter[str]] | None = None,
    ) -> Callable[[], Scores]:
        """Start the rewards that wait for other machines or processes, each in its own thread.

        The function returned computes the others, waits for all, and gives the scores. `begin` may
        be called again before it: every reward keeps the order of these calls. `group`: [B] int64.
        A judge may skip an `iteration`. `faults` counts what the scores lack; None: `self.faults`.
        """
        # Not in a thread, where the copy would wait for the sampler's queued work.
        outputs = [one.cpu() if isinstance(one, Tensor) else one for one in outputs]
        group = None if group is None else group.cpu()
        # Rows whose episode was lost, and why.
        episodes = {row: prompt.episode for row, prompt in enumerate(prompts) if prompt.episode}
        lost = {row: episode["lost"] for row, episode in episodes.items() if episode["lost"]}
        asked: dict[str, Sequence[int]] = {}  # rows by reward; `calls` give their verdicts
        calls: dict[str, Callable[[], list[Verdict]]] = {}
        for name, reward in self.components.items():
            awake = range(0 if iteration % reward.every else len(prompts))
            rows = asked[name] = [i for i in awake if prompts[i].has_reward(name) and i not in lost]
            own = [outputs[i] for i in rows], [prompts[i] for i in rows]
            judge = partial(reward.judge, *own, None if group is None else group[rows])
            calls[name] = (
                partial(result_of, self.queues[name].put(judge)) if reward.waits else judge
            )
        # The others compute while these wait.
        order = sorted(calls, key=self.queues.__contains__)
        return lambda: self.sum(
            {name: dict(zip(asked[name], calls[name](), strict=True)) for name in order},
            len(outputs),
            lost,
            faults,
        )

    def sum(
        self,
        verdicts: Mapping[str, Mapping[int, Verdict]],
        count: int,
        lost: Mapping[int, str] = MappingProxyType({}),
        faults: dict[bool, Counter[str]] | None = None,
    ) -> Scores:
        """The scores of `count` samples from each reward's verdicts on its rows. `lost`: the reason
        for each row whose environment failed; these have no score. `faults`: as in `begin`."""
        faults = self.faults if faults is None else faults
        if sys.stdout is None or sys.stdout.closed:
            raise lost_output(self.components)
        torch.set_default_dtype(self.dtype)  # as before, whatever a reward set
        with suppress(OSError):  # somebody deleted the folder
            os.chdir(self.folder)
        total = torch.zeros(count, dtype=torch.float64)
        scored = torch.full((count,), not self.trained)
        failed = torch.zeros(count, dtype=torch.bool)
        failed[list(lost)] = True
        faults[False].update(fault_of("environment", reason) for reason in lost.values())
        parts, judges = {}, {}
        for name, component in self.components.items():
            numbers, failures = [math.nan] * count, [False] * count
            trained = name in self.trained
            for row, (number, reason) in verdicts[name].items():
                if reason is None:
                    numbers[row] = number
                else:
                    faults[not trained][fault_of(name, reason)] += 1
                    failures[row] = reason != ABSTAINED
            part = torch.tensor(numbers, dtype=torch.float32)
            (parts if trained else judges)[name] = part
            if trained:
                total += component.weight * part.double().nan_to_num(0.0)
                scored |= ~part.isnan()
                failed |= torch.tensor(failures, dtype=torch.bool)
        scored &= ~failed
        total = torch.where(scored, total, 0).float()
        return Scores(total=total, parts=parts, scored=scored, judges=judges)

    def pop_faults(self, *, judges: bool = False) -> dict[str, int]:
        """Reason -> missing scores since the last call, of trained rewards or of judges."""
        found = dict(self.faults[judges])
        self.faults[judges].clear()
        return found


class Reward:
    """A user function of samples, whose failures cost only its own numbers.

    The function is `(output, prompt) -> float | None`, or as its declarations say (`@batched`,
    `@groupwise`, `@pairwise`, `@waits`); `batch_size` limits the samples of a batched call. A call
    that takes more than `timeout` seconds is abandoned and its rows are missing. Its thread cannot
    be ended, so a function that hangs often should end itself (as `MathVerify` does); None calls
    it in the training thread without a limit. `range` is the lowest and highest value of the
    function: it is mapped to -1 to 1, and numbers outside are missing.
    """

    def __init__(
        self,
        function: Callable,  # function of outputs and prompts that gives the numbers
        *,
        weight: float = 1.0,  # factor in the sum of rewards; 0: measured, never trained on
        # Lowest and highest number, mapped to -1 to 1; null: as they are.
        range: tuple[float, float] | None = None,
        batch_size: int | None = None,  # samples of a call of a batched function; null: all
        # Seconds of a call; its rows are then missing; null: no limit.
        timeout: float | None = None,
        frames: int | None = None,  # frames of a video that an image reward scores; null: all
        of_frames: OfFrames = "mean",  # how the numbers of frames make that of the video
        every: int = 1,  # iterations between two calls in training, for a reward of weight 0
    ) -> None:
        if every < 1 or (every > 1 and weight):
            raise ValueError(
                f"every={every} of a reward of weight {weight:g}: a trained reward must score "
                "every sample; set every=1, or weight=0"
            )
        if frames is not None and frames < 1:
            raise ValueError(f"frames={frames} of a reward must be at least 1, or null")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout} of a reward must be positive, or null")
        if not math.isfinite(weight):
            raise ValueError(f"the weight of a reward must be finite, not {weight}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} of a reward must be at least 1, or null")
        if range is not None and not -LARGEST <= range[0] < range[1] <= LARGEST:
            raise ValueError(
                f"range={list(range)} of a reward must increase and stay within 1e18 of 0"
            )
        declared = facts_of(function)
        self.function, self.signature = function, declared.asks
        self.batched, self.waits = declared.batched, declared.waits > 0
        self.at_once = max(1, declared.waits)  # concurrent calls
        self.range, self.weight, self.every = range, weight, every
        self.batch_size, self.timeout = batch_size, timeout
        # Whether it gets whole outputs; otherwise films are scored frame by frame.
        self.of_films = declared.of_films or declared.judges == "texts"
        self.frames, self.of_frames = frames, of_frames

    def __call__(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> tuple[list[float | None], Counter[str]]:
        """The number of each sample, None if missing, and the counts of reasons."""
        verdicts = self.judge(outputs, prompts, group)
        faults = Counter(reason for _, reason in verdicts if reason is not None)
        return [number for number, _ in verdicts], faults

    def judge(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> list[Verdict]:
        """The number of each sample, or the reason why there is none; `ABSTAINED` is no failure.

        group: [B], the same number for the samples of a group; None: each stands alone.
        """
        if not self.of_films and any(map(is_film, outputs)):
            films = [select_frames(film, self.frames) for film in outputs]
            of_frames = [self.judge(one, prompts, group) for one in zip(*films, strict=True)]
            return [combine_frames(one, self.of_frames) for one in zip(*of_frames, strict=True)]
        if self.signature is None:  # one sample per call
            samples = zip(outputs, prompts, strict=True)
            values = self._ask([(copy_of(output), copy_of(prompt)) for output, prompt in samples])
        else:
            questions = self.signature.questions(rows_of_groups(group, len(outputs)))
            asked = [self.signature.arguments(outputs, prompts, rows) for rows in questions]
            values = self.signature.verdicts(questions, self._ask(asked), len(outputs))
        return [number_of(value, self.range) for value in values]

    def _ask(self, asked: Sequence[tuple]) -> list[object]:
        """The function's result for each question, or its exception."""
        size = self.batch_size or max(len(asked), 1)
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        calls = asked
        if self.batched:
            calls = [tuple(list(column) for column in zip(*part, strict=True)) for part in parts]
        if self.timeout is None and self.at_once == 1:
            answers = [attempt(self.function, arguments) for arguments in calls]
        else:
            answers = at_once(self.at_once, self.function, calls, seconds=self.timeout)
        if not self.batched:
            return answers
        pairs = zip(answers, parts, strict=True)
        return [value for answer, part in pairs for value in one_each(answer, len(part))]
