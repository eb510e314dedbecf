"""Environments for tests: one that counts moves, and one with every possible fault."""

import threading
from dataclasses import dataclass, field

from tandem.environments import About, Environment, Said


@dataclass
class Counting:
    """`turns` moves, the last of which is worth 1; the state is the number of moves."""

    turns: int = 3
    says: str = "+"
    about: About = field(default_factory=lambda: About(gives_states=True))
    opening: Said = field(default_factory=lambda: Said(state="0"))
    begun: list = field(default_factory=list)  # (prompt, key)
    closed: int = 0

    def describe(self):
        return self.about

    def begin(self, prompt, key):
        self.begun.append((prompt.id, key))
        return CountingEpisode(self)


class CountingEpisode:
    def __init__(self, world):
        self.world, self.moves = world, []

    @property
    def opening(self):
        return self.world.opening

    def act(self, move):
        self.moves.append(move)
        over = len(self.moves) >= self.world.turns
        return Said.text(self.world.says, reward=float(over), over=over, state=str(len(self.moves)))

    def close(self):
        self.world.closed += 1


class Faulty(Counting):
    """Some episodes fail, by prompt id: `faults` holds a function of the move."""

    def __init__(self, faults, *, turns=3, only_first=False):
        super().__init__(turns=turns)
        self.faults, self.only_first = faults, only_first
        self.attempts = {}

    def begin(self, prompt, key):
        episode = super().begin(prompt, key)
        tries = self.attempts[prompt.id] = self.attempts.get(prompt.id, 0) + 1
        fault = self.faults.get(prompt.id)
        if fault is not None and not (self.only_first and tries > 1):
            sound = episode.act
            episode.act = lambda move: fault(move) or sound(move)
        return episode


def raises(move):
    raise ConnectionResetError("the socket is gone")


def dies_in_the_middle(move):
    if move.number == 2:
        raise ConnectionResetError("the socket is gone")


def hangs(move):
    threading.Event().wait(5)


def says_no_said(move):
    return "hello"


def lies_about_the_end(move):
    return Said(over="no")


def pays_nan(move):
    return Said(reward=float("nan"))


def speaks_for_the_policy(move):
    return Said(messages=({"role": "assistant", "content": "I give up"},))


def uses_up_a_message():
    yield {"role": "user", "content": "hello"}


# Invalid answers of an environment, and their messages.
NO_ANSWERS = {
    "messages=None": (lambda: Said(messages=None), "gave messages of type NoneType, not a list"),
    "generator": (
        lambda: Said(messages=uses_up_a_message()),
        "gave messages of type generator, not",
    ),
    "counts=None": (lambda: Said(counts=None), "gave counts of type NoneType, not a mapping"),
    "counts=[1]": (lambda: Said(counts=[1]), "gave counts of type list, not a mapping"),
    "calls=[1]": (lambda: Said(tool_calls=[1]), "gave tool_calls that are no list of mappings"),
    "calls={set}": (lambda: Said(tool_calls=[{"a": {1}}]), "gave tool_calls that JSON cannot say"),
    "10**400": (lambda: Said(reward=10**400), "gave reward=1000"),
    "10**5000": (lambda: Said(reward=10**5000), "raised ValueError: 'Exceeds the limit"),
    "surrogate": (lambda: Said.text("\ud800"), "gave a message that does not map role and"),
    "state": (lambda: Said(state="\ud800"), "gave a state of type str, not text"),
}


def make_environment(world, **limits):
    """An environment in the thread of the test, unless it has a timeout."""
    return Environment(world, **{"timeout": None, "max_tokens": None} | limits)
