"""A gymnasium environment as a world: observations become text, moves name actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.contracts import declare, need_extra, register_environment
from tandem.environments.protocol import About, Move, Said
from tandem.types import Prompt

if TYPE_CHECKING:
    import gymnasium

RESET = "reset"  # the field of a prompt with options of its own
SEEDS = 2**31  # what every generator takes

# Codes that colour text in a terminal: 3 and a digit for a character, 4 and a digit for its ground.
NAMES = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
COLOURS = {f"{of}{digit}": name for of in "34" for digit, name in enumerate(NAMES)}
CODE = re.compile(r"\x1b\[([0-9;]*)m")
COLOURED = re.compile(r"((?:\x1b\[[0-9;]*m)+)(.)(?:\x1b\[0m)+")
LAST_MOVE = re.compile(r"\A\s*\(\w+\)[ \t]*\n|\n[ \t]*\(\w+\)\s*\Z")  # the first or last line

# An observation and the environment -> words. A type imported for type checkers only, such as
# gymnasium.Env, would leave a configured value unchecked.
Tell = Callable[[Any, Any], str]


@register_environment("gymnasium")
@declare(judges_itself=True)
class Gymnasium:
    """An environment of `gymnasium.make(id, **options)` with discrete actions.

    `tell` turns an observation and the environment into text. `actions` are the words of actions in
    order, by default their numbers; the last one in a move is taken. Equal texts are equal states.
    The options of `reset` are in the prompt's field "reset"; all randomness follows from the keys
    of the episode and of the move.
    """

    def __init__(
        self,
        *,
        id: str,
        tell: Tell,
        actions: Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        if ":" in id:
            raise ValueError(f"id={id} would import a module; import it in a plugin instead")
        if find_spec("gymnasium") is None:
            raise ValueError(need_extra(f"id={id}", "gymnasium"))
        self.id, self.tell, self.options = id, tell, dict(options or {})
        self.actions = self.name_actions(actions)
        words = sorted(self.actions, key=len, reverse=True)
        self.numbers = [self.actions[word] for word in words]  # one for each group of the pattern
        groups = "|".join(f"({re.escape(word)})" for word in words)
        self.pattern = re.compile(rf"(?<!\w)(?:{groups})(?!\w)", re.IGNORECASE)

    def make(self) -> gymnasium.Env:
        """The environment. Raises ValueError for one that cannot be made."""
        import gymnasium

        try:
            return gymnasium.make(self.id, **self.options)
        except (gymnasium.error.Error, TypeError) as error:
            raise ValueError(f"id={self.id}: {' '.join(str(error).split())}") from error
        # What environments raise for a value of an option, such as an unknown map.
        except (LookupError, ValueError, AssertionError) as error:
            raise ValueError(f"id={self.id} options={self.options}: {error!r}") from error

    def name_actions(self, words: Sequence[str] | None) -> dict[str, int]:
        """Actions by their words. Raises ValueError if the numbers of both differ."""
        from gymnasium.spaces import Discrete

        made = self.make()
        space = made.action_space
        made.close()
        if not isinstance(space, Discrete):
            raise ValueError(f"id={self.id}: its actions are {space}, not Discrete")
        numbers = range(int(space.start), int(space.start + space.n))
        words = [str(number) for number in numbers] if words is None else words
        if len({word.lower() for word in words}) != len(numbers):
            raise ValueError(f"actions={list(words)}: {self.id} has {len(numbers)} actions")
        return dict(zip((word.lower() for word in words), numbers, strict=True))

    def describe(self) -> About:
        return About(gives_states=True, check=self.check_openings)

    def check_openings(self) -> None:
        """Raise ValueError if equal seeds begin differently, as the samples of a group would."""
        for seed in range(3):
            try:
                games = [Game(self, seed, None) for _ in range(2)]
            except Exception:  # it may need options of a prompt; its faults are those of episodes
                return
            for game in games:
                game.close()
            if games[0].said != games[1].said:
                raise ValueError(
                    f"id={self.id} begins differently for equal seeds; set what it draws while it "
                    f"is made in environment.world.options={self.options}"
                )

    def begin(self, prompt: Prompt, key: int) -> Game:
        return Game(self, key % SEEDS, prompt.fields.get(RESET))


class Game:
    """One episode of an environment of its own."""

    def __init__(self, world: Gymnasium, seed: int, options: Mapping | None) -> None:
        self.world, self.env = world, world.make()
        seen, _ = self.env.reset(seed=seed, options=options)
        self.said = world.tell(seen, self.env)

    @property
    def opening(self) -> Said:
        return Said.text(self.said, state=self.said)

    def act(self, move: Move) -> Said:
        found = [place.lastindex for place in self.world.pattern.finditer(move.text)]
        if not found:
            return self._mistaken()
        self.env.unwrapped.np_random = np.random.default_rng(move.key % SEEDS)
        seen, reward, ended, cut, _ = self.env.step(self.world.numbers[found[-1] - 1])
        self.said = self.world.tell(seen, self.env)
        return Said.text(self.said, reward=float(reward), over=bool(ended or cut), state=self.said)

    def close(self) -> None:
        self.env.close()

    def _mistaken(self) -> Said:
        """The answer to a move without an action: the policy may correct it in its next turn."""
        words = ", ".join(self.world.actions)
        messages = ({"role": "user", "content": f"There is no action in this; name one: {words}"},)
        return Said(messages=messages, state=self.said, counts={"unparsed": 1})


def numbers(observation: Any, env: gymnasium.Env) -> str:
    """The numbers of an observation, one after another; of a mapping each part behind its name."""
    return " ".join(words_of(observation))


def words_of(seen: Any) -> Iterator[str]:
    """A text as it is, and a whole number with all of its digits."""
    match seen:
        case str():
            yield seen
        case Mapping():
            for name, part in seen.items():
                yield str(name)
                yield from words_of(part)
        case tuple() | list():
            for part in seen:
                yield from words_of(part)
        case _:
            for number in np.ravel(seen).tolist():
                yield f"{number:d}" if isinstance(number, int) else f"{number:g}"


def drawing(observation: Any, env: gymnasium.Env) -> str:
    """The text rendering of an environment with `options.render_mode=ansi`, without the last move.

    Coloured places are in brackets, with the names of colours other than red: `[F]`, `[blue R]`.
    Raises ValueError for an environment that renders no text.
    """
    drawn = env.render()
    if not isinstance(drawn, str):
        raise ValueError("the environment renders no text: choose environment=gymnasium_drawn")
    return LAST_MOVE.sub("", COLOURED.sub(in_brackets, drawn)).strip()


def in_brackets(place: re.Match) -> str:
    """A coloured place of a drawing. Colours that tell two things apart must stay apart, and one
    character may have several: the passenger of a taxi stands where the taxi is."""
    codes = [code.removesuffix(";1") for code in CODE.findall(place[1])]  # 1 is bold
    names = [COLOURS.get(code, code) for code in codes]
    return f"[{''.join(f'{name} ' for name in names if name != 'red')}{place[2]}]"
