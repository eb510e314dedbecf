"""Notices at the start of a run: what is allowed, and what its user should know."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from tandem.config import build
from tandem.legality import masked, units, updates
from tandem.record import terminal
from tandem.record.mirrors import Job
from tandem.settings.settings import Settings


def notices(cfg: DictConfig, settings: Settings, *, job: Job) -> Iterator[str]:
    """The lines below the banner."""
    algorithm = build(cfg.algorithm)
    found: list[str | None] = [
        units.warning(algorithm, settings),
        updates.notice(build(cfg.schedule), settings.iterations),
    ]
    if algorithm.teachers is not None:
        found.append(terminal.line("teachers", algorithm.teachers.summary))
    if job == "train":
        found.append(masked.notice(algorithm, settings, build(cfg.rollout)))
    return filter(None, found)
