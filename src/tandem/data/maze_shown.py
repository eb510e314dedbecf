"""Mazes in pictures: `what ?` and a picture of the cells, the doors, the position and the goal.

A cell has 8 x 8 pixels, one token of `model=tiny_vlm`. Walls are dark lines along its edges; the
position is red, and the goal is green.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from tandem.contracts import register_dataset
from tandem.data.images import show
from tandem.data.maze import MOVES, SAME, Doors, make_prompt, maze, show_walk
from tandem.data.records import Data, StreamMaker, prompt_id
from tandem.data.stream import PromptStream
from tandem.types import IMAGE, Picture, Prompt

QUESTION = "what ?"
SPOKEN = dict(zip("1234", MOVES, strict=True))  # up, down, left, right, as the model writes them
WORDS = {move: word for word, move in SPOKEN.items()}
CELL = 8  # pixels along a side
FLOOR, WALL = 220, 0
HERE, GOAL = (220, 0, 0), (0, 180, 0)
REMEMBERED = 4096  # cached pictures
# Pixels of the walls of a cell, by the move that each wall blocks.
EDGES = {"+": (0, ...), "-": (-1, ...), "(": (..., 0, slice(None)), ")": (..., -1, slice(None))}


@register_dataset(judges="texts", test_from="set data.held_out above 0")
def maze_shown(
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
    words = maze(
        side=side, moves=moves, mazes=mazes, held_out=held_out, demonstrations=0, seed=seed
    )
    train, evaluated, test = (
        tuple(map(as_picture_prompt, prompts)) for prompts in (words.train, words.eval, words.test)
    )
    return Data(
        train=train,
        eval=evaluated,
        test=test,
        demonstrations=tuple(
            make_walk(number, side=side, moves=moves, seed=seed) for number in range(demonstrations)
        ),
        curriculum=curriculum,
        asks_again=True,  # all prompts have the same text
    )


def as_picture_prompt(prompt: Prompt) -> Prompt:
    """The prompt of a maze in words, turned into one of a maze in pictures."""
    return replace(prompt, id=prompt_id("shown", str(prompt.id)), text=QUESTION)


def make_walk(number: int, *, side: int, moves: int, seed: int) -> Prompt:
    """A random walk through open doors, with a picture before each move."""
    maze = make_prompt(number, side=side, moves=moves, seed=seed, kind="walk")
    told = show_walk(number, side=side, moves=moves, seed=seed)
    doors, cell, goal = (maze.fields[name] for name in SAME)
    messages, images = [], []
    for one in told.messages:
        if one["role"] != "assistant":
            continue
        begins = "" if messages else QUESTION
        messages.append({"role": "user", "content": f"{begins}{IMAGE}"})
        messages.append({"role": "assistant", "content": WORDS[one["content"]]})
        images.append(draw_maze(doors, cell, goal))
        cell = doors[cell][one["content"]]
    return Prompt(
        id=prompt_id("shown", str(told.id)),
        source=told.source,
        messages=tuple(messages),
        images=tuple(images),
    )


def draw_maze(doors: Doors, cell: str, goal: str) -> Picture:
    """The picture of a maze with the position and the goal."""
    return paint_maze(
        tuple((one, "".join(sorted(open_))) for one, open_ in doors.items()), cell, goal
    )


@lru_cache(REMEMBERED)
def paint_maze(doors: tuple[tuple[str, str], ...], cell: str, goal: str) -> Picture:
    """The picture of a maze. doors: the cells, row by row, each with its open moves."""
    side = int(len(doors) ** 0.5)
    pixels = torch.full((side * CELL, side * CELL, 3), FLOOR, dtype=torch.uint8)
    for place, (name, open_) in enumerate(doors):
        row, column = (CELL * i for i in divmod(place, side))
        own = pixels[row : row + CELL, column : column + CELL]
        for move, edge in EDGES.items():
            if move not in open_:
                own[edge] = WALL
        for marked, colour in ((goal, GOAL), (cell, HERE)):
            if name == marked:
                own[2:-2, 2:-2] = torch.tensor(colour, dtype=torch.uint8)
    return show(pixels)
