"""A world of a plain function: all state is the moves so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.environments.protocol import About, Move, Said
from tandem.types import Prompt

Function = Callable[..., Said]  # (prompt, moves, *, numbers)


class OfMoves:
    """A world whose answers are a function of the prompt and of all moves so far.

    Called without moves, it returns the opening.
    """

    def __init__(self, function: Function) -> None:
        self.function = function

    def describe(self) -> About:
        return About(gives_states=True)

    def begin(self, prompt: Prompt, key: int) -> MovesSoFar:
        return MovesSoFar(self.function, prompt)


@dataclass(slots=True)
class MovesSoFar:
    """The prompt and the moves of one episode."""

    function: Function
    prompt: Prompt
    moves: list[Move] = field(default_factory=list)

    @property
    def opening(self) -> Said:
        return self.function(self.prompt, ())

    def act(self, move: Move) -> Said:
        self.moves.append(move)
        return self.function(self.prompt, tuple(self.moves))

    def close(self) -> None:
        self.moves.clear()
