"""Records of a chain: how texts and pictures are sampled, and rows that hold both.

The columns of a row are its denoising steps and then its tokens, so that what pads a row is text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import at_least
from tandem.policies.flow.admission import Split
from tandem.policies.flow.records import FlowSample, FlowSampling
from tandem.policies.language.records import Sampling, TokenSample
from tandem.types import (
    PICTURE,
    SEGMENTS,
    TEXT,
    WRITTEN,
    Evidence,
    Prompt,
    Rollout,
    map_fields,
    pad_steps,
    take,
)

FILLED = ("old_logp", "ref_logp", "old_kl_to_ref")  # by `complete`
OF_COLUMNS = ("behaviour_logp", "entropy", *FILLED)  # what either policy says of its own columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSampling:
    """How the texts are sampled, and how the pictures that are painted for them."""

    text: Sampling
    picture: FlowSampling
    pictures_per_text: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        if self.picture.shared_noise:
            raise ValueError(
                "rollout.picture.shared_noise=true: every picture has a text of its own to start "
                "from; set it to false"
            )
        for name in SEGMENTS:
            own = getattr(self, name)
            if own.staleness or own.engine is not None:
                raise ValueError(
                    f"rollout.{name}: a chain samples with its live weights, by itself; leave out "
                    "staleness and engine"
                )

    staleness = 0
    iterations_ahead = 0
    order: Literal["exact"] = "exact"
    engine = None

    @property
    def max_rows(self) -> int:
        """Of both together: either cuts its own passes further."""
        return max(self.text.max_rows, self.picture.max_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSample:
    """What either policy made; each opens its own."""

    text: TokenSample
    picture: FlowSample


def instructed(prompt: Prompt, instruction: str | None) -> Prompt:
    """The prompt behind an instruction, if there is one; a chat stays as it is."""
    if instruction is None or prompt.text is None:
        return prompt
    turns = {"system": instruction, "user": prompt.text}
    messages = tuple({"role": role, "content": said} for role, said in turns.items())
    return replace(prompt, text=None, messages=messages)


def asked_to_paint(prompt: Prompt, text: str) -> Prompt:
    """The question to the painter: the text, and what a flow reads of the fields of a prompt."""
    return replace(prompt, text=text, messages=None, answer=None)


def painted_from(written: Rollout, count: int) -> Rollout:
    """A row for each of so many pictures of every text, which is trained in the first of them."""
    if count == 1:
        return written
    number = torch.arange(len(written.mask) * count, device=written.mask.device)
    rows, again = take(written, number // count), number % count
    mask = rows.mask & (again == 0)[:, None]
    return replace(rows, mask=mask, text=rows.key, key=rng.key(rows.key, again))


def join(written: Rollout, painted: Rollout, frozen: Sequence[str]) -> Rollout:
    """One row for each text and the picture of it. `frozen`: the segments that nobody trains."""
    parts = {PICTURE: painted, TEXT: written}
    masks = {
        name: torch.zeros_like(part.mask) if name in frozen else part.mask
        for name, part in parts.items()
    }
    segment = {
        name: torch.full_like(part.mask, SEGMENTS.index(name), dtype=torch.int8)
        for name, part in parts.items()
    }
    known = written.behaviour_logp is not None and painted.behaviour_logp is not None
    rows = zip(written.prompts, written.outputs, strict=True)
    return Rollout(
        sample=ChainSample(text=written.sample, picture=painted.sample),
        outputs=painted.outputs,
        prompts=tuple(replace(p, fields={**p.fields, WRITTEN: text}) for p, text in rows),
        mask=beside(masks[PICTURE], masks[TEXT]),
        segment=beside(segment[PICTURE], segment[TEXT]),
        group=written.group,
        length=written.length,
        truncated=written.truncated,
        key=written.key,
        text=written.text,
        behaviour_logp=beside(painted.behaviour_logp, written.behaviour_logp) if known else None,
        entropy=None
        if written.entropy is None
        else beside(torch.zeros_like(painted.mask, dtype=torch.float32), written.entropy),
    )


def part(rollout: Rollout) -> Mapping[str, Rollout]:
    """The rows as either policy knows them, by segment."""
    steps = int(rollout.segment.sum(1).max())
    texts = tuple(prompt.fields[WRITTEN] for prompt in rollout.prompts)
    asked = zip(rollout.prompts, texts, strict=True)
    own = {
        TEXT: {"outputs": texts, "prompts": rollout.prompts, "length": rollout.length},
        PICTURE: {
            "outputs": rollout.outputs,
            "prompts": tuple(asked_to_paint(prompt, text) for prompt, text in asked),
            "length": torch.full_like(rollout.length, steps),
            "truncated": torch.zeros_like(rollout.truncated),
        },
    }
    columns = {TEXT: slice(steps, None), PICTURE: slice(0, steps)}
    found = {}
    for name, given in own.items():
        fields = ("mask", "version_gap", *OF_COLUMNS)
        known = {one: getattr(rollout, one) for one in fields}
        cut = {one: x[:, columns[name]] for one, x in known.items() if x is not None}
        missing = {one: None for one, x in known.items() if x is None}
        sample = getattr(rollout.sample, name)
        found[name] = replace(rollout, sample=sample, segment=None, **given, **cut, **missing)
    return found


def filled(
    rollout: Rollout, parts: Mapping[str, Rollout], needs: frozenset[str] = frozenset()
) -> Rollout:
    """With what is read of what either policy filled in of its own columns.

    One may find more on its way: of the columns of the other nobody would know it.
    """
    read = [name for name in FILLED if name in needs or getattr(rollout, name) is not None]
    known = {
        name: joined(lambda one, name=name: getattr(one, name), parts)
        for name in read
        if any(getattr(one, name) is not None for one in parts.values())
    }
    sample = ChainSample(text=parts[TEXT].sample, picture=parts[PICTURE].sample)
    return replace(rollout, sample=sample, **known)


def join_evidence(said: Mapping[str, Evidence], parts: Mapping[str, Rollout]) -> Evidence:
    """What both say of their columns; 0 where a column is none of theirs, or nobody was asked."""
    asked = {name: said.get(name) for name in SEGMENTS}

    def field(name: str) -> Tensor | None:
        known = {s: None if one is None else getattr(one, name) for s, one in asked.items()}
        if all(value is None for value in known.values()):
            return None
        masks = {s: parts[s].mask for s in SEGMENTS}
        return beside(*(_or_zeros(known[s], masks[s]) for s in (PICTURE, TEXT)))

    steps = None if asked[PICTURE] is None else asked[PICTURE].transition
    tokens = parts[TEXT].mask.shape[1]
    return Evidence(
        logp=field("logp"),
        entropy=field("entropy"),
        likeliest=field("likeliest"),
        # A token has no mean and no noise: 0.
        transition=map_fields(steps, lambda x: pad_steps(x, x.shape[1] + tokens)),
    )


def joined(read: Callable[[Rollout], Tensor | None], parts: Mapping[str, Rollout]) -> Tensor:
    """What `read` finds of the columns of both; 0 where it finds nothing."""
    return beside(*(_or_zeros(read(parts[name]), parts[name].mask) for name in (PICTURE, TEXT)))


def beside(steps: Tensor, tokens: Tensor) -> Tensor:
    """[B, K] and [B, T] -> [B, K + T]."""
    return torch.cat([steps, tokens.to(steps.device)], 1)


def _or_zeros(value: Tensor | None, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=torch.float32) if value is None else value


def as_given(prompts: Sequence[Prompt], judged: Split) -> Split:
    """A judgement of prompts as a language model is sent them, of the prompts as they are."""
    own = {prompt.id: prompt for prompt in prompts}
    kept, dropped = judged
    return [own[one.id] for one in kept], [(own[one.id], why) for one, why in dropped]


def named(owned: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What segments own by names of their own, as SEGMENT.name. Of any shape [...]."""
    return {f"{segment}.{key}": x for segment, own in owned.items() for key, x in own.items()}
