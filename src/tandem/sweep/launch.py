"""Launch of a sweep, from its command line to its table.

Hydra enumerates the runs and its launchers start them, here or elsewhere. It composes the swept
keys only and accepts any value: an invalid combination is refused by the run's own process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError, check, compose
from tandem.contracts import need_extra
from tandem.record import durable
from tandem.record.latest import point_latest
from tandem.record.room import check_place
from tandem.record.secrets import scrub_words
from tandem.stop import INTERRUPTED, list_heard, say_at_once
from tandem.sweep import status
from tandem.sweep.job import LAUNCH, Launch, job, name_launch
from tandem.sweep.status import SweepPlan
from tandem.sweep.table import summarise
from tandem.sweep.words import Sweep

TABLE = "sweep.md"
SUBMITIT = ".submitit"  # where the launchers of Submitit write unless they are told otherwise
FAILED = 1
# State of a run -> what a dry run says of it.
MEANT: Mapping[status.State, str] = {
    "waiting": "would start",
    "stopped": "would continue",
    "failed": "would continue",
    "finished": "already finished",
    "running": "is running",
}


def launch(sweep: Sweep, argv: Sequence[str]) -> int:
    """Run what is missing, print the table of all runs, and return the command's exit code.

    Raises ValueError for a folder that cannot be written to, or that holds damaged files.
    """
    refuse_what_cannot_be_searched(sweep)
    check_place(sweep.folder, key="sweep_dir")
    jobs = sweep.jobs
    if sweep.dry_run:
        return FAILED if rehearse(sweep.folder, jobs) else 0
    order = Launch(
        id=name_launch(),
        folder=str(sweep.folder),
        cwd=os.getcwd(),
        program=str(Path(argv[0]).absolute()),
        shared=list(sweep.shared),
        spelled={_hydra_key(key): key for key in sweep.swept},
        jobs=None if jobs is None else len(jobs),
        gpus=sweep.gpus,
        environment=make_environment(sweep),
    )
    plan = status.write_plan(
        sweep.folder, shlex.join(scrub_words(["python", *argv], os.environ)), jobs
    )
    if (parent := sweep.folder.parent).name == "sweeps":
        point_latest(sweep.folder, parent)
    print(f"sweep  {'a search' if jobs is None else f'{len(jobs)} runs'} in {sweep.folder}")
    with listen_for_stop(order):
        broken = _hand_to_hydra(sweep, order)
    code = conclude(sweep.folder, plan, order.id)
    return FAILED if broken else code


def refuse_what_cannot_be_searched(sweep: Sweep) -> None:
    """Raise ConfigError for an invalid search, and for interval() outside a search."""
    if sweep.hydra.runtime.choices["hydra/sweeper"] == "search":
        try:
            from tandem.sweep.search import check
        except ModuleNotFoundError as error:
            raise ConfigError(need_extra("hydra/sweeper=search", "search")) from error
        return check(sweep.hydra.sweeper, list_hydra_overrides(sweep))
    for key, values in sweep.space.items():
        if "interval(" in values:
            raise ConfigError(f"{key}={values}: interval() requires hydra/sweeper=search")


def conclude(folder: Path, plan: SweepPlan, launch: str) -> int:
    """Print and save the table of this command's runs, and return the exit code."""
    summary = summarise(folder, plan, launch)
    durable.replace(folder / TABLE, f"{summary.markdown()}\n".encode())
    print(f"\n{summary.text(shutil.get_terminal_size().columns)}", flush=True)
    states = {one.state for one in status.read_jobs(folder, plan)}
    if states & {"failed", "taken"}:
        return FAILED
    return 0 if states <= {"finished"} else INTERRUPTED


def _hand_to_hydra(sweep: Sweep, order: Launch) -> bool:
    """Let Hydra run the sweep. True: its launcher failed and printed why."""
    node = configuration(sweep, order)
    if "submitit_folder" in sweep.hydra.launcher:  # for pickles of the Launch, with its secrets
        (sweep.folder / SUBMITIT).mkdir(exist_ok=True)
        (sweep.folder / SUBMITIT).chmod(0o700)  # earlier versions left it open to others
    ConfigStore.instance().store(name="sweep", node=node)
    if sweep.searches:  # an option of conf/, which Hydra does not see here
        option = sweep.hydra.runtime.choices["hydra/sweeper"]
        ConfigStore.instance().store(
            group="hydra/sweeper", name=option, node=node.hydra.sweeper, provider="tandem"
        )
    sys.argv = [sys.argv[0], *list_hydra_overrides(sweep), "--multirun"]
    try:
        hydra.main(version_base="1.3", config_path=None, config_name="sweep")(
            make_task_function(order)
        )()
    except SystemExit as ended:
        return bool(ended.code)
    except KeyboardInterrupt:
        return False
    finally:
        (sweep.folder / "multirun.yaml").unlink(missing_ok=True)  # sweep.json is the record
    return False


