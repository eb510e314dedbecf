"""The records that travel from sampling to the optimiser; shapes are written and checked here only.

Axes: B samples, T steps of one sample (tokens, or denoising transitions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record")


IMAGE = "<image>"  # in the text of a prompt: where one of its images stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that a prompt shows. Its pixels are read when somebody looks at it."""

    name: str  # a hash of its content: two of one name are the same picture
    height: int  # in pixels
    width: int
    load: Callable[[], Tensor] = field(compare=False, repr=False)  # uint8 [H, W, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question to a policy. `text` is sent as it is; `messages` go through the chat template."""

    id: int  # stable between runs
    source: str  # the task it belongs to: evaluation and curriculum split by it
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    # What it shows, in the order of the marks `<image>` in its text or messages: one for each.
    images: tuple[Picture, ...] = ()
    answer: str | None = None
    # Of two answers the preferred one, and the other: texts, or pictures; both or neither.
    chosen: str | None = None
    rejected: str | None = None
    # [H, W, 3] uint8, the picture of a demonstration. Tensors have no one truth to compare by.
    media: Tensor | None = field(default=None, compare=False)
    chosen_media: Tensor | None = field(default=None, compare=False)
    rejected_media: Tensor | None = field(default=None, compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict)  # whatever else a reward wants to know
    rewards: tuple[str, ...] | None = None  # the names of those that judge it; None: all
    # Of the prompt of a row, what came of it in an environment: "turns", each a role and a content,
    # "end", "attempts", "counts", and "lost", which says why where the world failed.
    episode: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.id} of {self.source}: give either text or messages")

    @property
    def is_pair(self) -> bool:
        """Whether it brings two answers, texts or pictures."""
        return self.chosen is not None or self.chosen_media is not None

    def judged_by(self, reward: str) -> bool:
        """Whether the reward of that name is asked about its samples."""
        return self.rewards is None or reward in self.rewards

    @property
    def sides(self) -> tuple[Prompt, Prompt]:
        """A pair as two demonstrations, of what was chosen and of what was rejected."""
        return (
            replace(self, answer=self.chosen, media=self.chosen_media),
            replace(self, answer=self.rejected, media=self.rejected_media),
        )


# Segments of a sample that is written and then painted; `segment` holds the place in this list.
TEXT, PICTURE = SEGMENTS = ("text", "picture")
WRITTEN = "written"  # the field of a prompt that holds the text a picture was painted for

