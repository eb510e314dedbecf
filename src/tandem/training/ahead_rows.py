"""The rows of a group sampled ahead of training, and their names in a checkpoint."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

import torch
from torch import Tensor

from tandem.policies.language.records import Answers
from tandem.stop import Abandoned
from tandem.training.ahead import Ticket
from tandem.types import Rollout, Scores

ROWS = "rows/"
OF_ANSWERS = [one.name for one in fields(Answers) if one.name != "version"]
OF_SCORES = ("total", "scored", "per_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Rows of a group, and their scores, which are already requested."""

    rollout: Rollout
    answers: Answers  # from which the rollout was made
    versions: Tensor  # [B, T] int64: version of the weights that sampled each token
    scores: Callable[[], Scores]
    # As in `Rewards`: what these scores lack, once they are there.
    faults: dict[bool, Counter[str]] = field(default_factory=partial(defaultdict, Counter))


def group_tensors(ticket: Ticket, rows: Sequence[Sampled]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a group by their names in a checkpoint."""
    for number, sampled in enumerate(rows):
        scores = sampled.scores()
        found = {name: getattr(sampled.answers, name) for name in OF_ANSWERS}
        found |= {name: getattr(scores, name) for name in OF_SCORES}
        for room, parts in (("parts", scores.parts), ("judges", scores.judges)):
            found |= {f"{room}/{name}": part for name, part in parts.items()}
        found["versions"] = sampled.versions
        said = json.dumps([sampled.faults[judges] for judges in (False, True)])
        found["faults"] = torch.tensor([*said.encode()], dtype=torch.uint8)
        for name, value in found.items():
            if value is not None:
                yield f"{prefix_of(ticket, number)}{name}", value


def tensors_of_groups(
    groups: Mapping[Ticket, Sequence[Sampled]],
) -> tuple[dict[str, Tensor], list[Ticket]]:
    """The tensors of groups by their names in a checkpoint, and the groups left out because the
    run ends without waiting for their scores. Of any shape [...]."""
    found, abandoned = {}, []
    for ticket, rows in groups.items():
        try:
            found |= dict(group_tensors(ticket, rows))
        except Abandoned:
            abandoned.append(ticket)
    return found, abandoned


def restore_group(
    ticket: Ticket,
    number: int,
    state: Mapping[str, Tensor],
    read: Callable[[Answers], Rollout],
    rewards: Sequence[str],
) -> Sampled:
    """The rows of a group from `group_tensors`. Of any shape [...]. `rewards`: all names in their
    order, which files do not keep: the first one is special, and ranks gather in order."""
    prefix = prefix_of(ticket, number)
    own = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    parts, judges = (
        {name: own[f"{room}/{name}"] for name in rewards if f"{room}/{name}" in own}
        for room in ("parts", "judges")
    )
    answers = Answers(**{name: own.get(name) for name in OF_ANSWERS})
    scores = {name: own.get(name) for name in OF_SCORES}
    said = bytes(own["faults"].tolist()) if "faults" in own else b"[{}, {}]"  # older checkpoints
    return Sampled(
        rollout=read(answers),
        answers=answers,
        versions=own["versions"],
        scores=partial(Scores, parts=parts, judges=judges, **scores),
        faults={bool(judges): Counter(x) for judges, x in enumerate(json.loads(said))},
    )


def tickets_in(state: Mapping[str, Tensor]) -> set[Ticket]:
    """The groups whose rows a checkpoint holds."""
    return {Ticket(*map(int, name.split("/")[1:3])) for name in state if name.startswith(ROWS)}


def prefix_of(ticket: Ticket, number: int) -> str:
    return f"{ROWS}{ticket.iteration}/{ticket.slot}/{number}/"
