"""Samples: prompts, rollouts of a policy, and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from tandem.types.record import Compared, Shaped

LISTED = ("messages", "images", "size", "rewards")  # fields of a prompt that are tuples
read_listed = attrgetter(*LISTED)

IMAGE = "<image>"  # in the text of a prompt: the position of an image


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of a prompt. Its pixels are read on access."""

    name: str  # a hash of its content: equal names are equal pictures
    height: int  # in pixels
    width: int
    # uint8 [H, W, 3]; of a film [F, H, W, 3]
    load: Callable[[], Tensor] = field(compare=False, repr=False)
    frames: int | None = None  # of a film; None: a picture
    file: str | None = None  # a hash of its file, independent of cropping

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its pixels."""
        still = (self.height, self.width, 3)
        return still if self.frames is None else (self.frames, *still)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question to a policy. `text` is sent as it is; `messages` go through the chat template.

    Lists become tuples, which can be hashed, and an id of numpy an int, as JSON needs it.
    Raises ValueError for both or neither of `text` and `messages`.
    """

    id: int  # stable between runs
    source: str  # its task, by which evaluation and curriculum split
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    # Its pictures, one for each mark `<image>` in its text or messages, in order.
    images: tuple[Picture, ...] = ()
    answer: str | None = None
    # The preferred and the other answer of a pair: texts or pictures; both or neither.
    chosen: str | None = None
    rejected: str | None = None
    media: Picture | None = None  # of a demonstration
    chosen_media: Picture | None = None
    rejected_media: Picture | None = None
    size: tuple[int, int] | None = None  # requested height and width; None: the model's
    fields: Mapping[str, Any] = field(default_factory=dict)  # further inputs of rewards
    rewards: tuple[str, ...] | None = None  # names of the rewards that score it; None: all
    # The episode of a row: "turns", each a role and a content, a move also its "turn",
    # "end", "attempts", "counts", and "lost", the reason if the environment failed.
    episode: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.id} of {self.source}: give either text or messages")
        if type(self.id) is not int and isinstance(self.id, Integral):
            object.__setattr__(self, "id", int(self.id))
        if list in map(type, read_listed(self)):
            for name, value in zip(LISTED, read_listed(self), strict=True):
                if type(value) is list:
                    object.__setattr__(self, name, tuple(value))

    @property
    def is_pair(self) -> bool:
        """Whether it has two answers, texts or pictures."""
        return self.chosen is not None or self.chosen_media is not None

    @property
    def shown_answer(self) -> str | None:
        """The last turn of the assistant, else the answer; None: the prompt has neither."""
        if self.messages is not None and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]["content"]
        return self.answer

    @property
    def plain_text(self) -> str | None:
        """The text without the marks of its pictures; None: the prompt is a chat."""
        return None if self.text is None else self.text.replace(IMAGE, "")

    def has_reward(self, reward: str) -> bool:
        """Whether the reward of that name scores its samples."""
        return self.rewards is None or reward in self.rewards

    @property
    def sides(self) -> tuple[Prompt, Prompt]:
        """A pair as two demonstrations, of the chosen and of the rejected answer."""
        return (
            replace(self, answer=self.chosen, media=self.chosen_media),
            replace(self, answer=self.rejected, media=self.rejected_media),
        )


Admission = tuple[list[Prompt], list[tuple[Prompt, str]]]  # accepted; refused, with reasons


def split_refused(prompts: Sequence[Prompt], reasons: Iterable[str | None]) -> Admission:
    """The prompts without a reason to refuse them, and the others with theirs."""
    judged = list(zip(prompts, reasons, strict=True))
    kept = [prompt for prompt, reason in judged if reason is None]
    return kept, [(prompt, reason) for prompt, reason in judged if reason is not None]


# Segments of a text-then-image sample; `segment` is the index in this list.
TEXT, PICTURE = SEGMENTS = ("text", "picture")
WRITTEN = "written"  # the field of a prompt with the text of a picture

