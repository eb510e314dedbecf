"""The command line: help, resume, and all checks that are possible before a run."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from tandem.config import check
from tandem.config.composition import (
    compose_with_hydra,
    conf_folder,
    drop_hydra,
    find_choices,
    import_plugins,
    make_loader,
)
from tandem.config.help import ESTIMATE, everything, list_plugin_options, page
from tandem.config.names import ConfigError, unknown
from tandem.config.options_in_use import list_options_in_use
from tandem.config.overrides import list_options, parse, quote
from tandem.config.refusals import refusing
from tandem.config.resume import check_files, configuration, find_resumed_run
from tandem.config.values import list_keys, refuse_empty
from tandem.record import terminal
from tandem.record.finished import completed_iterations
from tandem.record.next_commands import next_commands
from tandem.record.summary import summarise
from tandem.record.terminal import line
from tandem.registry.nodes import as_text
from tandem.sweep.single_run import refuse_sweep
from tandem.sweep.swept_values import find_one_that_runs
from tandem.sweep.words import Sweep, parse_sweep

if TYPE_CHECKING:
    from tandem.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One checked run, and its Hydra job."""

    cfg: DictConfig
    settings: Settings
    overrides: list[str]  # without Hydra's own
    job: DictConfig

    def start(self, task: Callable[[Run, Path], None]) -> None:
        """Start the run as a Hydra job; one that fails before loading leaves no directory."""
        self.job.hydra.mode, self.job.hydra.job.name = RunMode.RUN, "train"
        place = Path(self.job.hydra.run.dir)
        made = [folder for folder in (place, *place.parents) if not folder.exists()]
        if self.settings.dry_run or self.settings.estimate:
            return task(self, place)
        try:
            _as_job(task, self)
        finally:
            for folder in made:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()  # nothing was written into it


def _as_job(task: Callable[[Run, Path], None], run: Run) -> None:
    """Run a task as a Hydra job, which creates the directory and sets up logging."""
    done = run_job(
        lambda _: task(run, Path(HydraConfig.get().runtime.output_dir)),
        config=run.job,
        job_dir_key="hydra.run.dir",
        job_subdir_key=None,
        hydra_context=HydraContext(config_loader=make_loader(), callbacks=Callbacks(run.job)),
    )
    _ = done.return_value  # raises what the task raised


def preflight(argv: Sequence[str]) -> Run | Sweep | list[str]:
    """The checked run or sweep that a command line asks for; may print and exit.

    Returns the words unchanged if they are for Hydra itself.
    """
    words = _read(argv[1:])
    if words.help:
        print(help_of(words.overrides), end="")
        sys.exit(0)
    if words.hydra_help or words.info or words.shell_completion:
        return list(argv)
    if not words.cfg and (words.resolve or words.package):
        name = "--resolve" if words.resolve else "--package"
        raise ConfigError(f"{name}: it goes with --cfg, e.g. --cfg job {name}")
    if not words.cfg and (told := nothing_left(words.overrides)) is not None:
        terminal.say(told)
        sys.exit(0)
    sweep = parse_sweep(words.overrides, multirun=words.multirun)
    run = _run(words.overrides if sweep is None else find_one_that_runs(sweep, check))
    if words.cfg:
        _print(run, words)
        sys.exit(0)
    if sweep is None:
        refuse_sweep(words.overrides, run.job.hydra)
    return run if sweep is None else sweep


def nothing_left(overrides: Sequence[str]) -> str | None:
    """The message for resuming a finished run without changes; None if there is work left."""
    parts = [part for part in parse(overrides) if not part.is_hydra_override()]
    changing = [part for part in parts if part.key_or_group not in ("resume", "plugins")]
    folder = find_resumed_run(overrides)
    if folder is None or changing:
        return None
    with refusing():
        check_files(folder)
        if (done := completed_iterations(folder)) is None:
            return None
        own = shlex.quote(str(folder))
        told = line(
            "finished", f"{done} of {done} iterations; evaluate=true resume={own} measures again"
        )
        return "\n".join([summarise(folder), told, next_commands(folder, iterations=done)])


def help_of(words: Sequence[str]) -> str:
    """The help page: an overview, everything, or the groups and keys named in the overrides.

    Raises ConfigError for a choice in the overrides that does not exist.
    """
    topics = [word for word in words if "=" not in word and not word.startswith("~")]
    overrides = [word for word in words if word not in topics]
    folders = import_plugins(overrides)
    conf, brought, source = conf_folder(), list_plugin_options(folders), make_loader(folders)
    one_run = [part for part in parse(overrides) if not part.is_sweep_override()]
    find_choices(one_run, source, list_options(source))
    if not topics:
        return ESTIMATE if "estimate=true" in overrides else page(conf, brought)
    if topics == ["all"]:
        return everything(conf, brought)
    from tandem.config.help_topics import topic  # imports torch

    cfg = configuration(overrides)
    used = list_options_in_use(overrides, cfg)
    return "\n".join(topic(name, overrides, cfg, used, conf, brought) for name in topics)


def _read(words: Sequence[str]) -> argparse.Namespace:
    if "--version" in words:
        print(f"Tandem {metadata.version('tandem')}")
        sys.exit(0)
    parser = get_args_parser()
    parser.error = _refuse
    read, unread = parser.parse_known_intermixed_args(words)
    if unread:
        name, _, value = unread[0].lstrip("-").partition("=")
        raise ConfigError(
            f"{unread[0]}: write the option as {name}={value or '...'}, without dashes"
        )
    for name in ("experimental_rerun", "config_path", "config_name", "config_dir"):
        if vars(read)[name] is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: conf/ is the only source; see plugins=")
    return read


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _run(overrides: Sequence[str]) -> Run:
    """The run, composed once. For a resumed run only its directory is composed."""
    parts = parse(overrides)
    own = [part.input_line for part in parts if not part.is_hydra_override()]
    if (folder := find_resumed_run(overrides)) is None:
        job = compose_with_hydra(overrides)
        cfg = drop_hydra(job)
        cfg.overrides = as_text(own)
    else:
        cfg = configuration(overrides)
        of_hydra = [part.input_line for part in parts if part.is_hydra_override()]
        job = compose_with_hydra([*of_hydra, f"hydra.run.dir={quote(folder)}"])
    settings = check(cfg)
    refuse_empty("hydra.run.dir", job.hydra.run.dir)
    _refuse_place(Path(job.hydra.run.dir))
    return Run(cfg=cfg, settings=settings, overrides=own, job=job)


def _refuse_place(run_dir: Path) -> None:
    """Raise if the directory cannot be used, before Hydra creates it."""
    from tandem.record.room import check_place

    with refusing():
        check_place(run_dir)


def _print(run: Run, words: argparse.Namespace) -> None:
    """Print the choices or the configuration, since Hydra's own printing lacks resumed runs."""
    shown = run.cfg
    if words.cfg != "job":
        hydra = OmegaConf.create({"hydra": run.job.hydra})
        shown = hydra if words.cfg == "hydra" else OmegaConf.merge(run.cfg, hydra)
    if words.package and words.package not in (keys := list_keys(shown)):
        raise ConfigError(unknown("key", words.package, keys))
    shown = OmegaConf.select(shown, words.package) if words.package else shown
    is_node = OmegaConf.is_config(shown)
    print(OmegaConf.to_yaml(shown, resolve=words.resolve) if is_node else f"{shown}\n", end="")
