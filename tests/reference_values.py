"""Reference values as fixtures; a session of all quick tests fails for unread ones.

The fixtures note what is read. Processes of xdist report their notes to the main process, which
compares them with the files and with the lists of excused values.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest
import torch

VECTORS = Path(__file__).parent / "vectors"
EXCUSES = {  # file of values -> file of excuses
    "llm.json": "unused.toml", "flow.json": "flow_unused.toml", "axis.json": "axis_unused.toml",
}  # fmt: skip
READ: set[tuple[str, str]] = set()  # (file, name)
COMPLAINTS = pytest.StashKey[list[str]]()


class Vectors(dict):
    """Published and independently computed values by name; read as float64 tensors."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.tensor(self.plain(name), dtype=torch.float64)

    def plain(self, name: str) -> list | float:
        """The value as it is in the file: some are no tensors."""
        READ.add(("llm.json", name))
        return super().__getitem__(name)


@pytest.fixture(scope="session")
def vectors() -> Vectors:
    """Six samples of at most five steps, with garbage outside the mask, and derived values."""
    return Vectors(json.loads((VECTORS / "llm.json").read_text()))


@pytest.fixture(scope="session")
def flow() -> Callable[..., torch.Tensor]:
    """(case/field, dtype=float64) -> tensor, of the reference values of flows."""
    return _reader("flow.json")


@pytest.fixture(scope="session")
def axis() -> Callable[..., torch.Tensor]:
    """(case/field, dtype=float64) -> tensor, of the reference values of later additions."""
    return _reader("axis.json")


def _reader(file: str) -> Callable[..., torch.Tensor]:
    cases = json.loads((VECTORS / file).read_text())

    def read(name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        READ.add((file, name))
        case, field = name.rsplit("/", 1)
        return torch.tensor(cases[case][field], dtype=dtype)

    return read


def complaints(
    known: Collection[str], read: Collection[str], excuses: Mapping[str, str]
) -> Iterator[str]:
    """One line for each problem of the names `known`, of which `read` were read.

    The excuse of `case` covers every `case/field`, none of which may then be read.
    """
    covered: set[str] = set()
    for name, reason in excuses.items():
        own = {value for value in known if value == name or value.rsplit("/", 1)[0] == name}
        covered |= own
        if not own or not reason:
            yield f"{name}: {'no reason stands beside it' if own else 'there is no such value'}"
        yield from (f"{value}: is excused, but read" for value in sorted(own & {*read}))
    yield from (f"{value}: no test reads it" for value in sorted({*known} - {*read} - covered))


def names(values: Mapping[str, object]) -> list[str]:
    """The names of a file: `case/field` where cases have fields."""
    return [
        name if not isinstance(value, dict) else f"{name}/{field}"
        for name, value in values.items()
        for field in (value if isinstance(value, dict) else [""])
    ]


def of_session(folder: Path) -> list[str]:
    """The complaints about all files, after the reads of this session."""
    return [
        f"{excuses}: {complaint}"
        for file, excuses in EXCUSES.items()
        for complaint in complaints(
            names(json.loads((folder / file).read_text())),
            {name for where, name in READ if where == file},
            tomllib.loads((folder / excuses).read_text()),
        )
    ]


def is_whole(config: pytest.Config) -> bool:
    """Whether the session runs all quick tests."""
    chosen = config.option
    narrowed = chosen.keyword or chosen.deselect or chosen.ignore or chosen.ignore_glob
    narrowed = narrowed or chosen.collectonly or chosen.setupplan or vars(chosen).get("lf")
    all_paths = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return all_paths and chosen.markexpr == "not slow" and not narrowed


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """A process of xdist has ended; a crashed one reports nothing."""
    told = getattr(node, "workeroutput", {})
    READ.update(map(tuple, told.get("reference_values", ())))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if (told := getattr(config, "workeroutput", None)) is not None:
        told["reference_values"] = sorted(READ)
    elif exitstatus == pytest.ExitCode.OK and is_whole(config):
        config.stash[COMPLAINTS] = of_session(config.rootpath / "tests" / "vectors")
        if config.stash[COMPLAINTS]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if (found := config.stash.get(COMPLAINTS, None)) is None:
        return
    terminalreporter.section("reference values")
    terminalreporter.write_line("\n".join(found) or f"all {len(READ)} were read, or are excused")
