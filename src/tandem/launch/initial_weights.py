"""Initial weights of a run: those of another run, of a warm start, or the model's own."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError, build, check, compose, trust
from tandem.config.experiments import shared_words
from tandem.config.overrides import parse
from tandem.config.plain import to_plain
from tandem.launch.devices import check_machine, check_one_rank
from tandem.launch.finished_runs import (
    finished_model,
    read_run,
    refuse_two_starts,
    refuse_untyped_model,
)
from tandem.launch.ranks import make_on_first
from tandem.launch.warm_start_key import FILE, MadeOf, collect_inputs, reason
from tandem.record import durable
from tandem.record.terminal import line, say
from tandem.settings.settings import key_of
from tandem.stop import EngineUnavailable
from tandem.types import SEGMENTS

# Overrides that are not for a run trained from its beginning.
NOT_TRAINED = ("resume", "evaluate", "estimate", "dry_run", "run_dir", "warm_start", "sweep")
DEVICE = {"trainer", "trainer.accelerator", "trainer.devices"}  # overrides that choose one
FROM_OUTSIDE = (KeyboardInterrupt, SystemExit, EngineUnavailable)  # a retry may succeed

Train = Callable[[DictConfig, Path, Sequence[str]], Any]


def check_start(cfg: DictConfig, *, recorded: bool = False) -> DictConfig | None:
    """Refuse invalid initial weights before anything is loaded or trained.

    Returns the configuration of the warm start, or None. `recorded`: the overrides come from a run,
    as those of a resumed run do.
    """
    check_teachers(cfg)
    check_machine(cfg)
    if cfg.resume is None:
        refuse_untyped_model(cfg)
    if cfg.continue_from is not None:
        if cfg.resume is None:  # earlier versions dropped the warm start
            refuse_two_starts(cfg)
        finished_model(run := Path(cfg.continue_from))
        if quantized_keys(cfg):
            refuse_rounding_again(cfg, read_run(run), f"continue_from={run}")
    elif cfg.warm_start is not None:
        start = warm_configuration(cfg)
        check_warm_start(start, recorded=recorded or cfg.resume is not None)
        refuse_rounding_again(cfg, start, "warm_start")
        return start
    return None


def check_warm_start(start: DictConfig, *, recorded: bool) -> None:
    """Check the configuration of a warm start. `recorded`: the overrides come from a run that was
    read (see `trust`); `check` takes them for typed ones, as there is no `resume` in them."""
    with naming_warm_start():
        check_one_rank(check(start).trainer)
        if recorded:
            trust.refuse_unsaid(to_plain(start), recorded=True)
    check_teachers(start)
    check_machine(start)


def starting_weights(cfg: DictConfig, train: Train) -> Path | None:
    """A folder in Hugging Face format; None: what `model` itself names.

    A resumed run needs them too: its reference and the weights under its adapters are the initial
    ones, so they follow from the overrides that it was started with.
    """
    if cfg.continue_from is not None:
        return finished_model(Path(cfg.continue_from))
    if cfg.warm_start is None:
        return None
    return warm_start(cfg, train) / "model"


def warm_configuration(cfg: DictConfig) -> DictConfig:
    """The configuration of the warm start. Raises ConfigError for overrides that do not train."""
    if not cfg.warm_start:
        raise ConfigError(
            "warm_start=[] is empty; give overrides such as warm_start=['algorithm=sft'], or null"
        )
    for part in parse(cfg.warm_start):
        if part.key_or_group in NOT_TRAINED:
            raise ConfigError(
                f"warm_start: {part.input_line}: a warm start is a separate run that always starts "
                "from the beginning; remove this override"
            )
    alone = ("warm_start=null", "evaluation.every=null")  # the main run evaluates it
    with naming_warm_start():
        return compose([*shared_words(cfg), *cfg.warm_start, *alone], recorded=True)


@contextmanager
def naming_warm_start() -> Iterator[None]:
    """A context in which a ConfigError says that it is about the overrides of the warm start."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"warm_start: {error}") from error


def check_teachers(cfg: DictConfig) -> None:
    """Check that each teacher can be loaded, without loading it."""
    node = OmegaConf.select(cfg, "algorithm.teachers")
    if node is None:
        return
    try:
        build(node).check()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def quantized_keys(cfg: DictConfig) -> set[str]:
    """The keys of the models with a quantised base."""
    keys = ("model", *(f"model.{segment}" for segment in SEGMENTS))
    return {key for key in keys if OmegaConf.select(cfg, f"{key}.quantization") is not None}


def refuse_rounding_again(cfg: DictConfig, start: DictConfig, given: str) -> None:
    """Refuse to quantise merged weights again: the update of adapters is smaller than the rounding
    error, so the result would be the base without it."""
    for key in sorted(quantized_keys(cfg) & quantized_keys(start)):
        raise ConfigError(
            f"{given}: its {key} was trained on a quantised base, and {key}.quantization would "
            "round away what its adapters learnt; remove model/quantization from one of the two"
        )


def warm_start(cfg: DictConfig, train: Train) -> Path:
    """The directory of the warm start's run, trained now or found in the cache by its inputs."""
    start = warm_configuration(cfg)
    wanted, kept = collect_inputs(start), Path(cfg.cache_dir) / "warm_start"
    folder = kept / wanted.name
    if folder.is_dir():
        say(line("warm start", f"{folder}, from the cache"))
        return folder
    follow_device(cfg, start)
    make = partial(_train_warm, cfg, start, wanted, folder, train)
    make_on_first(folder, make, patience=cfg.guards.stalled_after)
    return folder


def follow_device(cfg: DictConfig, start: DictConfig) -> None:
    """Put a warm start on the device of the run's first rank, unless its overrides choose one."""
    if not DEVICE & {part.key_or_group for part in parse(cfg.warm_start)}:
        start.trainer.accelerator = cfg.trainer.accelerator
        if OmegaConf.is_list(cfg.trainer.devices):
            start.trainer.devices = cfg.trainer.devices[:1]


def _train_warm(
    cfg: DictConfig, start: DictConfig, wanted: MadeOf, folder: Path, train: Train
) -> None:
    because = reason(wanted, folder.parent)
    say(line("warm start", f"{' '.join(cfg.warm_start)}, cached in {folder}"))
    say(line("because", because))
    # Runs of a sweep may start together, in containers whose host names and process ids coincide.
    own = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    unfinished = folder.with_name(f"{folder.name}.{own}")
    try:
        train(start, unfinished, shared_words(cfg))
        durable.replace(unfinished / FILE, wanted.text.encode())
        publish(unfinished, folder)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, FROM_OUTSIDE):
            said = "the warm start was not finished; the same command starts it again"
            print(said, file=sys.stderr)
        raise


def pairs_file(cfg: DictConfig, weights: Path | None) -> Path:
    """The file of pairs completed by a model, named by everything that determines its answers."""
    plain = to_plain(cfg)
    decisive = {name: value for name, value in plain.items() if key_of(name).shared}
    decisive["precision"] = plain["trainer"]["precision"]
    if weights is not None:
        decisive["model"]["path"] = str(weights)
    name = collect_inputs(decisive).name
    return Path(cfg.cache_dir) / "pairs" / f"{name}.jsonl"


def publish(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process finished the same weights first
            raise
        shutil.rmtree(unfinished)
