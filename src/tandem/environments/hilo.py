"""The world of number guessing: a secret, and the answer to a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tandem.contracts import register_environment
from tandem.data.hilo import HIGHER, LOWER
from tandem.environments.protocol import About, Move, Said
from tandem.types import Prompt

GUESS = re.compile(r"\d\d")
FIELDS = ("secret", "width", "guesses")


@register_environment("hilo")
class HiLo:
    """Guess `secret`, a field of the prompt, in at most `guesses`: 1 if it is found, else 0.

    A guess is two digits; anything else ends the game. A state is the interval that is left.
    """

    def describe(self) -> About:
        return About(gives_states=True)

    def begin(self, prompt: Prompt, key: int) -> Game:
        missing = [name for name in FIELDS if name not in prompt.fields]
        if missing:
            raise ValueError(f"the prompt has no field {', '.join(missing)}; data=hilo has them")
        secret, width, guesses = (prompt.fields[name] for name in FIELDS)
        return Game(secret=secret, high=width - 1, left=guesses)


@dataclass(slots=True, kw_only=True)
class Game:
    """The numbers that are still possible, and the guesses that are left."""

    secret: int
    high: int
    left: int
    low: int = 0

    @property
    def opening(self) -> Said:
        return Said(state=self.state)

    @property
    def state(self) -> str:
        return f"{self.low}..{self.high}"

    def act(self, move: Move) -> Said:
        self.left -= 1
        if GUESS.fullmatch(move.text) is None:
            return Said(reward=0.0, over=True, counts={"unparsed": 1})
        guess = int(move.text)
        if guess == self.secret:
            return Said.text("=", reward=1.0, over=True)
        hint = HIGHER if guess < self.secret else LOWER
        if hint == HIGHER:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        return Said.text(hint, reward=0.0, over=self.left == 0, state=self.state)

    def close(self) -> None:
        pass
