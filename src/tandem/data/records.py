"""Records of data functions: prompts in disjoint splits, and the rows that could not be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

from torch import Tensor

from tandem import rng
from tandem.data.stream import PromptStream
from tandem.types import Prompt

SHOWN = 200  # characters of a prompt that was left out
HELD_OUT_TOO = "is held out too"  # why a prompt that evaluation asks as well is not trained on
NOT_SHOWN = (
    "a message has `tool_calls`, which are not imitated; write them into its content as the model "
    "writes calls"
)
TOGETHER = "reported_with"  # the field that `reported_with` reads
StreamMaker = Callable[..., PromptStream]  # called as maker(prompts, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidRow:
    """A row that was left out, and why."""

    file: str
    line: int | None = None  # counted from 1; None: of a prompt, which has an `id`
    id: int | None = None
    reason: str
    text: str = ""  # the beginning of the row

    @classmethod
    def of_prompt(cls, prompt: Prompt, reason: str, *, within: str) -> InvalidRow:
        """A prompt that was read and cannot be used. Its file is no longer known: `within` names
        what it belongs to, and its text finds it."""
        messages = prompt.messages or ({"content": prompt.text},)
        text = " ".join(str(message["content"]) for message in messages)
        file = f"{within} of {prompt.source}"
        return cls(file=file, id=prompt.id, reason=reason, text=text[:SHOWN].strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Prompts for training, evaluation, the final test, imitation and comparison."""

    train: tuple[Prompt, ...]
    eval: tuple[Prompt, ...]
    test: tuple[Prompt, ...] = ()  # empty: the data names no third split
    demonstrations: tuple[Prompt, ...] = ()  # prompts with an `answer` to imitate
    pairs: tuple[Prompt, ...] = ()  # prompts with a `chosen` and a `rejected` answer
    # Rejected answers are sampled: in `pairs`, `eval` and `test` the `answer` is preferred to the
    # first wrong one in this many tries of the initial model. None: they are given.
    tries: int | None = None
    quarantine: tuple[InvalidRow, ...] = ()
    curriculum: StreamMaker = PromptStream  # how prompts are drawn from `train`
    given: StreamMaker = PromptStream  # how prompts are drawn from `demonstrations` or `pairs`
    # Evaluation may ask what training asks: in a small world, or where fields tell prompts apart.
    asks_again: bool = False

    @property
    def splits(self) -> dict[str, tuple[Prompt, ...]]:
        """The prompts of each split by its name."""
        return {
            "train": self.train,
            "eval": self.eval,
            "test": self.test,
            "demonstrations": self.demonstrations,
            "pairs": self.pairs,
        }

    def __post_init__(self) -> None:
        for split, prompts in self.splits.items():
            refuse_unlike(split, prompts)
        for name, made in (("curriculum", self.curriculum), ("given", self.given)):
            if not callable(made):
                raise ValueError(f"Data.{name} makes a PromptStream of prompts; give its class")
        if not self.train:
            raise ValueError("the data has no prompt to train on")
        for prompts in self.splits.values():
            if len({prompt.id for prompt in prompts}) < len(prompts):
                raise ValueError(
                    f"prompt ids repeat among the {len(prompts)} prompts of a split "
                    f"(source {prompts[0].source}); ids must be unique"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The format of a question for the policy."""

    chat: bool = True  # true: a user's message, through the chat template; false: bare text
    # Text added below a question, after an empty line; null: none, which questions that are chats
    # need.
    instruction: str | None = None

    def put(self, prompt: Prompt) -> Prompt:
        """The same question in this wording; a prompt that already is a chat stays as it is.
        Raises ValueError for a chat that would stay without the instruction, or should be text."""
        if prompt.text is None:
            self._refuse_chat(prompt.source)
            return prompt
        parts = (prompt.text,) if self.instruction is None else (prompt.text, self.instruction)
        text = "\n\n".join(parts)
        if not self.chat:
            return replace(prompt, text=text)
        return replace(prompt, text=None, messages=({"role": "user", "content": text},))

    def _refuse_chat(self, source: str) -> None:
        said = f"does not apply to questions that are chats, as those of {source}"
        if self.instruction is not None:
            raise ValueError(
                f"data.wording.instruction={self.instruction!r} {said}; "
                "set data.wording.instruction=null"
            )
        if not self.chat:
            raise ValueError(f"data.wording.chat=false {said}; set data.wording.chat=true")


AS_CHAT = Wording()


def split_overlap(
    prompts: Sequence[Prompt], held_out: Iterable[Prompt]
) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts that do not ask what a held-out one asks, and those that do."""
    asked = {question(prompt) for prompt in held_out}
    known = [question(prompt) in asked for prompt in prompts]
    return (
        [prompt for prompt, also in zip(prompts, known, strict=True) if not also],
        [prompt for prompt, also in zip(prompts, known, strict=True) if also],
    )


def question(prompt: Prompt) -> Hashable:
    """What a prompt asks, to compare with others: its text or messages, and its pictures."""
    # Texts as they are: JSON of tens of thousands would dominate the time.
    pictures = tuple(picture.name for picture in prompt.images)
    if prompt.messages is None:
        return prompt.text, pictures
    said = (json.dumps(dict(message), sort_keys=True) for message in prompt.messages)
    return tuple(said), pictures


def refuse_unlike(split: str, prompts: object) -> None:
    """Raise ValueError unless a split is a tuple or list of prompts with valid field types.
    Iterators, which may be endless, are not read."""
    if not isinstance(prompts, tuple | list):
        raise ValueError(f"Data.{split} is a {type(prompts).__name__}; give a tuple of Prompts")
    if odd := [one for one in prompts if not isinstance(one, Prompt)][:1]:
        raise ValueError(f"Data.{split} holds a {type(odd[0]).__name__}; give a tuple of Prompts")
    read = attrgetter(*_kinds())
    alike: set[tuple[type, ...]] = set()  # thousands of prompts share a few combinations of types
    for prompt in prompts:
        if (own := tuple(map(type, read(prompt)))) not in alike:
            _refuse_kinds(f"a prompt of Data.{split} (id {prompt.id})", own)
            alike.add(own)
        if not 0 <= prompt.id < 1 << 63:
            raise ValueError(f"Data.{split}: the id {prompt.id} of a prompt is not from 0 to 2**63")
        if prompt.rewards == ():
            raise ValueError(
                f"Data.{split}: rewards=() of a prompt names none; None is all of them"
            )
        if prompt.messages is not None:
            which = f"a prompt of Data.{split} (id {prompt.id})"
            _refuse_messages(which, prompt.messages, are_shown=split == "demonstrations")
        groups_to_report(prompt)


def _refuse_messages(which: str, messages: Sequence[object], *, are_shown: bool) -> None:
    """are_shown: a last move is imitated, which is read from its content alone."""
    match messages:
        case []:
            raise ValueError(f"{which}: its messages are empty; give at least one")
        case [*_, {"role": "assistant", "tool_calls": [_, *_]}] if are_shown:
            raise ValueError(f"{which}: {NOT_SHOWN}")
    for message in messages:
        match message:
            case {"role": str(), "content": str()}:
                continue
        raise ValueError(f"{which}: a message is {message!r:.60}; give texts as role and content")


def _refuse_kinds(which: str, own: tuple[type, ...]) -> None:
    for (name, wanted), kind in zip(_kinds().items(), own, strict=True):
        if not issubclass(kind, wanted):
            given = wanted[0].__name__ + " or None" * (NoneType in wanted)
            raise ValueError(f"{which}: its {name} is of {kind.__name__}; give {given}")


@cache
def _kinds() -> dict[str, tuple[type, ...]]:
    """The fields of a prompt, and what each may be, as annotated."""
    kinds = {}
    for name, hint in get_type_hints(Prompt).items():
        plain = [get_origin(x) or x for x in get_args(hint) if get_origin(hint) is UnionType]
        kinds[name] = tuple(plain or [get_origin(hint) or hint])
    return kinds


def groups_to_report(prompt: Prompt) -> tuple[str, ...]:
    """The groups that evaluation reports a prompt under, beside its source. A row may name just
    one, or none by null. Raises ValueError for what names none."""
    named = prompt.fields.get(TOGETHER)
    if named is None:
        return ()
    groups = [named] if isinstance(named, str) else named
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, str) and group.strip() for group in groups
    ):
        raise ValueError(f"`{TOGETHER}` must be a text or a list of texts, not {named!r}")
    return tuple(groups)


def prompt_id(*names: int | str) -> int:
    """The id of the prompt with this content: 63 bits, the same in every run."""
    return rng.key(*names) >> 1


def prompt_ids(*names: int | str | Tensor) -> list[int]:
    """An id of 62 bits for each row of the tensors among the names, the same in every run."""
    return (rng.key(*names) >> 1 & (1 << 62) - 1).tolist()


def write_quarantine(folder: Path, rows: Iterable[InvalidRow]) -> Path | None:
    """One JSON line per bad row in `folder`/quarantine.jsonl. None: no bad row, no file."""
    known = [{name: x for name, x in asdict(row).items() if x is not None} for row in rows]
    lines = [json.dumps(row) for row in known]
    path = Path(folder) / "quarantine.jsonl"
    if not lines:
        path.unlink(missing_ok=True)
        return None
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The good rows of a file, and the bad ones."""

    prompts: tuple[Prompt, ...]
    content: tuple[int, ...]  # a hash of each good row, used for splits
    bad: tuple[InvalidRow, ...]
