"""Guards: conditions that end a run that wastes time or lies."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import torch

from tandem import distributed
from tandem.contracts import at_least, fraction, positive, waiting
from tandem.rewards.result import failures
from tandem.settings.keys import key
from tandem.stop import Stop
from tandem.types import PICTURE

log = logging.getLogger(__name__)
HACKING = re.compile(r"(warn|stop)(:[1-9]\d*)?")
SHOWN = 5  # reasons of missing scores
# Rows of older weights must be treated as such: their ratio alone would start at 1.
STALE = (
    "samples are of older weights (rollout.staleness), and nothing corrects for it; set "
    "algorithm/importance_sampling=token_tis "
    "or staleness_decay, or algorithm/old_logprobs=rollout or interpolate"
)


class Guarded(Protocol):
    """A policy as guards ask it."""

    exact: bool  # whether a log-probability comes out the same in any batch
    disagreement: float  # of sampler and trainer, on a few rows, nats per step on average
    largest_disagreement: float  # and of one step, on rows of older weights
    varies_by: str  # the setting that makes its samples differ more

    # The policies of the segments of its samples, by name; "", itself: it has steps of one kind.
    parts: Mapping[str, Guarded]

    def suspicion(self) -> str:
        """The likely reason why the two differ, as far as can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far sampler and trainer may be from one another, in nats of the steps of one segment."""

    first_update_ratio: Annotated[float, at_least(0)]
    max_mismatch: Annotated[float, at_least(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Limits of a healthy run."""

    # Largest |logp - old_logp| before anything was updated, nats.
    first_update_ratio: Annotated[float, at_least(0)] = 1e-4
    # Mean |logp of the trainer - logp of the sampler|, nats.
    max_mismatch: Annotated[float, at_least(0)] = 0.05
    non_finite: str = "stop"  # or skip:k, which tolerates k in a row
    no_signal: Annotated[int, positive] = 5  # iterations in a row in which every group ties
    max_missing_rewards: Annotated[float, fraction] = 0.1  # of an iteration's samples
    # Where the trained reward rises and a judge falls, at so many evaluations in a row (warn is
    # warn:2); None: nobody looks.
    hacking: str | None = "warn"
    # Judges, which are rewards of weight 0, of which more is better: `hacking` goes by them.
    judges: tuple[str, ...] = ()
    # Of the denoising steps of samples that are written first; the two above are of their tokens.
    picture: Limits | None = None
    # Seconds without progress; None: however long.
    stalled_after: Annotated[float, waiting] | None = field(
        default=3600.0, metadata=key(resumable=True, compared=False)
    )

    def __post_init__(self) -> None:
        kind, _, number = self.non_finite.partition(":")
        if self.non_finite != "stop" and not (kind == "skip" and number.isdecimal()):
            raise ValueError(
                f"guards.non_finite is stop or skip:k (skip:3), not {self.non_finite!r}"
            )

        if self.hacking is not None and HACKING.fullmatch(self.hacking) is None:
            raise ValueError(
                "guards.hacking is warn, stop, stop:k or warn:k (after k evaluations in a row) or "
                "null, not "
                f"{self.hacking!r}"
            )

    @property
    def tolerated(self) -> int:
        """Non-finite updates in a row that are skipped before the run ends."""
        return int(self.non_finite.partition(":")[2] or 0)

    @property
    def hacking_patience(self) -> int:
        """Evaluations in a row that find the reward hacked before anything is said of it."""
        return int((self.hacking or "").partition(":")[2] or 2)

    def check_hacking(self, found: str, iteration: int) -> None:
        """`found`: how the reward is hacked, in words, as of this iteration.

        Raises Stop where the guard ends the run, else warns.
        """
        if self.hacking.startswith("stop"):
            raise Stop(
                f"iteration {iteration}: {found}; guards.hacking={self.hacking} ended the run, "
                "and guards.hacking=warn goes on"
            )
        log.warning("evaluation %d: %s; guards.hacking=stop would end the run", iteration, found)

    def check_first_update(
        self, seen: Mapping[str, float], policy: Guarded, *, fresh: bool = True
    ) -> None:
        """Compare sampler and trainer on fresh samples, while the weights are the same.

        Where some are not `fresh`, those that are, and what the policy measured of the others while
        their weights were there. Raises Stop where they differ by more than the guards admit, in
        nats; each segment of a sample by itself.
        """
        for name, part in policy.parts.items():
            own = self.picture if name == PICTURE else None
            limits, key = (self, "") if own is None else (own, f"{name}.")
            room = f"{name}/" if name else ""
            gap = seen.get(f"rollout_corr/{room}abs_logp_diff", part.disagreement)
            if not fresh:
                newest = seen.get(f"rollout_corr/{room}abs_logp_diff_fresh", 0.0)
                gap = max(newest, part.disagreement)
            if not gap <= limits.max_mismatch:
                raise Stop(
                    f"sampler and trainer disagree by {gap:.2g} nats per step on average "
                    f"(guards.{key}max_mismatch={limits.max_mismatch:g}): {part.suspicion()}"
                )
            of_samples = seen.get(f"actor/{room}log_ratio_max", 0.0)
            gap = of_samples if fresh else part.largest_disagreement
            if part.exact and not gap <= limits.first_update_ratio:
                raise Stop(
                    f"before the first update the trainer's log-probabilities differ from the "
                    f"sampling ones by {gap:.2g} nats (guards.{key}first_update_ratio="
                    f"{limits.first_update_ratio:g}): {part.suspicion()}"
                )

    def check_skipped(self, in_a_row: int, facts: Mapping[str, object], folder: Path) -> None:
        """`facts` of an update that was left out, whose batch lies in `folder`.

        Raises Stop after as many in a row as the guard admits.
        """
        if in_a_row > self.tolerated:
            raise Stop(
                f"iteration {facts['iteration']}: loss {facts['losses']} or gradient norm "
                f"{facts['grad_norm']} is not finite; the weights were left as they were and the "
                f"batch is in {folder}. "
                "guards.non_finite=skip:3 would leave out up to 3 such updates in a row"
            )

    def check_weights(self, weights: Iterable[torch.Tensor], iteration: int, rate: float) -> None:
        """Those that an optimiser's step has just made, before anybody gets them.

        Of any shape [...]. Raises Stop where one is not finite.
        """
        # Of its own part each rank: a maximum over ranks may lose what is no number.
        own = (weight.detach() for weight in weights)
        parts = [part.to_local() if distributed.is_sharded(part) else part for part in own]
        held = [part for part in parts if part.numel()]  # small weights have no part on some ranks
        # The sum of squares costs a tenth of the maximum, but may overflow where weights do not.
        norms = (torch.nn.utils.get_total_norm(held, norm_type=order) for order in (2, math.inf))
        broken = torch.tensor(not any(map(math.isfinite, norms)), dtype=torch.float32)
        if distributed.all_max(broken) > 0:
            raise Stop(
                f"iteration {iteration}: the optimizer's step made weights that are not finite, at "
                f"a learning rate of {rate:g}; no engine, snapshot or checkpoint was given them; "
                "lower optimizer.lr, or go on from the newest checkpoint by resume="
            )

    def check_missing(self, fraction: float, reasons: Mapping[str, int]) -> None:
        """Of samples without a reward, more than none: a warning, or Stop where they are more than
        `max_missing_rewards`."""
        said = f"{fraction:.0%} of the samples have no reward ({describe_counts(reasons)})"
        if fraction > self.max_missing_rewards:
            raise Stop(
                f"{said}; repair the reward, or the field of the data that it reads, "
                f"or raise guards.max_missing_rewards={self.max_missing_rewards:g}"
            )
        log.warning("%s", said)

    def check_signal(self, flat_iterations: int, policy: Guarded) -> None:
        """Raise Stop after `no_signal` iterations in a row in which every group ties."""
        if flat_iterations >= self.no_signal:
            raise Stop(
                f"in {flat_iterations} iterations in a row every group scored alike, so nothing "
                f"can be learnt: raise group_size or {policy.varies_by}, give easier or harder "
                "prompts, start from a better model (warm_start, continue_from), or use "
                "algorithm=dapo; guards.no_signal is the patience"
            )


def warn_of_judges(faults: Mapping[str, int]) -> int:
    """How many numbers judges failed to give, and a warning why: no sample is set
    aside for it."""
    if failed := failures(faults):
        log.warning("rewards of weight 0 gave no number: %s", describe_counts(failed))
    return sum(failed.values())


def describe_counts(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts; a server may send as many as it likes."""
    ordered = sorted(reasons.items(), key=lambda pair: -pair[1])
    said = [f"{count} x {reason}" for reason, count in ordered[:SHOWN]]
    if left := sum(count for _, count in ordered[SHOWN:]):
        said.append(f"{left} x other reasons")
    return ", ".join(said)
