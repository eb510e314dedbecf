"""Scoring of a client's rows: a number, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tandem.rewards.result import ABSTAINED, Missing, explain_reason, fault_of
from tandem.rewards.rewards import Rewards
from tandem.rewards.serialization import Number, Row

Scorer = Callable[[Sequence[Row]], list[Number]]


def make_scorer(rewards: Rewards) -> Scorer:
    """A function that scores samples as a run would: the weighted sum, or why there is none."""

    def score(rows: Sequence[Row]) -> list[Number]:
        outputs, prompts = [row.output for row in rows], [row.prompt for row in rows]
        parts = rewards.components.items()
        verdicts = {
            name: dict(enumerate(component.judge(outputs, prompts))) for name, component in parts
        }
        scores = rewards.sum(verdicts, len(rows))
        for judges in (False, True):
            rewards.pop_faults(judges=judges)
        reasons = [
            {name: verdicts[name][i][1] for name in rewards.trained} for i in range(len(rows))
        ]
        totals = zip(scores.total.tolist(), scores.scored.tolist(), reasons, strict=True)
        return [total if scored else explain_missing(why) for total, scored, why in totals]

    return score


def explain_missing(reasons: Mapping[str, str | None]) -> Missing | None:
    """The first failure of the rewards of a sample without a score; None: all abstained."""
    failed = [(name, reason) for name, reason in reasons.items() if reason not in (None, ABSTAINED)]
    if not failed:
        return None
    name, reason = failed[0]
    return Missing(explain_reason(name, reason) if len(reasons) == 1 else fault_of(name, reason))
