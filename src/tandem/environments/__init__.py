"""Environments: worlds that answer the moves of a policy, with contained failures."""

from tandem.environments.environment import Environment, Play
from tandem.environments.mixture import Mixture
from tandem.environments.protocol import About, Episode, Move, Said, World

__all__ = ["About", "Environment", "Episode", "Mixture", "Move", "Play", "Said", "World"]
