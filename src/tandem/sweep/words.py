"""Command lines of a sweep: from the one that was typed to those of its runs."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.types import RunMode
from omegaconf import DictConfig

from tandem.config.composition import compose_with_hydra, import_plugins, make_loader
from tandem.config.loading import Loader
from tandem.config.names import ConfigError
from tandem.config.overrides import Menu, list_options, parse
from tandem.sweep.files import (
    list_swept,
    refuse_more_than_a_sweep,
    refuse_studies_that_sweep,
)
from tandem.sweep.swept_numbers import replace_words

LONGEST = 100  # characters of a readable folder name
FILES = ("sweep", "experiment")  # groups whose options may contain swept values
# Keys of a single run -> what to do in a sweep instead.
INSTEAD = {
    "resume": "-m starts runs; repeat the command of a sweep to continue its unfinished runs",
    "run_dir": "the runs of a sweep share one folder; set sweep_dir",
    "hydra.run.dir": "the runs of a sweep share one folder; set sweep_dir",
    "hydra.sweeper.params": "write swept values as they are, e.g. seed=0,1",
    "hydra.sweep.dir": "set sweep_dir instead",
    "hydra.sweep.subdir": "the swept values name the folder of a run; set sweep_dir",
}
OF_RANKS = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK")  # set by launchers of one process per device


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Runs that differ in what is swept and share the rest of their command line."""

    folder: Path
    shared: Sequence[str]  # overrides of every run
    swept: Mapping[str, Sequence[str]]  # key as typed -> its values as typed
    space: Mapping[str, str]  # the same key -> its values in Hydra's grammar, `range(0,3)`
    hydra: DictConfig  # launcher and sweeper, as set by command line and files
    gpus: int | None  # of each run; None: all visible ones
    dry_run: bool  # only print what would run

    @property
    def searches(self) -> bool:
        return searches(self.hydra)

    @property
    def jobs(self) -> dict[str, list[str]] | None:
        """Folder name -> overrides of each run; None for a search."""
        if self.searches:
            return None
        pairs = [[f"{key}={value}" for value in values] for key, values in self.swept.items()]
        own = (replace_words(self.shared, job) for job in itertools.product(*pairs))
        return {name_job(job): [*self.shared, *job] for job in own}


def parse_sweep(overrides: Sequence[str], *, multirun: bool) -> Sweep | None:
    """The sweep that -m, `sweep=` or an experiment's file asks for; None: a single run."""
    if not multirun and not (_list_chosen(overrides) & {*FILES}):
        return None
    source = _make_source(overrides)
    menu = list_options(source)
    if multirun:
        _refuse_what_a_run_has(overrides, menu)
    whole = compose_with_hydra(_list_first(overrides, menu))
    if not (multirun or "sweep" in _list_chosen(overrides) or whole.hydra.mode is RunMode.MULTIRUN):
        return None
    _refuse_what_a_run_has(overrides, menu)
    refuse_more_than_a_sweep(overrides, source)
    _refuse_swept_studies(overrides, menu)
    if whole.estimate:
        raise ConfigError(
            "estimate=true: it is of one run; leave out -m and swept values, or add hydra.mode=RUN "
            "to an experiment that sweeps"
        )
    _refuse_a_key_twice(overrides)
    parts = parse(_expand(overrides, whole.hydra))
    swept = [part for part in parts if part.is_sweep_override()]
    shared = [p.input_line for p in parts if not (p.is_sweep_override() or _is_aside(p))]
    values = {part.get_key_element(): _values(part, menu) for part in swept}
    space = {part.get_key_element(): _space(part, menu) for part in swept}
    words = space if searches(whole.hydra) else {k: ",".join(sorted(v)) for k, v in values.items()}
    return Sweep(
        folder=Path(whole.sweep_dir or name_folder(shared, words)).absolute(),
        shared=shared,
        swept=values,
        space=space,
        hydra=whole.hydra,
        gpus=None if _sweeps(values, "trainer") else _gpus(whole.trainer),
        dry_run=bool(whole.dry_run),
    )


def _make_source(overrides: Sequence[str]) -> Loader:
    """A loader of all options, also those of every plugin that a sweep over plugins names."""
    named = [part for part in parse(overrides) if part.key_or_group == "plugins"]
    lines = [line for part in named for line in _list_single(part)]
    return make_loader([own for line in lines for own in import_plugins([line])])


def _list_single(part: Override) -> list[str]:
    """The plugins of one run each. Raises ConfigError for a pattern or an interval."""
    match part.value():
        case Glob() | IntervalSweep():
            raise ConfigError(f"{part.input_line}: give lists of modules: plugins=[mine],[yours]")
        case _ if part.is_sweep_override():
            return [f"plugins={names}" for names in part.sweep_string_iterator()]
    return [part.input_line]


def searches(hydra: DictConfig) -> bool:
    """Whether a sweeper chooses the runs while the sweep proceeds."""
    return hydra.runtime.choices["hydra/sweeper"] != "basic"


