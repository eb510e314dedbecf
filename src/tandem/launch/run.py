"""A run from its configuration to its end, the core of `train.py` and `tandem.train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Callback
from omegaconf import DictConfig, OmegaConf

from tandem import distributed
from tandem.config import ConfigError, build, configuration
from tandem.config.arguments import fill_defaults
from tandem.config.composition import compose_with_hydra, drop_hydra
from tandem.config.plain import to_plain
from tandem.config.plugins import IMPORTED
from tandem.config.refusals import refusing
from tandem.config.resume import judge_address, remember, remember_address
from tandem.data import Data, write_quarantine
from tandem.launch.assembly import assemble
from tandem.launch.banner import device_banner, left_out
from tandem.launch.devices import check_devices, device_of_rank, set_float32_precision
from tandem.launch.engine_check import check_engine
from tandem.launch.evaluation import evaluate_run
from tandem.launch.initial_weights import starting_weights
from tandem.launch.inputs import training_split
from tandem.launch.memory_estimate import state_of
from tandem.launch.own_engines import own_engines
from tandem.launch.people import doing, say
from tandem.launch.preview import preview
from tandem.launch.trainer import trainer_for
from tandem.policies.engines.addresses import check_addresses
from tandem.record import plots, terminal
from tandem.record.evaluation_record import EvaluationRecord
from tandem.record.mirrors import Job, Mirror
from tandem.record.next_commands import next_commands
from tandem.record.room import check_room, measure_size, stop_where_full
from tandem.record.run_record import CHECKPOINTS, RunRecord
from tandem.record.writer import claim_folder
from tandem.registry.nodes import as_text
from tandem.rewards.networks import trains_on
from tandem.settings.settings import Settings
from tandem.sweep.single_run import refuse_sweep
from tandem.training.callbacks import OptimizerOffload, standard
from tandem.training.module import PostTraining
from tandem.training.offload import OPTIMIZER


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run in memory; everything else is in its directory."""

    metrics: dict[str, float]  # last values
    run_dir: Path


def train(*overrides: str) -> Result:
    """`train("algorithm=grpo", "model=hf", "model.path=...")`: what train.py does, from Python.

    Raises:
        ConfigError: an invalid override, with the nearest valid one.
        Stop: a guard ended the run, or its sampling engine did not answer.
    """
    whole = configuration(overrides, compose=compose_with_hydra)
    refuse_sweep(overrides, whole.get("hydra"))
    cfg = drop_hydra(whole)
    return run(cfg, Path(cfg.run_dir).absolute(), overrides)  # a reward may change the directory


def run(
    cfg: DictConfig,
    run_dir: Path,
    overrides: Sequence[str],
    *,
    job: Job = "train",
    settings: Settings | None = None,
    data: Data | None = None,
) -> Result:
    """Check, build, train or evaluate, and leave a record in `run_dir`.

    All possible checks come before anything that costs time or memory: see `preview`.
    """
    settings, data = preview(cfg, run_dir, overrides, job=job, settings=settings, data=data)
    if settings.estimate or settings.dry_run:
        return Result(metrics={}, run_dir=run_dir)
    check_devices(cfg, settings)
    keep_trust(partial(remember, cfg))
    with resources(cfg, settings, run_dir, job):
        return carry_out(cfg, settings, run_dir, overrides, data, job=job)


@contextmanager
def resources(cfg: DictConfig, settings: Settings, run_dir: Path, job: Job) -> Iterator[None]:
    """A block in which the run has its folder, its device and the engines that it starts."""
    stays = job == "train" and not settings.evaluate
    with stop_where_full(run_dir, stays=stays), ExitStack() as held:
        held.enter_context(check_addresses(partial(admit_address, cfg)))
        place = device_of_rank(settings.trainer, distributed.local_rank())
        held.enter_context(trains_on(place))
        if place.type == "cuda":  # loading computes on the current GPU, which is 0 at first
            held.enter_context(torch.cuda.device(place))
        if distributed.is_first() and not settings.evaluate:
            with refusing():
                held.enter_context(claim_folder(run_dir))
        if job == "train":
            held.enter_context(own_engines(cfg, settings.trainer))
        yield


