"""A call that begins an episode; an episode that begins after the timeout is closed."""

from __future__ import annotations

import threading

from tandem.environments.protocol import Episode, Said, World
from tandem.rewards.result import Missing, attempt
from tandem.types import Prompt


class Beginning:
    """A new episode and its opening, in one call: an opening may be code as well.

    Either whoever asked gets the episode, or it is closed: where its opening raises, and where the
    call was given up.
    """

    def __init__(self, world: World, prompt: Prompt, key: int) -> None:
        self.world, self.prompt, self.key = world, prompt, key
        self.lock = threading.Lock()
        self.episode: Episode | None = None
        self.is_given_up = False

    def __call__(self) -> tuple[Episode, Said]:
        episode = self.world.begin(self.prompt, self.key)
        with self.lock:
            self.episode, nobody_waits = episode, self.is_given_up
        try:
            if nobody_waits:
                raise Missing("begin returned too late")
            return episode, episode.opening
        except BaseException:
            self.let_go()  # why there is no opening is said
            raise

    def let_go(self) -> None:
        """Close the episode, now or as soon as it has come; what goes wrong then costs nothing."""
        with self.lock:
            episode, self.episode, self.is_given_up = self.episode, None, True
        if episode is not None:
            attempt(episode.close, ())