def _sweeps(swept: Iterable[str], group: str) -> bool:
    """Whether a swept key is the group itself or lies in it, so that runs differ in it."""
    return any(re.split(r"[.@/]", key.lstrip("+"))[0] == group for key in swept)


def _gpus(trainer: DictConfig) -> int | None:
    """The number of GPUs of a run; None for a list, whose indices refer to all visible GPUs."""
    if trainer.accelerator == "cpu":
        return 0
    return trainer.devices if isinstance(trainer.devices, int) else None


def name_job(own: Sequence[str]) -> str:
    """The folder name of a run: its swept values, sorted; shortened or unsafe names get a hash."""
    text = ",".join(sorted(line.lstrip("+") for line in own)) or "run"
    name = re.sub(r"_*([,=])_*", r"\1", re.sub(r"[^\w.,=+-]+", "_", text)).strip("_")
    if name == text and len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]}-{_digest(text)}"


def name_folder(shared: Sequence[str], swept: Mapping[str, str]) -> str:
    """The default folder of a sweep: the same for the same runs in any order, and for no others."""
    words = sorted(re.split(r"[./@]", key)[-1].lstrip("+") for key in swept)
    whole = sorted([*shared, *(f"{key}={values}" for key, values in swept.items())])
    return f"runs/sweeps/{'-'.join(words)[:40] or 'run'}-{_digest(' '.join(whole))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _list_chosen(overrides: Sequence[str]) -> set[str]:
    return {part.key_or_group for part in parse(overrides)}


def _list_first(overrides: Sequence[str], menu: Menu) -> list[str]:
    """The command line of the first run, without values that files sweep."""
    return [
        f"{p.get_key_element()}={_values(p, menu)[0]}" if p.is_sweep_override() else p.input_line
        for p in parse(overrides)
    ]


def _expand(overrides: Sequence[str], hydra: DictConfig) -> list[str]:
    """The overrides with the swept values of files added, unless the command line sets the key."""
    by_files = [f"{key}={values}" for key, values in list_swept(hydra, overrides).items()]
    return [*by_files, *overrides]


def _is_aside(part: Override) -> bool:
    """Whether an override concerns only how runs are started."""
    return part.key_or_group in ("sweep", "sweep_dir", "dry_run") or part.is_hydra_override()


def _values(part: Override, menu: Menu) -> list[str]:
    """The values that a part sweeps; for an interval, its two ends."""
    sweep = part.value()
    match sweep:
        case Glob():
            found = list(sweep.filter(list(menu.get(part.key_or_group, ()))))
        case IntervalSweep(start=start, end=end):
            found = [str(start), str(end)]
        case _:
            found = list(part.sweep_string_iterator())
    if not found:
        raise ConfigError(f"{part.input_line}: gives no values")
    return [str(name) for name in found]


def _space(part: Override, menu: Menu) -> str:
    is_pattern = isinstance(part.value(), Glob)
    return ",".join(_values(part, menu)) if is_pattern else part.input_line.partition("=")[2]


def _refuse_what_a_run_has(overrides: Sequence[str], menu: Menu) -> None:
    for part in parse(overrides):
        key = part.key_or_group
        if found := [name for name in INSTEAD if f"{key}.".startswith(f"{name}.")]:
            raise ConfigError(f"{key}: {INSTEAD[found[0]]}")
        if part.key_or_group == "sweep" and part.is_sweep_override():
            raise ConfigError(f"{part.input_line}: write sweep=[{','.join(_values(part, menu))}]")
        if part.key_or_group == "sweep_dir" and part.is_sweep_override():
            raise ConfigError(f"{part.input_line}: give one folder; quote a name with commas")
    if started := [name for name in OF_RANKS if name in os.environ]:
        raise ConfigError(
            f"{started[0]} is set: each rank would start the whole sweep; start it once with "
            "python train.py -m, and each run starts its own ranks"
        )


def _refuse_swept_studies(overrides: Sequence[str], menu: Menu) -> None:
    others = [
        word
        for part, word in zip(parse(overrides), _list_first(overrides, menu), strict=True)
        if part.key_or_group not in FILES
    ]
    for part in parse(overrides):
        if part.key_or_group == "experiment" and part.is_sweep_override():
            runs = {name: [*others, f"experiment={name}"] for name in _values(part, menu)}
            refuse_studies_that_sweep(part.input_line, runs)


def _refuse_a_key_twice(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a key that is swept twice: the last one would win silently."""
    for one, other in itertools.combinations(parse(overrides), 2):
        if _sets(one, other) or _sets(other, one):
            raise ConfigError(f"{one.input_line} {other.input_line}: give each key once")


def _sets(one: Override, other: Override) -> bool:
    """Whether `one` sets the key of `other`, directly or in a mapping."""
    key, below = (part.get_key_element().lstrip("+~") for part in (one, other))
    is_mapping = not one.is_delete() and isinstance(one.value(), dict)
    return key == below or (is_mapping and below.startswith(f"{key}."))
