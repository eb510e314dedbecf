"""Scoring of a client's rows: a number, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tandem.contracts import facts_of
from tandem.rewards.result import ABSTAINED, Missing, explain_reason, fault_of
from tandem.rewards.rewards import Rewards
from tandem.rewards.serialization import OF_PROMPT, Number, Row

Scorer = Callable[[Sequence[Row]], list[Number]]


def refuse_unserved(rewards: Rewards) -> None:
    """Raise ValueError for a reward that needs more than a server receives: a text or a picture,
    and some fields of its prompt."""
    for name, component in rewards.components.items():
        facts = facts_of(component.function)
        unsent = sorted(facts.reads - {*OF_PROMPT})
        needs = {
            "compares the samples of a prompt, but a server scores each alone": facts.asks,
            "scores whole films, but a server receives their frames one by one": facts.of_films,
            f"reads the {' and the '.join(unsent)} of a prompt, which no server receives": unsent,
        }
        for why in (why for why, holds in needs.items() if holds):
            raise ValueError(f"reward.{name} {why}; choose it in train.py")


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
