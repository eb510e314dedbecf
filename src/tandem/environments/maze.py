"""The world of a maze: where one is, and which doors are open."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.contracts import register_environment
from tandem.data.maze import Doors, described
from tandem.environments.protocol import About, Move, Said
from tandem.types import Prompt

FIELDS = ("doors", "start", "goal", "moves")
WALL = "*"  # before what is said of a cell that was not left


@register_environment("maze")
class Maze:
    """Find the cell `goal` from the cell `start` in so many `moves`, fields of the prompt: 1 where
    it was found, else 0.

    A move is one of + - ( ), for up, down, left and right; anything else leaves one where one is. A
    state is the cell.
    """

    def describe(self) -> About:
        return About(gives_states=True)

    def begin(self, prompt: Prompt, key: int) -> Walk:
        missing = [name for name in FIELDS if name not in prompt.fields]
        if missing:
            raise ValueError(f"the prompt has no field {', '.join(missing)}; data=maze has them")
        doors, start, goal, moves = (prompt.fields[name] for name in FIELDS)
        return Walk(doors=doors, cell=start, goal=goal, left=moves)


@dataclass(slots=True, kw_only=True)
class Walk:
    """The cell that one is in, and the moves that are left."""

    doors: Doors
    cell: str
    goal: str
    left: int

    @property
    def opening(self) -> Said:
        return Said.text(described(self.cell, self.doors), state=self.cell)

    def act(self, move: Move) -> Said:
        self.left -= 1
        behind = self.doors[self.cell].get(move.text)
        self.cell = behind or self.cell
        seen = described(self.cell, self.doors)
        found = self.cell == self.goal
        return Said(
            messages=({"role": "user", "content": seen if behind else WALL + seen},),
            reward=float(found),
            over=found or self.left == 0,
            state=self.cell,
            counts={"bumped": float(behind is None)},
        )

    def close(self) -> None:
        pass
