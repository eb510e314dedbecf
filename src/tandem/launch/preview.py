"""The beginning of a run: everything that is checked and printed before anything is built.

`dry_run=true` and `estimate=true` end here, so this module imports no Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from tandem.config import build, check
from tandem.config.experiments import record_overrides
from tandem.config.refusals import refusing
from tandem.data import Data
from tandem.hub import quiet_libraries
from tandem.launch.banner import banner, prompts_read, warm_start_banner
from tandem.launch.devices import check_accelerator
from tandem.launch.finished_runs import read_run
from tandem.launch.initial_weights import check_start, naming_warm_start
from tandem.launch.inputs import check_split, read_inputs, training_split
from tandem.launch.people import say
from tandem.launch.ranks import check_nodes, check_run_dir, join_ranks
from tandem.legality import masked, pictures, units, updates
from tandem.record.latest import follow_link
from tandem.record.mirrors import Job
from tandem.record.resumable import check_measurable, check_resumable
from tandem.record.room import check_place
from tandem.record.terminal import line
from tandem.registry.nodes import as_text
from tandem.settings.settings import Settings


def preview(
    cfg: DictConfig,
    run_dir: Path,
    overrides: Sequence[str],
    *,
    job: Job = "train",
    settings: Settings | None = None,
    data: Data | None = None,
) -> tuple[Settings, Data | None]:
    """The checked settings of a run and its prompts; None: an estimate reads none.

    `settings` and `data` are those of `cfg` if it was checked and they were read before.
    """
    quiet_libraries()
    fill_in(cfg, run_dir, overrides)
    settings = check(cfg) if settings is None else settings
    if job == "train":
        join_ranks(settings.trainer, evaluates=settings.evaluate)
    start = check_start(cfg)
    if not settings.estimate:  # which may be for another machine
        check_accelerator(settings.trainer)
    if not (settings.estimate or settings.dry_run or settings.evaluate):  # which start no ranks
        check_nodes(settings.trainer)
        check_run_dir(settings.trainer, run_dir, overrides)
    with refusing():
        check_folders(cfg, settings, run_dir, job)
    if job == "train" and not (settings.estimate or settings.dry_run):  # which write nothing there
        say(line("run", str(run_dir)))
    say(banner(settings, cfg.reward) if job == "train" else warm_start_banner(settings))
    for said in notices(cfg, settings, job=job):
        say(said)
    if settings.estimate:
        from tandem.launch.memory_estimate import estimate

        with refusing():
            say(estimate(cfg, settings))
        return settings, None
    data = read_inputs(cfg) if data is None else data
    if data is not None and start is not None and start.data == cfg.data:
        with naming_warm_start():
            check_split(data, build(start.algorithm), start)
    if job == "train":
        say(prompts_read(data, training_split(build(cfg.algorithm).needs)))
    return settings, data


def notices(cfg: DictConfig, settings: Settings, *, job: Job) -> Iterator[str]:
    """The lines below the banner: what is allowed, and what the user should know."""
    algorithm = build(cfg.algorithm)
    found: list[str | None] = [
        units.warning(algorithm, settings),
        updates.notice(build(cfg.schedule), settings.iterations),
    ]
    if algorithm.teachers is not None:
        found.append(line("teachers", algorithm.teachers.summary))
    if job == "train":
        sampling = build(cfg.rollout)
        found.append(masked.notice(algorithm, settings, sampling))
        found.append(pictures.notice(algorithm, sampling))
    return filter(None, found)


def fill_in(cfg: DictConfig, run_dir: Path, overrides: Sequence[str]) -> None:
    """Set the keys that a run records of itself."""
    cfg.run_dir = str(run_dir)
    if cfg.continue_from is not None:
        cfg.continue_from = str(follow_link(Path(cfg.continue_from)))
    if cfg.resume is None:
        record_overrides(cfg, overrides)
    elif length := [*filter(_sets_length, overrides)]:
        words = OmegaConf.to_container(cfg.overrides, resolve=False)
        cfg.overrides = [word for word in words if not _sets_length(word)] + as_text(length)


def _sets_length(word: str) -> bool:
    return word.lstrip("+").partition("=")[0] == "iterations"


def check_folders(cfg: DictConfig, settings: Settings, run_dir: Path, job: Job) -> None:
    """Raise ValueError for folders that cannot be written to, or a run that cannot be resumed."""
    if job == "train":
        check_place(run_dir)
    else:
        check_place(Path(settings.cache_dir), key="cache_dir")
    engine = build(cfg.rollout).engine
    if engine is not None and engine.writes_to is not None and not settings.estimate:
        check_place(engine.writes_to, key="rollout.engine.folder")
    if settings.resume is not None and settings.evaluate:
        check_measurable(run_dir)
    elif settings.resume is not None:
        recorded = read_run(run_dir).checkpoints.every  # which this command may have changed
        every = max(recorded, settings.checkpoints.every)
        check_resumable(run_dir, every=every, iterations=settings.iterations)
