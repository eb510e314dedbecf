"""Records of a chain: sampling options, and rows that hold a text and its picture.

The columns of a row are its denoising steps, then its tokens, so a row is padded in its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Literal

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import at_least
from tandem.policies.flow.records import FlowSample, FlowSampling
from tandem.policies.language.records import Sampling, TokenSample
from tandem.types import (
    PICTURE,
    SEGMENTS,
    TEXT,
    WRITTEN,
    Admission,
    Evidence,
    Prompt,
    Rollout,
    map_fields,
    pad_steps,
    split_refused,
    take,
)

FILLED = ("old_logp", "ref_logp", "old_kl_to_ref")  # by `complete`
OF_COLUMNS = ("behaviour_logp", "entropy", *FILLED)  # fields with one value per column


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSampling:
    """Sampling options of texts, and of the pictures that are painted for them."""

    text: Sampling  # sampling of the texts
    picture: FlowSampling  # sampling of the images
    # Images of each text; group_size counts images.
    pictures_per_text: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        if self.picture.shared_noise:
            raise ValueError(
                "rollout.picture.shared_noise=true: pictures of a chain have different texts, so "
                "they cannot share noise; set it to false"
            )
        for name, own in self.segments.items():
            if own.staleness or own.engine is not None:
                raise ValueError(
                    f"rollout.{name}: a chain samples with its live weights and without an engine; "
                    "leave out staleness and engine"
                )

    staleness = 0
    iterations_ahead = 0
    order: Literal["exact"] = "exact"  # an iteration trains on its own rows
    engine = None

    @property
    def segments(self) -> dict[str, Sampling | FlowSampling]:
        """The sampling options of each segment."""
        return {TEXT: self.text, PICTURE: self.picture}

    @property
    def max_rows(self) -> int:
        """The larger limit of the two; each policy splits its passes further."""
        return max(self.text.max_rows, self.picture.max_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSample:
    """The samples of both policies; each reads its own."""

    text: TokenSample
    picture: FlowSample


def with_instruction(prompt: Prompt, instruction: str | None) -> Prompt:
    """The prompt with an instruction as system message, if there is one; a chat is unchanged."""
    if instruction is None or prompt.text is None:
        return prompt
    turns = {"system": instruction, "user": prompt.text}
    messages = tuple({"role": role, "content": said} for role, said in turns.items())
    return replace(prompt, text=None, messages=messages)


def picture_prompt(prompt: Prompt, text: str) -> Prompt:
    """The prompt of the flow model: the text, and the other fields of the original prompt."""
    return replace(prompt, text=text, messages=None, answer=None)


def picture_rows(written: Rollout, count: int) -> Rollout:
    """`count` rows for every text, one per picture; the text is trained in the first of them."""
    if count == 1:
        return written
    number = torch.arange(len(written.mask) * count, device=written.mask.device)
    rows, again = take(written, number // count), number % count
    mask = rows.mask & (again == 0)[:, None]
    return replace(rows, mask=mask, text=rows.key, key=rng.key(rows.key, again))


def join(written: Rollout, painted: Rollout, frozen: Sequence[str]) -> Rollout:
    """One row per text and picture. `frozen`: the segments that are not trained."""
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
        mask=concat_columns(masks[PICTURE], masks[TEXT]),
        segment=concat_columns(segment[PICTURE], segment[TEXT]),
        group=written.group,
        length=written.length,
        truncated=written.truncated,
        key=written.key,
        text=written.text,
        behaviour_logp=concat_columns(painted.behaviour_logp, written.behaviour_logp)
        if known
        else None,
        entropy=None
        if written.entropy is None
        else concat_columns(torch.zeros_like(painted.mask, dtype=torch.float32), written.entropy),
    )


def part(rollout: Rollout) -> Mapping[str, Rollout]:
    """The rows split by segment, in the form that each policy reads."""
    steps = int(rollout.segment.sum(1).max())
    texts = tuple(prompt.fields[WRITTEN] for prompt in rollout.prompts)
    asked = zip(rollout.prompts, texts, strict=True)
    own = {
        TEXT: {"outputs": texts, "prompts": rollout.prompts, "length": rollout.length},
        PICTURE: {
            "outputs": rollout.outputs,
            "prompts": tuple(picture_prompt(prompt, text) for prompt, text in asked),
            "length": torch.full_like(rollout.length, steps),
            "truncated": torch.zeros_like(rollout.truncated),
        },
    }
    columns = {TEXT: slice(steps, None), PICTURE: slice(0, steps)}
    found = {}
    for name, given in own.items():
        fields = ("mask", "sampled", "version_gap", *OF_COLUMNS)
        known = {one: getattr(rollout, one) for one in fields}
        cut = {one: x[:, columns[name]] for one, x in known.items() if x is not None}
        missing = {one: None for one, x in known.items() if x is None}
        sample = getattr(rollout.sample, name)
        found[name] = replace(rollout, sample=sample, segment=None, **given, **cut, **missing)
    return found


def merge_fields(
    rollout: Rollout, parts: Mapping[str, Rollout], needs: frozenset[str] = frozenset()
) -> Rollout:
    """The rollout with the needed fields that each policy filled in for its own columns.

    Other fields are dropped: the other policy may not have computed them.
    """
    read = [name for name in FILLED if name in needs or getattr(rollout, name) is not None]
    known = {
        name: join_columns(attrgetter(name), parts)
        for name in read
        if any(getattr(one, name) is not None for one in parts.values())
    }
    sample = ChainSample(text=parts[TEXT].sample, picture=parts[PICTURE].sample)
    return replace(rollout, sample=sample, **known)


def join_evidence(said: Mapping[str, Evidence], parts: Mapping[str, Rollout]) -> Evidence:
    """Evidence of both; 0 in columns of a policy that was not evaluated."""
    asked = {name: said.get(name) for name in SEGMENTS}

    def field(name: str) -> Tensor | None:
        known = {s: None if one is None else getattr(one, name) for s, one in asked.items()}
        if all(value is None for value in known.values()):
            return None
        masks = {s: parts[s].mask for s in SEGMENTS}
        return concat_columns(*(_or_zeros(known[s], masks[s]) for s in (PICTURE, TEXT)))

    steps = None if asked[PICTURE] is None else asked[PICTURE].transition
    tokens = parts[TEXT].mask.shape[1]
    return Evidence(
        logp=field("logp"),
        entropy=field("entropy"),
        likeliest=field("likeliest"),
        # Tokens have no mean and no noise: 0.
        transition=map_fields(steps, lambda x: pad_steps(x, x.shape[1] + tokens)),
    )


def join_columns(read: Callable[[Rollout], Tensor | None], parts: Mapping[str, Rollout]) -> Tensor:
    """`read` applied to both and joined; 0 where it returns None."""
    return concat_columns(
        *(_or_zeros(read(parts[name]), parts[name].mask) for name in (PICTURE, TEXT))
    )


def concat_columns(steps: Tensor, tokens: Tensor) -> Tensor:
    """[B, K] and [B, T] -> [B, K + T]."""
    return torch.cat([steps, tokens.to(steps.device)], 1)


def _or_zeros(value: Tensor | None, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=torch.float32) if value is None else value


def with_original_prompts(prompts: Sequence[Prompt], judged: Admission) -> Admission:
    """An admission of instructed prompts, in terms of the original prompts."""
    own = {prompt.id: prompt for prompt in prompts}
    kept, dropped = judged
    return [own[one.id] for one in kept], [(own[one.id], why) for one, why in dropped]


def drop_refused(
    kept: Sequence[Prompt],
    dropped: Sequence[tuple[Prompt, str]],
    refused: Sequence[tuple[Prompt, str]],
) -> Admission:
    """An admission without the prompts whose pictures were refused."""
    reasons = {prompt.id: why for prompt, why in refused}
    painted, left = split_refused(kept, [reasons.get(one.id) for one in kept])
    return painted, [*dropped, *left]


def flatten_segments(owned: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of all segments in one mapping, as SEGMENT.name. Of any shape [...]."""
    return {f"{segment}.{key}": x for segment, own in owned.items() for key, x in own.items()}
