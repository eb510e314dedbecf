"""A mixture of datasets: drawn by weight, each judged and reported separately."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from tandem.contracts import register_dataset, unwrap_partial
from tandem.data.mixed import MixedStream, Order
from tandem.data.records import (
    HELD_OUT_TOO,
    TOGETHER,
    Data,
    InvalidRow,
    StreamMaker,
    groups_to_report,
    prompt_ids,
    split_overlap,
)
from tandem.data.splits import choose
from tandem.types import Prompt

TRAINED = ("train", "demonstrations", "pairs")
HELD_OUT = ("eval", "test")
Splits = Mapping[str, tuple[Prompt, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One of the datasets of a mixture."""

    data: Data
    weight: float = 1.0  # chance per slot: this over the sum of all weights
    # Largest number of prompts of each split that is trained on; null: all.
    max_size: int | None = None
    rewards: tuple[str, ...] | None = None  # names of the rewards that score its samples; null: all
    eval: bool | int = True  # whether to evaluate it, or on how many prompts at most


@register_dataset(
    mixes=True, test_from="give test prompts to one of data.of whose eval is not false"
)
def mixture(
    *,
    of: Mapping[str, Dataset],  # the datasets, by name
    seed: int,  # seed of the prompts that `max_size` keeps of a dataset
) -> Data:
    """The datasets `of`, by name: every source becomes NAME/source, and ids of different datasets
    never collide.

    The dataset of each slot is drawn by weight, then a prompt by the dataset's own curriculum.
    Evaluation reports every dataset under its name, beside its sources and its own groups. Prompts
    that one dataset holds out are trained on by no other; a dataset that evaluates on its training
    prompts holds nothing out.
    """
    _check(of)
    splits = {name: _splits(name, one, seed=seed) for name, one in of.items()}
    splits, left_out = _split_held_out(of, splits)
    bad = [row for one in of.values() for row in one.data.quarantine]
    return Data(
        **{
            split: tuple(p for own in splits.values() for p in own[split])
            for split in (*TRAINED, *HELD_OUT)
        },
        tries=_tries(of),
        quarantine=(*bad, *left_out),
        curriculum=_stream(of, lambda data: data.curriculum),
        given=_stream(of, lambda data: data.given),
        asks_again=True,  # training prompts that another dataset holds out are already removed
    )


def _check(of: Mapping[str, Dataset]) -> None:
    if not of:
        raise ValueError("data.of names no dataset")
    for name, one in of.items():
        said = complaint(
            name,
            mixed=unwrap_partial(one.data.curriculum)[0] is MixedStream,
            weight=one.weight,
            max_size=one.max_size,
            rewards=one.rewards,
            eval=one.eval,
        )
        if said is not None:
            raise ValueError(said)


def complaint(
    name: str,
    *,
    mixed: bool,
    weight: float = 1.0,
    max_size: int | None = None,
    rewards: Sequence[str] | None = None,
    eval: bool | int = True,
) -> str | None:
    """The error in the entry of a dataset; None: no error. `mixed`: it is itself a mixture."""
    key = f"data.of.{name}"
    if not name or "/" in name or "." in name:
        return f"{key}: a dataset's name must not contain / or ."
    if mixed:
        return f"{key}.data is itself a mixture; list its datasets in data.of, each with its weight"
    if not 0 < weight < math.inf:
        return f"{key}.weight={weight}: must be above 0; remove a dataset that is never drawn"
    if max_size is not None and max_size < 1:
        return f"{key}.max_size={max_size}: must be at least 1, or null for all"
    if rewards is not None and (not rewards or len({*rewards}) < len(rewards)):
        return f"{key}.rewards={[*rewards]}: list at least one reward, each once, or null for all"
    if not isinstance(eval, bool) and eval < 1:
        return f"{key}.eval={eval}: must be at least 1, or false for none, or true for all"
    return None


def _splits(name: str, one: Dataset, *, seed: int) -> Splits:
    """The prompts of a dataset, renamed for the mixture."""
    asked = None if one.eval is True else int(one.eval)
    sizes = dict.fromkeys(TRAINED, one.max_size) | dict.fromkeys(HELD_OUT, asked)
    chosen = {
        split: () if size == 0 else choose(one.data.splits[split], max_size=size, seed=seed)
        for split, size in sizes.items()
    }
    return {split: tuple(_with_unique_ids(name, one.rewards, own)) for split, own in chosen.items()}


def _with_unique_ids(
    name: str, rewards: tuple[str, ...] | None, prompts: Sequence[Prompt]
) -> Iterator[Prompt]:
    """The prompts with ids, sources and headings that no other dataset has."""
    ids = prompt_ids("mixture", name, torch.tensor([prompt.id for prompt in prompts]))
    for prompt, id in zip(prompts, ids, strict=True):
        headings = (name, *(f"{name}/{one}" for one in groups_to_report(prompt)))
        yield replace(
            prompt,
            id=id,
            source=f"{name}/{prompt.source}",
            rewards=prompt.rewards if rewards is None else rewards,
            fields={**prompt.fields, TOGETHER: headings},
        )


def _split_held_out(
    of: Mapping[str, Dataset], splits: Mapping[str, Splits]
) -> tuple[dict[str, Splits], list[InvalidRow]]:
    """The splits of each dataset without the prompts that any holds out, and those left out."""
    strict = [name for name, one in of.items() if not one.data.asks_again]
    held_out = [p for name in strict for split in HELD_OUT for p in splits[name][split]]
    kept: dict[str, Splits] = {}
    known: dict[int, Prompt] = {}
    for name, own in splits.items():
        parted = {split: split_overlap(own[split], held_out) for split in TRAINED}
        kept[name] = {**own, **{split: tuple(left) for split, (left, _) in parted.items()}}
        known |= {prompt.id: prompt for _, gone in parted.values() for prompt in gone}
    return kept, [
        InvalidRow.of_prompt(prompt, HELD_OUT_TOO, within="data") for prompt in known.values()
    ]


def _tries(of: Mapping[str, Dataset]) -> int | None:
    """The number of tries to sample a wrong answer, equal in all datasets."""
    tries = {one.data.tries for one in of.values()}
    if len(tries) > 1:
        said = ", ".join(f"{name} {one.data.tries}" for name, one in of.items())
        raise ValueError(
            "data.of: all datasets must use the same number of tries for rejected answers, or "
            f"none; the tries are {said}"
        )
    return tries.pop()


def _stream(of: Mapping[str, Dataset], order: Callable[[Data], StreamMaker]) -> StreamMaker:
    orders = {name: Order(weight=one.weight, stream=order(one.data)) for name, one in of.items()}
    return partial(MixedStream, of=orders)