PER_SAMPLE = ("group", "length", "truncated", "key", "baseline", "taught")
PER_STEP = (
    "behaviour_logp",
    "version_gap",
    "entropy",
    "segment",
    "old_logp",
    "ref_logp",
    "old_kl_to_ref",
    "old_values",
    "teacher_logp",
    "sum_pi_squared",
    "turn",
    "feedback",
    "state",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Samples of a policy. Rows compared with one another share a `group`, unique over ranks."""

    sample: Any  # opaque: only the policy that made it opens it
    # What rewards and people see: texts, or pictures, uint8 [H, W, 3], or films, [F, H, W, 3].
    outputs: tuple[str, ...] | tuple[Tensor, ...]
    prompts: tuple[Prompt, ...]  # the prompt of every row
    mask: Tensor  # [B, T] bool, True where the policy chose the step
    group: Tensor  # [B] int64
    # [B] int64 steps in use, trained or not: those that the policy took, and what an environment
    # said in between; of a sample of two segments its tokens, of a text that was unmasked those up
    # to its end
    length: Tensor
    truncated: Tensor  # [B] bool: a limit of steps or turns ended the sample, and not an end of it
    key: Tensor | None = None  # [B] int64 of the draws that made the row; None: nobody drew
    baseline: Tensor | None = None  # [B] bool: compared with, never trained; None: there is none
    taught: Tensor | None = None  # [B] bool: rows that a teacher judges; None: all, if there is one
    # Of each row the prompt that its teacher reads in place of the policy's; None: the very same.
    reprompts: tuple[Prompt | None, ...] | None = None
    behaviour_logp: Tensor | None = None  # [B, T] float32 nats as sampled; None: offline, or an ODE
    version_gap: Tensor | None = None  # [B, T] iterations since the weights that took the step
    entropy: Tensor | None = None  # [B, T] nats, of the distribution that was sampled from
    # [B, T] int8 place in SEGMENTS, denoising steps first: padding is of the text. None: one kind
    segment: Tensor | None = None
    # Of episodes; None: there is no environment.
    turn: Tensor | None = None  # [B, T] int64 of the move that a step is of, from 1; 0: of none
    feedback: Tensor | None = None  # [B, T] what the environment gave, on the last step of a move
    # [B, T] int64 of the state that a move was begun in, 0: it has none; None: no state has a name
    state: Tensor | None = None
    # Filled by `complete` where somebody reads them.
    old_logp: Tensor | None = None  # [B, T] training forward, sampling weights
    ref_logp: Tensor | None = None  # [B, T] under the frozen reference
    # [B, T] log old - log reference, nats of a token or of a denoising step as a whole
    old_kl_to_ref: Tensor | None = None
    old_values: Tensor | None = None  # [B, T] the critic's, before the update
    teacher_logp: Tensor | None = None  # [B, T] under the teacher of the row's source
    # [B, T] sum over the vocabulary of p^2, of the training forward under the sampling weights
    sum_pi_squared: Tensor | None = None

    def __post_init__(self) -> None:
        batch, steps = self.mask.shape
        per_sample = {name: getattr(self, name) for name in PER_SAMPLE}
        per_step = {name: getattr(self, name) for name in PER_STEP}
        check_shapes("Rollout", per_sample, (batch,))
        check_shapes("Rollout", per_step, (batch, steps))

    @property
    def trained(self) -> Tensor:
        """[B, T] bool: the mask, without the rows that others are only compared with."""
        return mask_without(self.baseline, self.mask)

    @property
    def own_length(self) -> Tensor:
        """[B] int64 steps that the policy took, trained or not: none that an environment said."""
        return self.length if self.turn is None else (self.turn > 0).sum(1)


def is_film(output: str | Tensor) -> bool:
    """Whether an output is several pictures, one after another: uint8 [F, H, W, 3]."""
    return isinstance(output, Tensor) and output.ndim == 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The rewards of samples. A sample without a score leaves its group's statistics."""

    total: Tensor  # [B] float32 weighted sum of the parts; 0 where not scored
    parts: Mapping[str, Tensor]  # name -> [B] float32, NaN where that reward gave none
    scored: Tensor  # [B] bool
    # [B, T] how the total spreads over the trained steps; None: all of it on the last one
    per_step: Tensor | None = None

    def __post_init__(self) -> None:
        check_shapes("Scores", {"scored": self.scored, **self.parts}, tuple(self.total.shape))
        if self.per_step is not None:
            rows = (len(self.total), self.per_step.shape[1])
            check_shapes("Scores", {"per_step": self.per_step}, rows)

    def named(self, name: str) -> Tensor:
        """One reward of each sample, [B], NaN where it gave none.

        Raises ValueError for a name that is no reward.
        """
        if name not in self.parts:
            raise ValueError(f"no reward is called {name!r}; there are {', '.join(self.parts)}")
        return self.parts[name]

    def part(self, name: str | None, prompts: Sequence[Prompt]) -> Tensor:
        """How well samples did by one reward, [B]; None: the first one.

        For a prompt that it does not judge, the first of the rewards that do. So the prompts of all
        rows must be there, and those of other ranks are not. Raises ValueError for a name that is
        no reward.
        """
        if len(prompts) != len(self.total):
            raise ValueError(f"{len(prompts)} prompts of {len(self.total)} samples; give one each")
        said = next(iter(self.parts.values())) if name is None else self.named(name)
        name = next(iter(self.parts)) if name is None else name
        names = [name if prompt.judged_by(name) else prompt.rewards[0] for prompt in prompts]
        if {*names} <= {name}:
            return said
        return torch.stack([self.parts[own][row] for row, own in enumerate(names)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Gaussian steps x' ~ N(mean, std^2) of the dynamics; only the KLs carry a gradient."""

    std: Tensor  # [B, T] of every latent dimension
    sigma: Tensor  # [B, T] noise level before the step
    next_sigma: Tensor  # [B, T] and after it
    velocity_gain: Tensor  # [B, T] d mean / d velocity, below 0
    kl_to_old: Tensor | None = None  # [B, T] nats per latent dimension; None: not asked for
    kl_to_ref: Tensor | None = None  # [B, T] nats per latent dimension; None: not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Log-probabilities of steps that were taken, and what goes with them, with gradient; 0 outside
    the mask."""

    logp: Tensor  # [B, T] nats
    entropy: Tensor | None = None  # [B, T] nats; None: not asked for
    likeliest: Tensor | None = None  # [B, T] 1 where the step taken was the likeliest
    upper_logp: Tensor | None = None  # [B, T] nats of a bound from above; None: not asked for
    values: Tensor | None = None  # [B, T] the critic's; None: not asked for
    # [B, T] nats, from the teacher of the row over all tokens of a state; None: not asked for
    divergence: Tensor | None = None
    sum_pi_squared: Tensor | None = None  # [B, T] over the vocabulary; None: not asked for
    transition: Transition | None = None  # None: not asked for, or the steps are not Gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledBatch:
    """All that a coupled loss may see. Outside the mask every tensor is 0."""

    logp: Tensor  # [B, T] nats; carries the gradient
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64
    old_logp: Tensor | None = None  # [B, T]
    behaviour_logp: Tensor | None = None  # [B, T]
    ref_logp: Tensor | None = None  # [B, T]
    version_gap: Tensor | None = None  # [B, T] iterations since the weights that took the step
    entropy: Tensor | None = None  # [B, T] nats; carries the gradient
    likeliest: Tensor | None = None  # [B, T] 1 where the step taken was the likeliest, else 0
    upper_logp: Tensor | None = None  # [B, T] nats of a bound from above; carries the gradient
    values: Tensor | None = None  # [B, T]; carries the gradient
    old_values: Tensor | None = None  # [B, T]
    returns: Tensor | None = None  # [B, T] what the values should be
    teacher_logp: Tensor | None = None  # [B, T]
    divergence: Tensor | None = None  # [B, T] nats, from the teacher; carries the gradient
    key: Tensor | None = None  # [B] int64 of the draws that made the row
    baseline: Tensor | None = None  # [B] bool: rows that are only compared with
    taught: Tensor | None = None  # [B] bool: rows that a teacher judges; None: all of them
    transition: Transition | None = None  # of Gaussian steps
    segment: Tensor | None = None  # [B, T] int8 place in SEGMENTS; None: steps of one kind

    @property
    def evidence(self) -> Tensor:
        """The tensor that carries the gradient of the policy: [B, T]."""
        return self.logp

    @property
    def trained(self) -> Tensor:
        """[B, T] bool: the mask, without the rows that others are only compared with."""
        return mask_without(self.baseline, self.mask)


OF_SNAPSHOTS = {"old_error": "old", "fast_error": "fast"}  # errors of older weights, by their name


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledBatch:
    """All that a decoupled loss may see: velocity errors at T noise levels of every picture.

    An error is predicted - true velocity, flat over the D latent dimensions; the truth is that of
    the data, noise - x0, or a teacher's. Outside the mask every tensor is 0.
    """

    error: Tensor  # [B, T, D] of the live policy; carries the gradient
    sigma: Tensor  # [B, T] in [0, 1], 1 = noise
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64
    old_error: Tensor | None = None  # [B, T, D] of the older policy that algorithm.ema keeps
    ref_error: Tensor | None = None  # [B, T, D] of the frozen reference
    fast_error: Tensor | None = None  # [B, T, D] of an average that follows in a few updates
    # Of the step that the sampler took from there, where the states are those of its path:
    velocity_gain: Tensor | None = None  # [B, T] d mean / d velocity, below 0
    std: Tensor | None = None  # [B, T] of its noise; 0: it took none
    importance: Tensor | None = None  # [B, T] of the noise, where it is not all fresh

    @property
    def evidence(self) -> Tensor:
        """The tensor that carries the gradient of the policy: [B, T, D]."""
        return self.error

    def __post_init__(self) -> None:
        shape = tuple(self.mask.shape)
        errors = ("error", "ref_error", *OF_SNAPSHOTS)
        check_shapes("DecoupledBatch", {n: getattr(self, n) for n in errors}, self.error.shape)
        steps = ("sigma", "advantages", "velocity_gain", "std", "importance")
        check_shapes("DecoupledBatch", {n: getattr(self, n) for n in steps}, shape)
        check_shapes("DecoupledBatch", {"group": self.group}, shape[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAnswer:
    """What a network that learns beside the policy says of T queries of a row, [B, T, D]."""

    error: Tensor  # of its velocity; carries its gradient
    x0: Tensor  # the picture that it expects, without a gradient
    old_error: Tensor | None = None  # of older weights of its own, where its loss reads them
    fast_error: Tensor | None = None  # of an average that it leaves behind itself


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingBatch:
    """All that losses of distribution matching may see: pictures expected at T queries of a row.

    What is expected is flat over the D latent dimensions. Outside the mask every tensor is 0.
    """

    x0: Tensor  # [B, T, D] what the generator expects of a state of its path; carries its gradient
    sigma: Tensor  # [B, T] of the query, x0 with noise on it, in (0, 1]
    importance: Tensor  # [B, T] of the query's noise; 1 where it is all fresh
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64
    scored: Tensor  # [B] bool, False where advantages say nothing
    # Of the query, what is expected by:
    real_x0: Tensor | None = None  # [B, T, D] the frozen reference
    of_prompt: Tensor | None = None  # [B, T, D] what a prompt adds to the reference's
    ref_error: Tensor | None = None  # [B, T, D] the reference's velocity error there
    # By name, those of algorithm.networks.
    networks: Mapping[str, NetworkAnswer] = field(default_factory=dict)

    @property
    def evidence(self) -> Tensor:
        """The tensor that carries the gradient of the policy: [B, T, D]."""
        return self.x0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All that statistics of velocity errors see, of the rows of an update: one number a level."""

    value: Tensor  # [B, T] of the row by itself
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64


def taught_steps(record: Rollout | CoupledBatch) -> Tensor:
    """[B, T] bool: the trained steps that a teacher judges."""
    taught = record.taught
    return record.trained if taught is None else record.trained & taught[:, None]


def mask_without(rows: Tensor | None, mask: Tensor) -> Tensor:
    """[B, T] bool: the mask, but False on the chosen rows. rows: [B] bool; None: there are none."""
    return mask if rows is None else mask & ~rows[:, None]


def check_shapes(owner: str, tensors: Mapping[str, Tensor | None], want: tuple[int, ...]) -> None:
    """Raise ValueError for the first tensor whose shape is not [want, ...], naming its owner."""
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != want:
            raise ValueError(f"{owner}.{name} is {tuple(tensor.shape)}, but it should be {want}")


def take(record: Record, rows: Tensor) -> Record:
    """The chosen rows of every tensor and tuple of a record. rows: [N] int64 -> B becomes N."""
    return map_fields(
        record,
        lambda value: (
            value[rows.to(value.device)]
            if isinstance(value, Tensor)
            else tuple(value[row] for row in rows.tolist())
        ),
    )


def concat(records: Sequence[Record]) -> Record:
    """Stack records along B; shorter T are padded with 0 on the right."""
    if len(records) == 1:
        return records[0]
    first = records[0]
    return map_fields(first, lambda *values: _join(values), *records[1:])


def _join(values: tuple) -> Tensor | tuple:
    if isinstance(values[0], tuple):
        return sum(values, ())
    if values[0].ndim == 1:
        return torch.cat(values)
    width = max(value.shape[1] for value in values)
    return torch.cat([pad_steps(value, width) for value in values])


def pad_steps(value: Tensor, width: int) -> Tensor:
    """[B, T, ...] -> [B, width, ...], zeros on the right."""
    behind = (0, 0) * (value.ndim - 2)  # named from the last axis on
    return torch.nn.functional.pad(value, (*behind, 0, width - value.shape[1]))


def map_fields(record: Record, change: Callable, *others: Record) -> Record:
    """Rebuild a record (nested ones too) with `change` applied to each tensor and tuple in it.

    Raises TypeError for a field that is neither.
    """
    if record is None:
        return None
    if isinstance(record, Tensor | tuple):
        return change(record, *others)
    if isinstance(record, Mapping):
        return {
            key: map_fields(value, change, *(o[key] for o in others))
            for key, value in record.items()
        }
    if not is_dataclass(record):
        raise TypeError(f"a record holds tensors, tuples and records, not {type(record).__name__}")
    parts = {
        f.name: map_fields(getattr(record, f.name), change, *(getattr(o, f.name) for o in others))
        for f in fields(record)
    }
    return type(record)(**parts)
