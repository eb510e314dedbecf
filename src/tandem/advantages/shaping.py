"""What happens to scores before they are compared: (Scores, Rollout) -> (Scores, Rollout).

The options of `algorithm/truncated` say what an answer is worth that the step limit cut off.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from tandem.declarations import refused_on
from tandem.types import Rollout, Scores

Shaped = tuple[Scores, Rollout]
FINISHED = "every picture is finished, and none takes longer; set algorithm/truncated=train"

of_answers = refused_on(steps=FINISHED, pictures=FINISHED)


def train(scores: Scores, rollout: Rollout) -> Shaped:
    """A truncated answer is trained on like any other."""
    return scores, rollout


@of_answers
def mask(scores: Scores, rollout: Rollout) -> Shaped:
    """A truncated answer is not trained on, but its score still counts in its group."""
    return scores, replace(rollout, mask=rollout.mask & ~rollout.truncated[:, None])


@of_answers
def penalise(scores: Scores, rollout: Rollout, *, penalty: float = 1.0) -> Shaped:
    """A truncated answer loses `penalty`."""
    return minus(scores, penalty * rollout.truncated), rollout


@of_answers
def overlong(scores: Scores, rollout: Rollout, *, limit: int, buffer: int) -> Shaped:
    """Within `buffer` steps of `limit` an answer loses up to 1 (DAPO, arXiv:2503.14476)."""
    if not 0 < buffer <= limit:
        raise ValueError(
            f"overlong needs 0 < buffer <= limit, but buffer={buffer} and limit={limit}"
        )
    excess = (rollout.length - (limit - buffer)) / buffer
    return minus(scores, excess.clamp(0, 1)), rollout


def minus(scores: Scores, loss: Tensor) -> Scores:
    return replace(scores, total=scores.total - loss * scores.scored)
