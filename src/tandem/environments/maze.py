"""Worlds of mazes: the position and the open doors, in words or in pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.contracts import register_environment
from tandem.data.maze import Doors, describe_cell
from tandem.data.maze_shown import SPOKEN, draw_maze
from tandem.environments.protocol import About, Move, Said
from tandem.types import IMAGE, Prompt

FIELDS = ("doors", "start", "goal", "moves")
WALL = "*"  # marks the answer to a move that hit a wall


@register_environment("maze")
class Maze:
    """Reach the cell `goal` from the cell `start` in at most `moves` moves, all fields of the
    prompt: the reward is 1 at the goal, else 0.

    A move is one of + - ( ), for up, down, left and right; anything else leaves the position
    unchanged. The state is the current cell.
    """

    def describe(self) -> About:
        return About(gives_states=True)

    def begin(self, prompt: Prompt, key: int) -> Walk:
        missing = [name for name in FIELDS if name not in prompt.fields]
        if missing:
            raise ValueError(f"the prompt has no field {', '.join(missing)}; data=maze has them")
        doors, start, goal, moves = (prompt.fields[name] for name in FIELDS)
        return Walk(doors=doors, cell=start, goal=goal, left=moves)


@register_environment("maze_shown")
class MazeShown(Maze):
    """The maze in pictures, with the position in red and the goal in green. A move is 1, 2, 3 or 4,
    for up, down, left and right; walls are visible, but never reported in words."""

    def describe(self) -> About:
        return About(gives_states=True, shows=True)

    def begin(self, prompt: Prompt, key: int) -> Walk:
        walk = super().begin(prompt, key)
        return WalkShown(doors=walk.doors, cell=walk.cell, goal=walk.goal, left=walk.left)


@dataclass(slots=True, kw_only=True)
class Walk:
    """An episode in a maze: the current cell and the remaining moves."""

    doors: Doors
    cell: str
    goal: str
    left: int

    @property
    def opening(self) -> Said:
        return self.observe()

    def observe(self, *, bumped: bool = False) -> Said:
        """The answer for the current cell."""
        told = describe_cell(self.cell, self.doors)
        return Said.text(WALL + told if bumped else told, state=self.cell)

    def move(self, text: str) -> str:
        """The move that a text names."""
        return text

    def act(self, move: Move) -> Said:
        self.left -= 1
        behind = self.doors[self.cell].get(self.move(move.text))
        self.cell = behind or self.cell
        found = self.cell == self.goal
        return replace(
            self.observe(bumped=behind is None),
            reward=float(found),
            over=found or self.left == 0,
            counts={"bumped": float(behind is None)},
        )

    def close(self) -> None:
        pass


class WalkShown(Walk):
    """A walk that shows the maze."""

    def observe(self, *, bumped: bool = False) -> Said:
        picture = draw_maze(self.doors, self.cell, self.goal)
        return replace(Said.text(IMAGE, state=self.cell), images=(picture,))

    def move(self, text: str) -> str:
        return SPOKEN.get(text.strip(), "")
