"""Sorting of letters: `dbcaj>` asks for `abcdj`. A tiny model learns these tasks in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.records import Data, StreamMaker, prompt_ids
from tandem.data.splits import choose
from tandem.data.stream import PromptStream
from tandem.types import Prompt

ALPHABET = "abcdefghij"
LETTERS = str.maketrans("0123456789", ALPHABET)  # of the digits of a string's number
PERMUTED = 1 << 17  # sets up to this size are permuted as a whole; larger ones are sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Strings of `shortest` to `longest` letters, `count` of each length."""

    shortest: int  # letters of the shortest strings
    longest: int  # letters of the longest strings
    count: int  # strings of each length

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest <= 18 or self.count < 1:
            raise ValueError(
                f"shortest={self.shortest} longest={self.longest} count={self.count}: lengths must "
                "be 1 to 18 letters, the shortest first, and count at least 1"
            )

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.shortest, self.longest + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The strings of one length as numbers in base 10, split without overlap."""

    train: Tensor  # [count] int64, fewer if there are fewer strings
    eval: Tensor  # [held_out]
    test: Tensor  # [held_out]


@register_dataset(pairs_in="sort_pairs", judges="texts", test_from="set data.held_out above 0")
def sort_ladder(
    *,
    demonstrations: Lengths,
    prompts: Lengths,
    held_out: int = 32,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,
) -> Data:
    """Demonstrations show short strings; longer ones must be learned by RL. A source is a length:
    `length_02`.

    All lengths are equally likely in the demonstrations, so the few short strings repeat. Of each
    length from 1 up, `held_out` strings (at most a third of all) are kept for evaluation and as
    many for the test.
    """
    longest = max(demonstrations.longest, prompts.longest)
    count = max(demonstrations.count, prompts.count)
    splits = {
        length: split_strings(length, count=count, held_out=held_out, seed=seed)
        for length in range(1, longest + 1)
    }
    return Data(
        train=_chain(_make_questions(n, splits[n].train[: prompts.count]) for n in prompts),
        eval=_chain(_make_questions(n, splits[n].eval) for n in splits),
        test=_chain(_make_questions(n, splits[n].test) for n in splits),
        demonstrations=_chain(
            _make_demonstrations(n, splits[n].train, count=demonstrations.count)
            for n in demonstrations
        ),
        curriculum=curriculum,
    )


@register_dataset(pairs_in="sort_pairs", judges="texts", test_from="set data.held_out above 0")
def sort_letters(
    *,
    lengths: Lengths,
    corrupted: float = 0.6,
    held_out: int = 100,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the split of strings, and of the errors in demonstrations
) -> Data:
    """The smoke test: demonstrations show every length, but a `corrupted` share of them swaps two
    different letters of the answer. `held_out` strings of each length are kept for evaluation and
    as many for the test.
    """
    splits = {
        n: split_strings(n, count=lengths.count, held_out=held_out, seed=seed) for n in lengths
    }
    train = _chain(_make_questions(n, splits[n].train) for n in lengths)
    return Data(
        train=train,
        eval=_chain(_make_questions(n, splits[n].eval) for n in lengths),
        test=_chain(_make_questions(n, splits[n].test) for n in lengths),
        demonstrations=_corrupt(train, share=corrupted, seed=seed),
        curriculum=curriculum,
    )


@register_dataset(judges="texts", test_from="set data.held_out above 0")
def sort_pairs(
    *,
    lengths: Lengths,  # lengths of the strings, and how many of each
    pairs: int = 4000,
    corrupted: float = 0.6,
    held_out: int = 80,
    tries: int = 16,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the split of strings, the errors in demonstrations, and the pairs
) -> Data:
    """The prompts of `sort_letters`, `pairs` of them with two answers: the right one, and the first
    wrong one among `tries` samples of the model that the run starts from."""
    if pairs < 1:
        raise ValueError(f"data.pairs={pairs} must be at least 1")
    data = sort_letters(
        lengths=lengths, corrupted=corrupted, held_out=held_out, curriculum=curriculum, seed=seed
    )
    return replace(data, pairs=choose(data.train, max_size=pairs, seed=seed), tries=tries)


def split_strings(length: int, *, count: int, held_out: int, seed: int) -> Splits:
    """The splits of a length. Held-out strings come first in keyed order, whatever `count` is."""
    total = len(ALPHABET) ** length
    held_out = min(held_out, total // 3)
    wanted = min(total, 2 * held_out + count)
    order = _draw_distinct(rng.key(seed, "sort", length), total, wanted)
    return Splits(
        eval=order[:held_out], test=order[held_out : 2 * held_out], train=order[2 * held_out :]
    )


def _draw_distinct(key: int, total: int, wanted: int) -> Tensor:
    """`wanted` different numbers below `total`, in keyed order: [wanted] int64."""
    if total <= max(PERMUTED, 4 * wanted):
        return rng.permutation(key, total)[:wanted]
    drawn = rng.bits(key, (2 * wanted,)).remainder(total)  # few repeat: total > 4 * wanted
    return torch.tensor(list(dict.fromkeys(drawn.tolist()))[:wanted])


def _make_questions(length: int, numbers: Tensor) -> list[Prompt]:
    return _make_prompts(length, numbers, prompt_ids("sort", length, numbers))


def _make_demonstrations(length: int, numbers: Tensor, *, count: int) -> list[Prompt]:
    turn = torch.arange(count)
    numbers = numbers[turn % len(numbers)]
    # The id includes the copy's number, so that it is unique to a demonstration.
    return _make_prompts(length, numbers, prompt_ids("sort", "shown", length, numbers, turn))


def _make_prompts(length: int, numbers: Tensor, ids: list[int]) -> list[Prompt]:
    source = f"length_{length:02}"
    words = (f"{number:0{length}}".translate(LETTERS)[::-1] for number in numbers.tolist())
    return [
        Prompt(id=id, source=source, text=f"{word}>", answer="".join(sorted(word)))
        for word, id in zip(words, ids, strict=True)
    ]


def _corrupt(prompts: tuple[Prompt, ...], *, share: float, seed: int) -> tuple[Prompt, ...]:
    chance = rng.uniform(rng.key(seed, "corrupt"), (len(prompts), 2)).tolist()
    return tuple(
        _swap(prompt, which) if hit < share else prompt
        for prompt, (hit, which) in zip(prompts, chance, strict=True)
    )


def _swap(prompt: Prompt, which: float) -> Prompt:
    """The prompt with two different letters of its answer swapped; `which` in (0, 1) picks them."""
    letters = list(prompt.answer)
    places = combinations(range(len(letters)), 2)
    pairs = [(i, j) for i, j in places if letters[i] != letters[j]]
    if pairs:
        i, j = pairs[int(which * len(pairs))]
        letters[i], letters[j] = letters[j], letters[i]
    return replace(prompt, answer="".join(letters))


def _chain(parts: Iterable[list[Prompt]]) -> tuple[Prompt, ...]:
    return tuple(prompt for part in parts for prompt in part)
