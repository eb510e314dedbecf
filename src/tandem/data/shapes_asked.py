"""Questions about coloured shapes: `<image> colour ?`, for a tiny vision-language model.

The pictures are those of `data=shapes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.images import show
from tandem.data.records import TOGETHER, Data, StreamMaker, prompt_id, prompt_ids
from tandem.data.shapes import PAIRS, list_shown_pairs
from tandem.data.shapes_drawn import COLOURS, SHAPES, renderings
from tandem.data.stream import PromptStream
from tandem.types import IMAGE, Picture, Prompt

QUESTIONS = {"colour": "colour ?", "shape": "shape ?", "what": "what ?", "count": "how many {} ?"}
SIDE = 2  # pictures along a side of a mosaic
COUNTS = SIDE * SIDE + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The demonstrations: `count` questions with answers, some of them wrong."""

    count: int = 4096
    corrupted: float = 0.0  # chance of an answer to be replaced by any to its question

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.corrupted <= 1:
            raise ValueError(f"count must be at least 1, and corrupted between 0 and 1: {self}")


@register_dataset(judges="texts")
def shapes_asked(
    *,
    demonstrations: Answers,  # the questions with answers, for a warm start
    held_out: Sequence[str] = (),
    held_out_renderings: int = 4,
    mosaics: int = 256,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of held-out renderings, mosaics and the errors in demonstrations
) -> Data:
    """Questions for the colour of a picture, its shape, or both, and for the number of pictures of
    one colour in a mosaic of four.

    A source is a question: `colour`, `shape`, `what`, `count`, and `held_out_colour` and so on for
    colour-shape pairs that no training picture shows. `held_out_renderings` of every pair, and
    mosaics of those, are kept for evaluation.
    """
    if mosaics < 1:
        raise ValueError(f"data.mosaics={mosaics} must be at least 1")
    shown = _list_countable_pairs(held_out)
    pictures = renderings()
    kept = _choose_renderings(len(pictures["red circle"]), held_out_renderings, seed)
    train = [*_ask_all("train", pictures, shown, ~kept)]
    train += _ask_mosaics("train", pictures, shown, ~kept, mosaics, seed)
    later = [*_ask_all("eval", pictures, PAIRS, kept, shown=shown)]
    later += _ask_mosaics("eval", pictures, shown, kept, mosaics // 4, seed)
    return Data(
        train=tuple(train),
        eval=tuple(later),
        demonstrations=_demonstrate(train, demonstrations, seed),
        curriculum=curriculum,
    )


def _list_countable_pairs(held_out: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs that are not held out. Raises ValueError if a colour has none."""
    shown = list_shown_pairs(held_out)
    missing = [colour for colour in COLOURS if colour not in {colour for colour, _ in shown}]
    if missing:
        raise ValueError(
            f"data.held_out names all pairs of {', '.join(missing)}: a mosaic needs one of every "
            "colour"
        )
    return shown


def _choose_renderings(count: int, held_out: int, seed: int) -> Tensor:
    """The mask of the renderings of a pair that are kept for evaluation, [count] bool."""
    if not 0 < held_out < count:
        raise ValueError(
            f"data.held_out_renderings={held_out} must be at least 1 and below {count}"
        )
    kept = torch.zeros(count, dtype=torch.bool)
    kept[rng.permutation(rng.key(seed, "shapes_asked", "renderings"), count)[:held_out]] = True
    return kept


def _ask_all(
    split: str,
    pictures: dict[str, Tensor],
    pairs: Sequence[tuple[str, str]],
    which: Tensor,
    *,
    shown: Sequence[tuple[str, str]] = PAIRS,
) -> Iterator[Prompt]:
    """Three questions about every picture. `which`: [renderings] bool."""
    for colour, shape in pairs:
        never = (colour, shape) not in shown
        answers = {"colour": colour, "shape": shape, "what": f"{colour} {shape}"}
        for pixels in pictures[f"{colour} {shape}"][which]:
            picture = show(pixels)
            for task, answer in answers.items():
                yield _ask(split, task, picture, QUESTIONS[task], answer, never=never)


def _ask_mosaics(
    split: str,
    pictures: dict[str, Tensor],
    pairs: Sequence[tuple[str, str]],
    which: Tensor,
    count: int,
    seed: int,
) -> Iterator[Prompt]:
    """Mosaics of four pictures; 0 to 4 of them have the requested colour, equally often. One that
    is drawn again is left out.

    `which`: [renderings] bool.
    """
    made: set[int] = set()
    stock = torch.stack([pictures[" ".join(pair)][which] for pair in pairs])
    colours = torch.tensor([[*COLOURS].index(colour) for colour, _ in pairs])
    draws = rng.uniform(rng.key(seed, "mosaic", split), (count, 3, SIDE * SIDE))
    for turn, draw in enumerate(draws):
        asked, wanted = turn % len(COLOURS), turn // len(COLOURS) % COUNTS
        fits = draw[0].argsort().argsort() < wanted
        chosen = [
            _pick((colours == asked) == bool(fit), float(x))
            for fit, x in zip(fits, draw[1], strict=True)
        ]
        tiles = stock[chosen, (draw[2] * stock.shape[1]).long()]
        colour = [*COLOURS][asked]
        question = QUESTIONS["count"].format(colour)
        prompt = _ask(split, "count", show(mosaic(tiles)), question, str(wanted))
        if prompt.id not in made:
            made.add(prompt.id)
            yield prompt


def _pick(among: Tensor, x: float) -> int:
    """The index of one of the true entries, picked by a number in [0, 1). `among`: [N] bool."""
    places = among.nonzero()[:, 0]
    return int(places[int(x * len(places))])


def mosaic(tiles: Tensor) -> Tensor:
    """Pictures in a square, row by row: [4, H, W, 3] -> [2 H, 2 W, 3]."""
    rows = tiles.unflatten(0, (SIDE, SIDE))
    return torch.cat([torch.cat([*row], 1) for row in rows], 0)


def _ask(
    split: str, task: str, picture: Picture, question: str, answer: str, *, never: bool = False
) -> Prompt:
    return Prompt(
        id=prompt_id("shapes_asked", split, question, picture.name),
        source=f"held_out_{task}" if never else task,
        text=f"{IMAGE} {question}",
        images=(picture,),
        answer=answer,
        fields={TOGETHER: ("held_out" if never else "shown",)},
    )


def _demonstrate(asked: Sequence[Prompt], wanted: Answers, seed: int) -> tuple[Prompt, ...]:
    """The questions in turn, some with a random answer to them. Tasks come equally often."""
    tasks = {task: [p for p in asked if p.source == task] for task in QUESTIONS}
    draws = rng.uniform(rng.key(seed, "shapes_asked", "corrupt"), (wanted.count, 3)).tolist()
    turns = torch.arange(wanted.count)
    in_turn = zip(turns.tolist(), cycle(tasks), strict=False)
    shown = [tasks[task][turn // len(tasks) % len(tasks[task])] for turn, task in in_turn]
    ids = prompt_ids("shapes_asked", "shown", torch.tensor([p.id for p in shown]), turns)
    return tuple(
        replace(
            prompt,
            id=number,
            answer=any_answer(prompt.source, others) if hit < wanted.corrupted else prompt.answer,
            fields={},
        )
        for prompt, number, (hit, *others) in zip(shown, ids, draws, strict=True)
    )


def any_answer(task: str, draws: Sequence[float]) -> str:
    """A random answer to a question, maybe the right one. draws: two numbers in [0, 1)."""
    colour, shape = [*COLOURS], [*SHAPES]
    of_colour, of_shape = (
        words[int(x * len(words))] for words, x in zip((colour, shape), draws, strict=True)
    )
    return {
        "colour": of_colour,
        "shape": of_shape,
        "what": f"{of_colour} {of_shape}",
        "count": str(int(draws[0] * COUNTS)),
    }[task]
