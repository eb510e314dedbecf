"""Guards: conditions that end a run that makes no progress or reports wrong numbers."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from tandem.contracts import at_least, fraction, positive, waiting
from tandem.settings.keys import key
from tandem.stop import Stop

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
HACKING = re.compile(r"(warn|stop)(:[1-9]\d*)?")
SHOWN = 5  # reasons of missing scores
MISMATCH = "docs/engines.md#the-guard"
NOT_FINITE = "docs/debugging.md#check-for-nan"
TIED = "all advantages were 0 (compared samples scored the same)", "set algorithm=dapo"
UNTAUGHT = "no sample had a teacher", "give prompts an `answer` for algorithm=sdft"
# Rows of older weights need a correction: without one their ratio would start at 1.
STALE = (
    "samples are of older weights (rollout.staleness), and nothing corrects for it; set "
    "algorithm/importance_sampling=token_tis or staleness_decay, or "
    "algorithm/old_logprobs=rollout or interpolate"
)


class Guarded(Protocol):
    """The properties of a policy that guards read."""

    exact: bool  # whether a log-probability is the same in any batch
    disagreement: float  # of sampler and trainer on a few rows, mean nats per step
    largest_disagreement: float  # of a single step, on rows of older weights
    varies_by: str | None  # the setting that increases the variety of samples; None: there is none

    # The policies of the segments of its samples by name; "" is itself, with one kind of steps.
    parts: Mapping[str, Guarded]

    def suspicion(self) -> str:
        """The likely reason why sampler and trainer disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the difference between sampler and trainer, in nats per step of one segment."""

    first_update_ratio: Annotated[float, at_least(0)]  # largest |logp - old_logp| before an update
    max_mismatch: Annotated[float, at_least(0)]  # mean |logp of the trainer - logp of the sampler|


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Limits of a healthy run."""

    # Largest |logp - old_logp| before anything was updated, nats.
    first_update_ratio: Annotated[float, at_least(0)] = 1e-4
    # Mean |logp of the trainer - logp of the sampler|, nats.
    max_mismatch: Annotated[float, at_least(0)] = 0.05
    non_finite: str = "stop"  # stop: end the run; skip:k: tolerate k in a row
    no_signal: Annotated[int, positive] = 5  # iterations in a row with nothing to learn from
    # Largest share of an iteration's samples without a score.
    max_missing_rewards: Annotated[float, fraction] = 0.1
    # What happens if the trained reward rises and a judge falls, for this many evaluations in a row
    # (warn is warn:2); None: no check.
    hacking: str | None = "warn"
    # Judges that `hacking` reads: rewards of weight 0 for which higher is better.
    judges: tuple[str, ...] = ()
    # Limits for the picture of a chain; the two limits above then apply to its text.
    picture: Limits | None = None
    # Seconds without progress; None: no limit.
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
                f"null, not {self.hacking!r}"
            )

    @property
    def max_non_finite(self) -> int:
        """Non-finite updates in a row that are skipped before the run ends."""
        return int(self.non_finite.partition(":")[2] or 0)

    @property
    def hacking_patience(self) -> int:
        """Consecutive evaluations that must find the reward hacked before the guard acts."""
        return int((self.hacking or "").partition(":")[2] or 2)

    def check_hacking(self, found: str, iteration: int) -> None:
        """End the run or warn. `found`: how the reward is hacked, in words.

        Raises Stop if the guard ends the run.
        """
        if self.hacking.startswith("stop"):
            raise Stop(
                f"iteration {iteration}: {found}; guards.hacking={self.hacking} ended the run; set "
                "guards.hacking=warn to continue",
                change="guards.hacking=warn",
                page="docs/reward_hacking.md#automatic-detection",
                together=True,
            )
        log.warning("evaluation %d: %s; guards.hacking=stop would end the run", iteration, found)

    def check_first_update(
        self, seen: Mapping[str, float], policy: Guarded, *, fresh: bool = True
    ) -> None:
        """Compare sampler and trainer at the same weights, for each segment of a sample.

        If not all samples are `fresh`, compare those that are, and read what the policy measured of
        the others with their weights. Raises Stop if they differ by more nats than the guards
        allow.
        """
        from tandem.types import PICTURE  # imports torch, and settings are read without

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
                    f"(guards.{key}max_mismatch={limits.max_mismatch:g}): {part.suspicion()}",
                    change=_allow(f"guards.{key}max_mismatch", gap),
                    page=MISMATCH,
                    together=True,
                )
            of_samples = seen.get(f"actor/{room}log_ratio_max", 0.0)
            gap = of_samples if fresh else part.largest_disagreement
            if part.exact and not gap <= limits.first_update_ratio:
                raise Stop(
                    f"before the first update the log-probabilities of trainer and sampler differ "
                    f"by {gap:.2g} nats (guards.{key}first_update_ratio="
                    f"{limits.first_update_ratio:g}): {part.suspicion()}",
                    change=_allow(f"guards.{key}first_update_ratio", gap),
                    page=MISMATCH,
                    together=True,
                )

    def check_skipped(self, in_a_row: int, facts: Mapping[str, object], folder: Path) -> None:
        """Count a skipped update with these `facts`, whose batch is in `folder`.

        Raises Stop if there are more in a row than the guard allows.
        """
        if in_a_row > self.max_non_finite:
            more = max(3, 2 * self.max_non_finite)
            raise Stop(
                f"iteration {facts['iteration']}: loss {facts['losses']} or gradient norm "
                f"{facts['grad_norm']} is not finite; the weights are unchanged and the batch is "
                f"in {folder}; set guards.non_finite=skip:{more} to skip up to {more} such "
                "updates in a row",
                change=f"guards.non_finite=skip:{more}",
                page=NOT_FINITE,
                together=True,
            )

    def check_weights(self, weights: Iterable[Tensor], iteration: int, rate: float) -> None:
        """Check the weights, of any shape [...], right after an optimizer step, before their use.

        Raises Stop if a weight is not finite.
        """
        import torch

        from tandem import distributed

        # Each rank checks its own shard: a maximum over ranks may lose a NaN.
        own = (weight.detach() for weight in weights)
        parts = [part.to_local() if distributed.is_sharded(part) else part for part in own]
        held = [part for part in parts if part.numel()]  # small weights have no shard on some ranks
        # The 2-norm costs a tenth of the maximum, but may overflow for finite weights.
        norms = (torch.nn.utils.get_total_norm(held, norm_type=order) for order in (2, math.inf))
        broken = torch.tensor(not any(map(math.isfinite, norms)), dtype=torch.float32)
        if distributed.all_max(broken) > 0:
            raise Stop(
                f"iteration {iteration}: the optimizer step made weights that are not finite, at "
                f"a learning rate of {rate:g}; no engine, snapshot or checkpoint received them; "
                "lower optimizer.lr, or continue from the newest checkpoint with resume=",
                page=NOT_FINITE,
            )

    def check_missing(self, fraction: float, reasons: Mapping[str, int]) -> None:
        """Warn of samples without a reward. Raises Stop if their share exceeds
        `max_missing_rewards`."""
        said = f"{fraction:.0%} of the samples have no reward ({describe_counts(reasons)})"
        if fraction > self.max_missing_rewards:
            raise Stop(
                f"{said}, more than guards.max_missing_rewards={self.max_missing_rewards:g}; fix "
                "the reward or the data field that it reads",
                change=_allow("guards.max_missing_rewards", fraction, most=1.0),
                page="docs/rewards.md#when-a-reward-fails",
                together=True,
            )
        log.warning("%s", said)

    def check_signal(self, flat: int, policy: Guarded, *, by_scores: bool = True) -> None:
        """Raise Stop after `no_signal` iterations in a row whose advantages are all 0 or, unless
        the run learns `by_scores`, whose samples had no teacher."""
        if flat >= self.no_signal:
            why, instead = TIED if by_scores else UNTAUGHT
            more = " or ".join(filter(None, ("group_size", policy.varies_by)))
            raise Stop(
                f"in {flat} iterations in a row {why}, so nothing can be learnt: raise "
                f"{more}, use easier or harder prompts, compare samples/ with what the reward "
                "accepts, start from a better model (warm_start, continue_from), or "
                f"{instead}; guards.no_signal sets the limit",
                change=f"guards.no_signal={2 * self.no_signal}",
                page="docs/debugging.md#symptoms",
                together=True,
            )


def _allow(key: str, found: float, *, most: float = math.inf) -> str:
    """The override that allows twice what was found, up to `most`; "": no limit allows it."""
    return f"{key}={min(2 * found, most):.1g}" if math.isfinite(found) else ""


def warn_of_judges(failed: Mapping[str, int]) -> int:
    """The number of scores that judges failed to give, with a warning. No sample is dropped."""
    if failed:
        log.warning("rewards of weight 0 gave no number: %s", describe_counts(failed))
    return sum(failed.values())


def describe_counts(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts; the rest is summed up."""
    ordered = sorted(reasons.items(), key=lambda pair: -pair[1])
    said = [f"{count} x {reason}" for reason, count in ordered[:SHOWN]]
    if left := sum(count for _, count in ordered[SHOWN:]):
        said.append(f"{left} x other reasons")
    return ", ".join(said)
