"""Reward shaping before advantages: (Scores, Rollout) -> (Scores, Rollout).

The options of `algorithm/truncation_handling` treat answers cut off by the step limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from tandem.advantages.temporal import on_last_step
from tandem.contracts import at_least, positive, register_truncation
from tandem.types import SEGMENTS, TEXT, Rollout, Scores

Shaped = tuple[Scores, Rollout]
FINISHED = "a picture is never truncated; set algorithm/truncation_handling=train"

OF_ANSWERS = {"steps": FINISHED, "pictures": FINISHED}


# Answers cut off by the step limit are trained on like any other
@register_truncation(neutral=True)
def train(scores: Scores, rollout: Rollout) -> Shaped:
    """A truncated answer is trained on like any other."""
    return scores, rollout


# Truncated answers are not trained on, but count in their group
@register_truncation(refused=OF_ANSWERS, where_it_can=True)
def mask(scores: Scores, rollout: Rollout) -> Shaped:
    """A truncated answer is not trained on, but its score still counts in its group.

    A picture generated from it is complete, and is trained on.
    """
    cut = rollout.truncated[:, None]
    if rollout.segment is not None:
        cut = cut & (rollout.segment == SEGMENTS.index(TEXT))
    return scores, replace(rollout, mask=rollout.mask & ~cut)


# Truncated answers lose a constant
@register_truncation(lowers_scores=True, refused=OF_ANSWERS, where_it_can=True)
def penalise(
    scores: Scores,
    rollout: Rollout,
    *,
    # Amount that the score of a truncated answer loses.
    penalty: Annotated[float, at_least(0)] = 1.0,
) -> Shaped:
    """A truncated answer loses `penalty`."""
    return minus(scores, rollout, penalty * rollout.truncated), rollout


@register_truncation(
    lowers_scores=True,
    refused=OF_ANSWERS,
    where_it_can=True,
    horizon="limit",
    not_above=(("buffer", "limit"),),
)
def overlong(
    scores: Scores,
    rollout: Rollout,
    *,
    limit: Annotated[int, positive],  # longest answer, in steps of the policy
    # Steps before the limit in which the penalty rises from 0 to 1; at most the limit.
    buffer: Annotated[int, positive],
) -> Shaped:
    """Within `buffer` steps of `limit` an answer loses up to 1 (DAPO, arXiv:2503.14476).

    Only steps of the policy count, not messages of an environment.
    """
    excess = (rollout.own_length - (limit - buffer)) / buffer
    return minus(scores, rollout, excess.clamp(0, 1)), rollout


def minus(scores: Scores, rollout: Rollout, loss: Tensor) -> Scores:
    """Subtract `loss` [B] from the totals of scored samples, on the last trained step."""
    loss = loss * scores.scored
    per_step = scores.per_step
    if per_step is not None:
        per_step = per_step - on_last_step(loss, rollout.trained)
    return replace(scores, total=scores.total - loss, per_step=per_step)
