"""An OpenEnv environment as its users write one: `python openenv_app.py PORT SESSIONS` serves it.

It runs in the Python of `real_openenv`, which has OpenEnv and nothing of Tandem.
"""

import random
import sys

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Saying(Action):
    text: str = Field(max_length=400)


class Counted(Observation):
    text: str
    drawn: int


class Counter(Environment):
    """The last of `turns` moves is worth 1; "!" raises an error."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, turns=3, **more):
        self.turns, self.drawn = turns, random.Random(seed).randrange(1000)
        self.now = State(episode_id=episode_id, step_count=0)
        return Counted(text="", drawn=self.drawn)

    def step(self, action, timeout_s=None, **more):
        if action.text == "!":
            raise RuntimeError("no such move")
        self.now.step_count += 1
        over = self.now.step_count >= self.turns
        return Counted(text="+", drawn=self.drawn, reward=float(over), done=over)

    @property
    def state(self):
        return self.now


if __name__ == "__main__":
    port, sessions = map(int, sys.argv[1:])
    app = create_fastapi_app(Counter, Saying, Counted, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
