"""Rows of the sample tables: prompt, sample and rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from torch import Tensor

from tandem.rewards.films import lay_out_frames
from tandem.types import WRITTEN, Prompt, Rollout, Scores, is_film

Kind = Literal["greedy", "eval", "sampled", "best", "worst"]
Describe = Callable[[Prompt], str]  # the text of a prompt as the policy sees it
# The steps in which a row was generated, a line each; none: left to right.
History = Callable[[Rollout, int], Sequence[str]]


def untold(rollout: Rollout, row: int) -> Sequence[str]:
    """No lines for any row."""
    return ()


def make_rows(
    rollout: Rollout,
    scores: Scores,
    chosen: Iterable[int],
    *,
    kind: Kind,
    describe: Describe,
    history: History = untold,
) -> list[dict]:
    """One dictionary per chosen row; a missing score is None; a picture, or the frames of a film
    side by side, is uint8 [H, W, 3].

    A row not generated from left to right also has "steps".
    """
    rows = []
    for i in chosen:
        steps = list(history(rollout, i))
        row = _make_row(rollout, scores, i, kind=kind, describe=describe)
        rows.append(row | ({"steps": steps} if steps else {}))
    return rows


def select_extremes(
    rollout: Rollout, scores: Scores, *, count: int, describe: Describe
) -> list[dict]:
    """The `count` highest and the `count` lowest of the scored samples, extremes first."""
    order = _rank(scores)
    low, high = order[:count], order[::-1][:count]
    return [
        *make_rows(rollout, scores, high, kind="best", describe=describe),
        *make_rows(rollout, scores, low, kind="worst", describe=describe),
    ]


def _rank(scores: Scores) -> list[int]:
    """Indices of the scored samples, worst first; ties in sampling order."""
    order: Tensor = scores.total.argsort(stable=True)
    return [i for i in order.tolist() if scores.scored[i]]


def _make_row(rollout: Rollout, scores: Scores, i: int, *, kind: Kind, describe: Describe) -> dict:
    prompt, output = rollout.prompts[i], rollout.outputs[i]
    # A row of the data may have a field of the same name that no policy wrote.
    is_chain = rollout.segment is not None and WRITTEN in prompt.fields
    written = {WRITTEN: prompt.fields[WRITTEN]} if is_chain else {}
    told = prompt.episode
    return {
        "kind": kind,
        "source": prompt.source,
        "prompt": describe(prompt),
        "output": lay_out_frames(output) if is_film(output) else output,
        "answer": prompt.answer,
        "reward": scores.total[i].item() if scores.scored[i] else None,
        "parts": {
            name: x if math.isfinite(x := part[i].item()) else None
            for name, part in scores.all_parts.items()
        },
        "length": int(rollout.own_length[i]),
        "truncated": bool(rollout.truncated[i]),
        **written,  # the text from which a picture was generated
        **({} if told is None else {"episode": told["turns"], "lost": told["lost"]}),
    }
