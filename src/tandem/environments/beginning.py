"""The start of an episode as one call; an episode that starts after the timeout is closed."""

from __future__ import annotations

import asyncio
import inspect
import threading

from tandem.environments.protocol import Episode, Said, World
from tandem.rewards.result import Missing, attempt
from tandem.types import Prompt


class Beginning:
    """A new episode and its opening, in one call: an opening may be code as well.

    The caller gets the episode, or it is closed: if its opening raises, or if the call was given
    up.
    """

    def __init__(self, world: World, prompt: Prompt, key: int) -> None:
        self.world, self.prompt, self.key = world, prompt, key
        self.lock = threading.Lock()
        self.episode: Episode | None = None
        self.is_given_up = False

    def __call__(self) -> tuple[Episode, Said]:
        episode = finish(self.world.begin(self.prompt, self.key))
        if not (callable(episode.act) and callable(episode.close)):  # without one: AttributeError
            raise Missing("begin gave an episode whose act or close is no method")
        with self.lock:
            self.episode, nobody_waits = episode, self.is_given_up
        try:
            if nobody_waits:
                raise Missing("begin returned too late")
            return episode, finish(episode.opening)
        except BaseException:
            self.let_go()  # the error of the opening is raised
            raise

    def let_go(self) -> None:
        """Close the episode, now or once it exists; errors are ignored."""
        with self.lock:
            episode, self.episode, self.is_given_up = self.episode, None, True
        if episode is not None:
            attempt(episode.close, ())


def finish(answer: object) -> object:
    """What a coroutine returns; any other value unchanged."""
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
