"""Training from a command line: `python train.py ...`, or `tandem train ...`."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 20 times more when busy

import hydra

from tandem.config.composition import conf_folder
from tandem.config.own_targets import project_root
from tandem.config.refusals import refusals, refusing
from tandem.launch.command_line import Run, preflight
from tandem.record.terminal import starting
from tandem.sweep.words import Sweep

if TYPE_CHECKING:
    from tandem.settings.settings import Settings

CONF = conf_folder()
os.environ.setdefault("PROJECT_ROOT", str(project_root()))


def main(arguments: Sequence[str]) -> None:
    """One run, or with -m a sweep, which ends the process with the exit code of its runs."""
    sys.argv = [str(CONF.parent / "train.py"), *arguments]  # jobs of a sweep are started with it
    with refusals(), disable_gc():
        asked = preflight(sys.argv)
    match asked:
        case Sweep():
            from tandem.sweep.launch import launch

            with refusals(), refusing():
                sys.exit(launch(asked, sys.argv))
        case Run():
            asked.start(train)
        case _:
            show_hydra_options()


def train(asked: Run, run_dir: Path) -> None:
    from tandem.launch.inputs import read_inputs  # imports torch

    with refusals():
        data = None if asked.settings.estimate else read_inputs(asked.cfg)
    warnings.simplefilter("ignore", FutureWarning)  # from libraries, not actionable by users
    with disable_gc(), starting("torch, Lightning"):  # after all checks that may refuse the run
        begin = load_program(asked.settings)
        from tandem.launch.stops import stops

    with stops(run_dir):
        begin(asked.cfg, run_dir, asked.overrides, settings=asked.settings, data=data)


def load_program(settings: Settings) -> Callable[..., object]:
    """The function that starts a run, or only previews it, which needs no Lightning."""
    if settings.estimate or settings.dry_run:
        from tandem.launch.preview import preview

        return preview
    from tandem.launch.run import run

    return run


@contextmanager
def disable_gc() -> Iterator[None]:
    """Imports without garbage collection, which takes a sixth of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def show_hydra_options(_: object) -> None:
    """Options of Hydra itself: --hydra-help, --info, --shell-completion."""
