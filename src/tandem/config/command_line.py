"""What is read of a command line before Hydra: help, resume, and every mistake that can be seen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from tandem.config.composition import compose, conf_folder, search_path
from tandem.config.help import page
from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.config.plugins import load_plugins
from tandem.config.resume import configuration, resumes
from tandem.config.sweeps import Sweep, sweep_of
from tandem.config.swept_values import one_that_runs

REFUSED = 2  # exit code of a command line that cannot run


@contextmanager
def refusals() -> Iterator[None]:
    """A ConfigError ends the process with its one line, not with a traceback."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


def preflight(argv: Sequence[str]) -> list[str] | Sweep:
    """What is asked for, once nothing is seen to be wrong with it; may print and exit.

    Of one run, the arguments for Hydra.
    """
    words = _read(argv[1:])
    if words.help:
        print(page(conf_folder()), end="")
        sys.exit(0)
    if words.hydra_help or words.info or words.shell_completion:
        return list(argv)
    sweep = sweep_of(words.overrides, multirun=words.multirun)
    if sweep is None:
        _check(configuration(words.overrides), words)
        return [argv[0], *_for_hydra(words, argv[1:])]
    _check_sweep(sweep, words)
    return [argv[0], *_for_hydra(words, argv[1:])] if words.cfg else sweep


def _read(words: Sequence[str]) -> argparse.Namespace:
    parser = get_args_parser()
    parser.error = _refuse
    read, unread = parser.parse_known_intermixed_args(words)
    if unread:
        name, _, value = unread[0].lstrip("-").partition("=")
        raise ConfigError(
            f"{unread[0]}: options are written {name}={value or '...'}, without dashes"
        )
    for name in ("experimental_rerun", "config_path", "config_name", "config_dir"):
        if vars(read)[name] is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: conf/ is the only source; see plugins=")
    return read


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _check(cfg: DictConfig, words: argparse.Namespace) -> None:
    from tandem.config.checks import checked  # imports torch
    from tandem.record.room import check_place

    checked(cfg)
    try:
        check_place(Path(cfg.run_dir))  # Hydra makes it
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if words.cfg == "job":  # Hydra knows neither the choices nor the configuration of a resumed run
        shown = OmegaConf.select(cfg, words.package) if words.package else cfg
        print(OmegaConf.to_yaml(shown, resolve=words.resolve), end="")
        sys.exit(0)


def _check_sweep(sweep: Sweep, words: argparse.Namespace) -> None:
    """Each value of each swept key; --cfg prints the first job that can run."""
    from tandem.config.checks import checked

    run = one_that_runs(sweep, checked)
    if words.cfg:
        _check(compose(run), words)


def _for_hydra(words: argparse.Namespace, argv: Sequence[str]) -> list[str]:
    """Overrides before options. A resumed run keeps its directory, and what is not in the default
    configuration is forced into it: the configuration of the run is read later.
    """
    parts = parse(words.overrides)
    overrides, options = words.overrides, [word for word in argv if word not in words.overrides]
    if (folder := resumes(overrides)) is not None:
        keep = [f"hydra.run.dir={quoted(folder)}", "hydra.output_subdir=null"]
        return [*(_forced(part) for part in parts), *keep, *options]
    folders = [f for p in parts if p.key_or_group == "plugins" for f in load_plugins(p.value())]
    return [*overrides, *search_path(folders), *options]


def _forced(part: Override) -> str:
    plain = "." not in part.key_or_group or part.key_or_group.startswith("hydra.")
    return part.input_line if plain else f"++{part.input_line.lstrip('+')}"


def quoted(folder: Path) -> str:
    text = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