def carry_out(
    cfg: DictConfig,
    settings: Settings,
    run_dir: Path,
    overrides: Sequence[str],
    data: Data,
    *,
    job: Job,
) -> Result:
    """Build the checked configuration, and train or evaluate it."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if job == "train":
        say(device_banner(settings))
    with refusing():
        check_engine(cfg, data)
        mirrors = build_mirrors(cfg)
        callbacks = build_callbacks(cfg)
        weights = starting_weights(cfg, partial(run, job="warm_start"))
        set_float32_precision(settings.trainer)  # a warm start has set its own
        own = OmegaConf.select(cfg, "model.path") or "its configuration"
        with doing("loading", f"model={settings.choices['model']} from {weights or own}"):
            module, data = assemble(cfg, settings, data, run_dir, weights)
    config = recorded_text(cfg)
    if settings.evaluate:
        split = settings.evaluation.split
        found = EvaluationRecord(run_dir=run_dir, split=split, config=config, mirrors=mirrors)
        return Result(metrics=evaluate_run(module, settings, data, found), run_dir=run_dir)
    with refusing():
        check_room_for(module, settings, run_dir, job)
    record = RunRecord(run_dir, mirrors=mirrors, job=job)
    if distributed.is_first():
        plugins = [(name, IMPORTED[name]) for name in cfg.plugins]
        command = ["train.py", *overrides]
        record.begin(
            config,
            seed=settings.seed,
            command=command,
            plugins=plugins,
            reproducible=module.source.reproducible,
            resumed=settings.resume is not None,
        )
        if write_quarantine(run_dir, data.quarantine) is not None:
            kept = data.splits[training_split(module.algorithm.needs)]
            say(left_out(data.quarantine, len(kept)))
    fit(module, settings, data, record, callbacks)
    return Result(metrics=record.latest, run_dir=run_dir)


def recorded_text(cfg: DictConfig) -> str:
    """The configuration to record, as YAML: resolved, with the defaults of its functions.

    OmegaConf writes an enum, which a plugin may have as a default, as text; PyYAML alone does not.
    """
    plain = fill_defaults(to_plain(cfg))
    return OmegaConf.to_yaml(OmegaConf.create(as_text(plain)), resolve=True)


def build_mirrors(cfg: DictConfig) -> list[Mirror]:
    """The mirrors of the configuration. Raises ConfigError for anything else."""
    mirrors = {name: build(node) for name, node in cfg.logger.items()}
    for name, one in mirrors.items():
        if not isinstance(one, Mirror):
            raise ConfigError(
                f"logger.{name} made a {type(one).__name__}; give it open, write, samples and close"
            )
    return [*mirrors.values()]


def build_callbacks(cfg: DictConfig) -> list[Callback]:
    """The Lightning callbacks of the configuration. Raises ConfigError for anything else."""
    callbacks = {name: build(node) for name, node in cfg.callbacks.items()}
    for name, one in callbacks.items():
        if not isinstance(one, Callback):
            raise ConfigError(
                f"callbacks.{name} made a {type(one).__name__}; make a lightning.pytorch.Callback"
            )
        if type(one).on_save_checkpoint is not Callback.on_save_checkpoint:
            raise ConfigError(
                f"callbacks.{name}: on_save_checkpoint of {type(one).__name__} is never called; "
                "return its state by state_dict()"
            )
    return [*callbacks.values()]


def admit_address(cfg: DictConfig, url: str) -> None:
    """Check the address of a discovered engine (`url=auto`). Raises ConfigError if not allowed."""
    judge_address(cfg, url)
    keep_trust(partial(remember_address, cfg, url))


def keep_trust(keep: Callable[[], None]) -> None:
    """Remember trusted plugins and servers, so that resuming does not ask again."""
    try:
        if distributed.is_first():
            keep()
    except OSError as error:
        say(f"trust       not kept ({error}); resume= will ask for plugins=[...] and addresses")


def check_room_for(module: PostTraining, settings: Settings, run_dir: Path, job: Job) -> None:
    """Raise ValueError if the checkpoints of this module will not fit on the disk."""
    trained, state = module.policy.weights().values(), module.state().values()
    size = sum(x.nbytes for x in (*trained, *state))
    size += sum(x.numel() * state_of(module.optimizer, x.dtype) for x in trained)
    held, keep = measure_size(run_dir / CHECKPOINTS), settings.checkpoints.keep
    if job == "train":
        check_room(run_dir, size=size, keep=keep, held=held)
    else:
        place = Path(settings.cache_dir)
        check_room(place, size=size, keep=keep, held=held, key="cache_dir", within="warm_start")


def fit(
    module: PostTraining,
    settings: Settings,
    data: Data,
    record: RunRecord,
    callbacks: Sequence[Callback],
) -> None:
    """Train to the end, and write the model and the curves to the record's folder."""
    own = standard(
        record=record,
        evaluation=settings.evaluation,
        held_out=data.eval,
        checkpoint_every=settings.checkpoints.every,
        keep=settings.checkpoints.keep,
        resume=settings.resume is not None,
        others=callbacks,
    )
    away = [OptimizerOffload()] if OPTIMIZER in settings.trainer.offload else []
    trainer_for(settings.trainer, [*own, *away]).fit(module)
    module.policy.save(record.folder / "model")
    if distributed.is_first():
        plots.draw_run(record.folder)
        if record.job == "train":
            terminal.say(next_commands(record.folder, iterations=settings.iterations))
