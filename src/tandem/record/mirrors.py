"""Copies of the record for other viewers. If a mirror fails, the run continues without it."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from tandem.contracts import need_extra
from tandem.record import durable, galleries, jsonl

log = logging.getLogger(__name__)

Rows = Sequence[Mapping]
Job = Literal["train", "evaluate", "warm_start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The facts of a run that mirrors receive when it starts or resumes."""

    folder: Path
    name: str
    id: str  # the same for all starts of the run
    iteration: int  # of the next line; the record has the earlier ones
    job: Job = "train"
    config: Mapping[str, object] = field(default_factory=dict)  # resolved, without secrets


@runtime_checkable
class Mirror(Protocol):
    """Another place where numbers and samples go."""

    def open(self, run: Run) -> None: ...

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """The line of an iteration, once; its samples came before it."""

    def samples(self, iteration: int, rows: Rows) -> None:
        """The output of a row is a text, or a picture: uint8 [H, W, 3]."""

    def close(self) -> None: ...


class Mirrors:
    """All mirrors of a run, each with its own copies. One that fails is named in one line and left
    out from then on."""

    def __init__(self, mirrors: Sequence[Mirror]) -> None:
        self.mirrors = list(mirrors)
        self.alive: list[Mirror] = []  # none before they are opened

    def open(self, run: Run) -> None:
        """Open every mirror of a run."""
        self.alive = list(self.mirrors)
        self._each(lambda mirror: mirror.open(run))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda mirror: mirror.write(iteration, dict(metrics)))

    def samples(self, iteration: int, rows: Rows) -> None:
        self._each(lambda mirror: mirror.samples(iteration, [dict(row) for row in rows]))

    def close(self) -> None:
        """Close every mirror, also after one of them failed."""
        self._each(lambda mirror: mirror.close())
        self.alive = []

    def _each(self, act: Callable[[Mirror], None]) -> None:
        for mirror in tuple(self.alive):
            try:
                act(mirror)
            except Exception as error:  # no error of a mirror may end the run
                self.alive.remove(mirror)
                reason = " ".join(str(error).split()) or type(error).__name__
                log.warning("mirror %s is off: %s", type(mirror).__name__, reason)


def lines(folder: Path) -> list[dict]:
    """The lines of both logs of a record, joined by iteration."""
    timing = {line["iteration"]: line for line in jsonl.read(folder / "timing.jsonl")}
    metrics = jsonl.read(folder / "metrics.jsonl")
    return [line | timing.get(line["iteration"], {}) for line in metrics]


def replay(mirror: Mirror, run: Run, first: int = 0) -> None:
    """Write to a mirror the iterations of the record from `first` to the run's own, exclusive."""
    tables = galleries.list_tables(run.folder)
    for line in lines(run.folder):
        iteration = line.pop("iteration")
        if first <= iteration < run.iteration:
            if iteration in tables:
                mirror.samples(iteration, galleries.read_recorded(tables[iteration]))
            known = {name: value for name, value in line.items() if value is not None}
            mirror.write(iteration, known)


class Csv:
    """One wide table, metrics.csv, beside the logs it is made from."""

    def __init__(self) -> None:
        self.columns: list[str] = []

    def open(self, run: Run) -> None:
        """Rebuild the table from the logs."""
        self.path = run.folder / "metrics.csv"
        self.path.unlink(missing_ok=True)
        for line in lines(run.folder):
            self.write(line["iteration"], line)

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Append a row; a new column widens the file."""
        row = {"iteration": iteration, **metrics}
        missing = [name for name in row if name not in self.columns]
        if missing:
            self._widen(missing)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def samples(self, iteration: int, rows: Rows) -> None:
        """Nothing: the record has them as a table."""

    def close(self) -> None:
        """Nothing is held open."""

    def _widen(self, names: list[str]) -> None:
        """Rewrite the table with more columns, which are empty in earlier rows."""
        text = self.path.read_text() if self.path.exists() else ""
        old = list(csv.DictReader(io.StringIO(text, newline="")))
        self.columns += names
        wider = io.StringIO(newline="")
        table = csv.DictWriter(wider, self.columns)
        table.writeheader()
        table.writerows(old)
        durable.replace(self.path, wider.getvalue().encode())


class TensorBoard:
    """Event files in tensorboard/; of those of a run viewers show the last, with all points."""

    def open(self, run: Run) -> None:
        """Open an event file that begins with the recorded lines."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RuntimeError(need_extra("it", "tensorboard")) from error
        # Earlier files may lack the iterations of a start without this mirror: viewers drop them.
        # An evaluation has no record of earlier ones, which stay.
        first = run.iteration if run.job == "evaluate" else 0
        self.writer = SummaryWriter(run.folder / "tensorboard", purge_step=first)
        replay(self, run)

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, iteration)

    def samples(self, iteration: int, rows: Rows) -> None:
        """Write texts and pictures of an evaluation."""
        kinds = dict.fromkeys(row["kind"] for row in rows)
        for kind in kinds:
            lines = [_markdown(row) for row in rows if row["kind"] == kind]
            table = "\n".join(["|prompt|output|answer|reward|", "|-|-|-|-|", *lines])
            self.writer.add_text(f"samples/{kind}", table, iteration)
        for kind, shown in galleries.split_by_kind(rows).items():
            pixels = galleries.lay_out(shown).numpy()
            self.writer.add_image(f"pictures/{kind}", pixels, iteration, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


def _markdown(row: Mapping) -> str:
    text = {**row, "output": row["output"] if isinstance(row["output"], str) else "a picture"}
    cells = [str(text[name]) for name in ("prompt", "output", "answer", "reward")]
    literal = [re.sub(r"[\\|`]", r"\\\g<0>", cell) for cell in cells]
    escaped = [re.sub(r"\r\n?|\n", "<br>", cell) for cell in literal]
    return f"|{'|'.join(escaped)}|"
