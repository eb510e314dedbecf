"""Contradictions between an environment, who samples, and what judges its episodes."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of
from tandem.legality.case import Case


def moves_are_judged_where_they_are_made(case: Case) -> Iterator[str]:
    """A reward of moves reads what an environment gave."""
    if case.environment is not None or case.is_offline:
        return
    for name, part in case.rewards.items():
        function = part.arguments.get("function")
        if function is not None and facts_of(function.target).of_moves:
            yield (
                f"reward={name} sums what an environment gives for moves, and there is none; "
                "choose one, such as environment=hilo, or another reward"
            )


def episodes_are_played_by_the_newest_weights(case: Case) -> Iterator[str]:
    """An engine that samples ahead of training is asked for answers, not for episodes."""
    if case.environment is None or case.engine is None or not case.sampling.staleness:
        return
    yield (
        f"rollout.staleness={case.sampling.staleness}: an engine that samples ahead of training "
        f"plays no episodes, and environment={case.plan.choices['environment']} has them; set "
        "rollout.staleness=0"
    )


RULES = (moves_are_judged_where_they_are_made, episodes_are_played_by_the_newest_weights)