PER_SAMPLE = ("group", "length", "truncated", "key", "baseline", "taught", "text")
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
    "sampled",
    "turn",
    "feedback",
    "state",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Shaped, Compared):
    """Samples of a policy. Rows compared with each other share a `group`, unique over ranks."""

    axes: ClassVar = {
        "mask": "BT",
        **dict.fromkeys(PER_SAMPLE, "B"),
        **dict.fromkeys(PER_STEP, "BT"),
    }

    sample: Any  # opaque: read only by the policy that made it
    # What rewards receive: texts, or images, uint8 [H, W, 3], or videos, [F, H, W, 3].
    outputs: tuple[str, ...] | tuple[Tensor, ...]
    prompts: tuple[Prompt, ...]  # the prompt of every row
    mask: Tensor  # [B, T] bool, True where the policy chose the step
    group: Tensor  # [B] int64
    # [B] int64 steps in use, trained or not: those of the policy and of observations in between;
    # for a sample of two segments the number of its tokens, for an unmasked text the positions up
    # to its end
    length: Tensor
    truncated: Tensor  # [B] bool: ended by a limit of steps or turns, and not by itself
    key: Tensor | None = None  # [B] int64 of the draws that made the row; None: no draws
    baseline: Tensor | None = None  # [B] bool: for comparison only, never trained; None: no row is
    taught: Tensor | None = None  # [B] bool: rows with a teacher; None: all, if there is one
    # For each row the prompt that its teacher reads; None: the same as the policy's.
    reprompts: tuple[Prompt | None, ...] | None = None
    behaviour_logp: Tensor | None = None  # [B, T] float32 nats as sampled; None: offline, or an ODE
    version_gap: Tensor | None = None  # [B, T] iterations since the weights that took the step
    entropy: Tensor | None = None  # [B, T] nats, of the sampling distribution
    # [B, T] int8 index in SEGMENTS, denoising steps first; padding counts as text. None: one kind
    segment: Tensor | None = None
    # [B] int64: rows with the same number are images of one text; None: each has its own text
    text: Tensor | None = None
    # For episodes; None: there is no environment.
    turn: Tensor | None = None  # [B, T] int64 number of the step's move, from 1; 0: no move
    feedback: Tensor | None = None  # [B, T] the environment's reward, on the last step of a move
    # [B, T] int64 of the state in which the move started, 0: unnamed; None: no state has a name
    state: Tensor | None = None
    # Filled by `complete` if a part reads them.
    old_logp: Tensor | None = None  # [B, T] training forward with the sampling weights
    ref_logp: Tensor | None = None  # [B, T] under the frozen reference
    # [B, T] log old - log reference, nats of a token or of a denoising step as a whole
    old_kl_to_ref: Tensor | None = None
    old_values: Tensor | None = None  # [B, T] the critic's, before the update
    teacher_logp: Tensor | None = None  # [B, T] under the teacher of the row's source
    # [B, T] sum over the vocabulary of p^2, training forward with the sampling weights
    sum_pi_squared: Tensor | None = None
    # [B, T] bool: the mask before truncation handling, for comparisons; None: it is the same
    sampled: Tensor | None = None

    @property
    def own_length(self) -> Tensor:
        """[B] int64 steps of the policy, trained or not, without messages of an environment."""
        return self.length if self.turn is None else (self.turn > 0).sum(1)


def is_film(output: str | Tensor) -> bool:
    """Whether an output is several pictures, one after another: uint8 [F, H, W, 3]."""
    return isinstance(output, Tensor) and output.ndim == 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores(Shaped):
    """The rewards of samples. A sample without a score is left out of its group's statistics."""

    axes: ClassVar = {"total": "B", "scored": "B", "parts": "B", "judges": "B", "per_step": "BT"}

    total: Tensor  # [B] float32 weighted sum of the parts; 0 where not scored
    parts: Mapping[str, Tensor]  # name -> [B] float32, NaN where that reward gave none
    scored: Tensor  # [B] bool
    # As `parts`, for rewards of weight 0, which are measured but not trained on.
    judges: Mapping[str, Tensor] = field(default_factory=dict)
    # [B, T] the total distributed over the trained steps; None: all of it on the last one
    per_step: Tensor | None = None

    @property
    def all_parts(self) -> dict[str, Tensor]:
        """All rewards by name, those of weight 0 last: [B] of each."""
        return {**self.parts, **self.judges}

    def reward(self, name: str) -> Tensor:
        """The values of one reward, whatever its weight: [B], NaN where it gave none.

        Raises ValueError for a name that is no reward.
        """
        if name not in self.all_parts:
            there = ",".join([*self.all_parts, name])
            raise ValueError(f"no reward is called {name!r}; add it: reward=[{there}]")
        return self.all_parts[name]

    def part(self, name: str | None, prompts: Sequence[Prompt]) -> Tensor:
        """The values of one reward, [B]; None: of the first trained one, if there is any.

        For a prompt without this reward, the first of its rewards is used, preferring trained ones.
        So the prompts of all rows are needed, which rows of other ranks lack.
        Raises ValueError for a name that is no reward.
        """
        if len(prompts) != len(self.total):
            raise ValueError(f"{len(prompts)} prompts of {len(self.total)} samples; give one each")
        name = next(iter(self.all_parts)) if name is None else name
        said = self.reward(name)
        names = [
            name if prompt.has_reward(name) else min(prompt.rewards, key=self.judges.__contains__)
            for prompt in prompts
        ]
        if {*names} <= {name}:
            return said
        return torch.stack([self.all_parts[own][row] for row, own in enumerate(names)])
