"""What is read of a command line before Hydra: help, resume, and every mistake that can be seen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Glob, Override
from omegaconf import DictConfig, OmegaConf

from tandem.config.composition import compose, conf_folder, loader, search_path
from tandem.config.help import page
from tandem.config.names import ConfigError
from tandem.config.overrides import menu, parse
from tandem.config.plugins import load_plugins
from tandem.config.resume import configuration, resumes

REFUSED = 2  # exit code of a command line that cannot run


@contextmanager
def refusals() -> Iterator[None]:
    """A ConfigError ends the process with its one line, not with a traceback."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


def preflight(argv: Sequence[str]) -> list[str]:
    """The arguments for Hydra, once nothing is seen to be wrong with them; may print and exit."""
    words = _read(argv[1:])
    if words.help:
        print(page(conf_folder()), end="")
        sys.exit(0)
    if words.hydra_help or words.info or words.shell_completion:
        return list(argv)
    if words.multirun:
        _check_sweep(words.overrides)
    else:
        _check(configuration(words.overrides), words)
    return [argv[0], *_for_hydra(words, argv[1:])]


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

    checked(cfg)
    if words.cfg == "job":  # Hydra knows neither the choices nor the configuration of a resumed run
        shown = OmegaConf.select(cfg, words.package) if words.package else cfg
        print(OmegaConf.to_yaml(shown, resolve=words.resolve), end="")
        sys.exit(0)


def _check_sweep(overrides: Sequence[str]) -> None:
    """Each value of each swept key, the others at their first value."""
    from tandem.config.checks import checked

    if resumes(overrides) is not None:
        raise ConfigError("resume: -m starts runs, it cannot go on with one")
    for job in jobs(overrides):
        cfg = compose(job)
        checked(cfg)
        if cfg.trainer.devices != 1:
            reason = "each rank would start the whole sweep; run the jobs one by one"
            raise ConfigError(f"-m with trainer.devices={cfg.trainer.devices}: {reason}")


def jobs(overrides: Sequence[str]) -> list[list[str]]:
    """Command lines without a sweep in which each value of each sweep stands once."""
    values = [_values(part) for part in parse(overrides)]
    first = [alternatives[0] for alternatives in values]
    return [first] + [
        [*first[:i], other, *first[i + 1 :]]
        for i, alternatives in enumerate(values)
        for other in alternatives[1:]
    ]


def _values(part: Override) -> list[str]:
    if not part.is_sweep_override():
        return [part.input_line]
    if isinstance(part.value(), Glob):
        names = part.value().filter(list(menu(loader()).get(part.key_or_group, ())))
    else:
        names = list(part.sweep_string_iterator())
    if not names:
        raise ConfigError(f"{part.input_line}: names nothing")
    return [f"{part.get_key_element()}={name}" for name in names]


def _for_hydra(words: argparse.Namespace, argv: Sequence[str]) -> list[str]:
    """Overrides before options. A resumed run keeps its directory, and what is not in the default
    configuration is forced into it: the configuration of the run is read later.
    """
    parts = parse(words.overrides)
    overrides, options = words.overrides, [word for word in argv if word not in words.overrides]
    if (folder := resumes(overrides)) is not None:
        keep = [f"hydra.run.dir={_quoted(folder)}", "hydra.output_subdir=null"]
        return [*(_forced(part) for part in parts), *keep, *options]
    folders = [f for p in parts if p.key_or_group == "plugins" for f in load_plugins(p.value())]
    names = _short_names(parts) if words.multirun else []
    return [*overrides, *search_path(folders), *names, *options]


def _short_names(parts: Sequence[Override]) -> list[str]:
    """The folders of a sweep's runs are named by what is swept, not by what they share."""
    shared = {f"'{part.key_or_group}'" for part in parts if not part.is_sweep_override()}
    return [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(sorted(shared))}]"]


def _forced(part: Override) -> str:
    plain = "." not in part.key_or_group or part.key_or_group.startswith("hydra.")
    return part.input_line if plain else f"++{part.input_line.lstrip('+')}"


def _quoted(folder: Path) -> str:
    text = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
