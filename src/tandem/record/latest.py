"""The link `latest` beside runs, and beside sweeps, to the one that was started last."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

HOME = "runs"
LINK = "latest"


def point_latest(folder: Path, home: Path) -> None:
    """Point the link `home`/latest to a folder within `home`, atomically.

    A file or folder of that name stays.
    """
    whole, link = folder.absolute(), home.absolute() / LINK
    if not whole.is_relative_to(link.parent) or (link.exists() and not link.is_symlink()):
        return
    made = link.with_name(f".{LINK}-{os.getpid()}")
    try:
        made.symlink_to(whole.relative_to(link.parent), target_is_directory=True)
        made.replace(link)
    except OSError as error:
        log.warning("%s: not linked to this run (%s)", link, error.strerror)


def home_of_runs(run_dir: Path) -> Path | None:
    """The nearest folder `runs` above a run; None: there is none, or the run is of a sweep."""
    around = run_dir.absolute().parents
    if any(parent.name == "sweeps" for parent in around):
        return None
    return next((parent for parent in around if parent.name == HOME), None)


def follow_link(folder: Path) -> Path:
    """The folder that a link points to: a resumed run stays there even if the link moves."""
    if not folder.is_symlink():
        return folder
    real, here = folder.resolve(), Path.cwd().resolve()
    return (
        real.relative_to(here) if real.is_relative_to(here) and not folder.is_absolute() else real
    )
