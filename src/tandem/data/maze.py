"""Mazes in words: `e>` asks for the way to the cell e, and the environment reports the position.

Cells are letters, row by row. A maze is a tree of doors, so there is one way from cell to cell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.records import Data, StreamMaker, prompt_id
from tandem.data.stream import PromptStream
from tandem.types import Prompt

CELLS = "abcdefghijklmnop"
MOVES = {"+": (-1, 0), "-": (1, 0), "(": (0, -1), ")": (0, 1)}  # up, down, left, right
SAME = ("doors", "start", "goal")  # fields that are equal for equal mazes
Doors = Mapping[str, Mapping[str, str]]  # cell -> move -> next cell


@register_dataset(judges="texts", test_from="set data.held_out above 0")
def maze(
    *,
    side: int = 3,
    moves: int = 8,  # most moves of an episode and of a demonstrated walk
    mazes: int = 2000,
    held_out: int = 64,
    demonstrations: int = 4096,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the mazes and of the demonstrated walks
) -> Data:
    """`held_out` mazes for evaluation, as many for the test, and `mazes` for training, without the
    held-out ones. Demonstrations are random walks through open doors."""
    if not 2 <= side <= 4 or moves < 1:
        raise ValueError(f"data.side={side} must be 2, 3 or 4, and data.moves={moves} at least 1")
    made = [
        make_prompt(number, side=side, moves=moves, seed=seed)
        for number in range(2 * held_out + mazes)
    ]
    held = {as_text(prompt) for prompt in made[: 2 * held_out]}
    train = tuple(prompt for prompt in made[2 * held_out :] if as_text(prompt) not in held)
    if not train:
        raise ValueError(
            f"data.side={side} holds out all of data.mazes={mazes}; set "
            "data.side=3 or more, or a lower data.held_out"
        )
    return Data(
        train=train,
        eval=tuple(made[:held_out]),
        test=tuple(made[held_out : 2 * held_out]),
        demonstrations=tuple(
            show_walk(number, side=side, moves=moves, seed=seed) for number in range(demonstrations)
        ),
        curriculum=curriculum,
        asks_again=True,  # the prompt names only the goal
    )


def make_prompt(number: int, *, side: int, moves: int, seed: int, kind: str = "maze") -> Prompt:
    """A prompt for a maze, with different cells as start and goal."""
    key = rng.key(seed, kind, number)
    cells = CELLS[: side * side]
    start, goal = (cells[i] for i in rng.permutation(rng.key(key, "ends"), len(cells))[:2].tolist())
    return Prompt(
        id=prompt_id(kind, side, moves, seed, number),
        source=f"maze_{side}",
        text=f"{goal}>",
        fields={"doors": grow(side, key), "start": start, "goal": goal, "moves": moves},
    )


def as_text(prompt: Prompt) -> str:
    """The doors, the start and the goal: equal for equal mazes."""
    return json.dumps([prompt.fields[name] for name in SAME], sort_keys=True)


def grow(side: int, key: int) -> Doors:
    """A tree of doors over all cells: walls between cells that are not yet connected are opened in
    keyed order (Kruskal's algorithm)."""
    cells = CELLS[: side * side]
    part = {cell: cell for cell in cells}
    doors: dict[str, dict[str, str]] = {cell: {} for cell in cells}
    walls = [
        (cell, move, to) for cell in cells for move in "-)" if (to := beyond(cell, move, side))
    ]
    for place in rng.permutation(rng.key(key, "walls"), len(walls)).tolist():
        cell, move, to = walls[place]
        if part[cell] != part[to]:
            old, new = part[to], part[cell]
            part = {one: new if own == old else own for one, own in part.items()}
            doors[cell][move], doors[to]["+" if move == "-" else "("] = to, cell
    return doors


def beyond(cell: str, move: str, side: int) -> str | None:
    """The neighbouring cell in the direction of a move; None: the edge of the maze."""
    row, column = divmod(CELLS.index(cell), side)
    down, right = MOVES[move]
    row, column = row + down, column + right
    inside = 0 <= row < side and 0 <= column < side
    return CELLS[row * side + column] if inside else None


def describe_cell(cell: str, doors: Doors) -> str:
    """The position and the open moves: `e+)`."""
    return cell + "".join(move for move in MOVES if move in doors[cell])


def show_walk(number: int, *, side: int, moves: int, seed: int) -> Prompt:
    """A random walk through open doors, all equally likely, to the goal or the last move."""
    asked = make_prompt(number, side=side, moves=moves, seed=seed, kind="walk")
    doors, cell = asked.fields["doors"], asked.fields["start"]
    messages = [{"role": "user", "content": asked.text + describe_cell(cell, doors)}]
    for draw in rng.uniform(rng.key(seed, "steps", number), (moves,)).tolist():
        move = choose(sorted(doors[cell]), draw)
        messages.append({"role": "assistant", "content": move})
        cell = doors[cell][move]
        if cell == asked.fields["goal"]:
            break
        messages.append({"role": "user", "content": describe_cell(cell, doors)})
    if messages[-1]["role"] == "user":
        messages.pop()
    return Prompt(id=asked.id, source=asked.source, messages=tuple(messages))


def choose(options: Sequence[str], draw: float) -> str:
    """The option that a number in (0, 1) falls on."""
    return options[int(draw * len(options))]
