"""RL post-training of language models and flow models with one training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.run import Result

__all__ = ["train"]


def train(*overrides: str) -> Result:
    """What `python train.py OVERRIDES` does, from Python: the final metrics and the run directory.

    Raises:
        ConfigError: an override that does not fit, with the nearest one that does.
        Stop: a guard ended the run.
    """
    from tandem.run import train  # torch and lightning take seconds: not before they are needed

    return train(*overrides)
