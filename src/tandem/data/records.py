"""Records of data functions: prompts in disjoint splits, and the rows that could not be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from tandem import rng
from tandem.data.stream import PromptStream
from tandem.types import Prompt

TOGETHER = "reported_with"  # the field that `reported_with` reads
StreamMaker = Callable[..., PromptStream]  # called as maker(prompts, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidRow:
    """A row that was left out, and why."""

    file: str
    line: int  # counted from 1
    reason: str
    text: str = ""  # the beginning of the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Prompts to train on, to look at while training, to report, to imitate, and to compare."""

    train: tuple[Prompt, ...]
    eval: tuple[Prompt, ...]
    test: tuple[Prompt, ...] = ()  # empty: the data names no third split
    demonstrations: tuple[Prompt, ...] = ()  # prompts whose `answer` is to be imitated
    pairs: tuple[Prompt, ...] = ()  # prompts with a `chosen` and a `rejected` answer
    # Rejected answers are sampled: in `pairs`, `eval` and `test` the `answer` is preferred to the
    # first wrong one in this many tries of the initial model. None: they are given.
    tries: int | None = None
    quarantine: tuple[InvalidRow, ...] = ()
    curriculum: StreamMaker = PromptStream  # how prompts are drawn from `train`
    given: StreamMaker = PromptStream  # how prompts are drawn from `demonstrations` or `pairs`
    # A small world: evaluation uses the training prompts too, with different noise.
    asks_again: bool = False

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("the data has no prompt to train on")
        for prompts in (self.train, self.eval, self.test, self.demonstrations, self.pairs):
            if len({prompt.id for prompt in prompts}) < len(prompts):
                raise ValueError(
                    f"prompt ids repeat among the {len(prompts)} prompts of a split "
                    f"(source {prompts[0].source}); an id names one prompt"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How a question of a data set is put to the policy."""

    chat: bool = True  # as a user's message, through the chat template; else as bare text
    instruction: str | None = None  # stands below the question, one empty line between

    def put(self, prompt: Prompt) -> Prompt:
        """The same question in this wording; a prompt that already is a chat stays as it is."""
        if prompt.text is None:
            return prompt
        parts = (prompt.text,) if self.instruction is None else (prompt.text, self.instruction)
        text = "\n\n".join(parts)
        if not self.chat:
            return replace(prompt, text=text)
        return replace(prompt, text=None, messages=({"role": "user", "content": text},))


AS_CHAT = Wording()


def split_overlap(
    prompts: Sequence[Prompt], held_out: Iterable[Prompt]
) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts that do not ask what a held-out one asks, and those that do."""
    asked = {_question(prompt) for prompt in held_out}
    known = [_question(prompt) in asked for prompt in prompts]
    return (
        [prompt for prompt, also in zip(prompts, known, strict=True) if not also],
        [prompt for prompt, also in zip(prompts, known, strict=True) if also],
    )


def _question(prompt: Prompt) -> str:
    said = prompt.text if prompt.messages is None else [*map(dict, prompt.messages)]
    return json.dumps([said, [picture.name for picture in prompt.images]])


def groups_to_report(prompt: Prompt) -> tuple[str, ...]:
    """The groups that evaluation reports a prompt under, beside its source. A row may name just
    one."""
    named = prompt.fields.get(TOGETHER, ())
    return (named,) if isinstance(named, str) else tuple(named)


def prompt_id(*names: int | str) -> int:
    """The id of the prompt with this content: 63 bits, the same in every run."""
    return rng.key(*names) >> 1


def prompt_ids(*names: int | str | Tensor) -> list[int]:
    """An id of 62 bits for each row of the tensors among the names, the same in every run."""
    return (rng.key(*names) >> 1 & (1 << 62) - 1).tolist()


def write_quarantine(folder: Path, rows: Iterable[InvalidRow]) -> Path | None:
    """One JSON line per bad row in `folder`/quarantine.jsonl. None: no bad row, no file."""
    lines = [json.dumps(asdict(row)) for row in rows]
    if not lines:
        return None
    path = Path(folder) / "quarantine.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The good rows of a file, and the bad ones."""

    prompts: tuple[Prompt, ...]
    content: tuple[int, ...]  # a hash of each good row: what a split by content goes by
    bad: tuple[InvalidRow, ...]