def make_task_function(order: Launch) -> Callable[[DictConfig], float | None]:
    """The function that Hydra calls for each run. It holds the secrets of the Launch, which Hydra's
    configuration must not contain."""

    def run(_: DictConfig) -> float | None:
        return job(order)

    return run


def make_environment(sweep: Sweep) -> dict[str, str]:
    """The variables of `hydra.job.env_set` and `env_copy`, which Hydra would write to disk."""
    said = OmegaConf.to_container(sweep.hydra.job, resolve=True)
    copied = {name: os.environ[name] for name in said["env_copy"] if name in os.environ}
    return copied | {name: str(value) for name, value in said["env_set"].items()}


def list_hydra_overrides(sweep: Sweep) -> list[str]:
    return [f"++{_hydra_key(key)}={values}" for key, values in sweep.space.items()]


def _hydra_key(key: str) -> str:
    """A name that Hydra treats as a plain key, neither as a config group nor as `group@package`."""
    name = key.lstrip("+")
    if ConfigStore.instance().get_type(name) is ObjectType.GROUP:
        return f"swept/{name}"
    return name if "@" not in name else name.replace("@", "/at/").replace(".", "/")


def configuration(sweep: Sweep, order: Launch) -> DictConfig:
    """The configuration that Hydra reads for a sweep and writes to its folder: launcher, sweeper,
    and the parts of the Launch that are not secret.
    """
    chosen = {
        group: option
        for group, option in sweep.hydra.runtime.choices.items()
        if group.startswith(("hydra/launcher", "hydra/sweeper"))
    }
    quiet = {"hydra/hydra_logging": "none", "hydra/job_logging": "none"}
    overrides = [{f"override {group}": option} for group, option in (chosen | quiet).items()]
    said = OmegaConf.to_container(sweep.hydra)
    told = {key: said[key] for key in ("launcher", "sweeper")}
    told["sweeper"]["params"] = None
    told |= {"sweep": {"dir": order.folder, "subdir": "."}, "output_subdir": None}
    shown = replace(order, shared=status.scrub_overrides(order.shared), environment={})
    return OmegaConf.create(
        {"defaults": ["_self_", *overrides], LAUNCH: asdict(shown), "hydra": told}
    )


@contextmanager
def listen_for_stop(order: Launch) -> Iterator[None]:
    """The first stop signal lets the runs end with a checkpoint; the second ends the launch."""

    def stop(number: int, frame: FrameType | None) -> None:
        if order.stop_file.exists():
            raise KeyboardInterrupt
        order.stop_file.touch()
        name = signal.Signals(number).name
        say_at_once(f"{name}: stopping the sweep; its runs save a checkpoint")
        for pid in list_running(order):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in list_heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        order.stop_file.unlink(missing_ok=True)


def list_running(order: Launch) -> list[int]:
    """The processes that this launch started on this machine and that have not ended."""
    folders = [path.parent for path in Path(order.folder).glob(f"*/{status.JOB}")]
    starts = [start for folder in folders if (start := status.read_start(folder)) is not None]
    here = socket.gethostname()
    return [
        start.pid
        for start in starts
        if start.launch == order.id and start.host == here and start.code is None
    ]


def rehearse(folder: Path, jobs: Mapping[str, Sequence[str]] | None) -> int:
    """Check every run of a sweep and start none: print a line for each, and return how many cannot
    run. `jobs`: None for a search."""
    if jobs is None:
        print("a search chooses its runs as it proceeds: there are none to check yet")
        return 0
    said = [_describe_job(folder / name, overrides) for name, overrides in jobs.items()]
    for number, (name, (_, text)) in enumerate(zip(jobs, said, strict=True), start=1):
        print(f"{number} of {len(jobs)}  {name}: {text}")
    return sum(refused for refused, _ in said)


def _describe_job(folder: Path, overrides: Sequence[str]) -> tuple[bool, str]:
    """Whether the run is impossible, and the text of its line."""
    found = status.read_job(folder, overrides)
    if found.state == "taken":
        return True, f"would be skipped: {found.reason}"
    try:
        check(compose(overrides))
    except ConfigError as error:
        return True, f"would be refused: {error}"
    return False, MEANT[found.state]
