"""Mutation tests: whether the tests detect published bugs:
`python benchmarks/mutations.py [--save]`.

Each mutant of `mutants/*.toml` is a published bug of another project, or one of our own
(`own.toml`), as an edit of one file of src. It is planted in a copy of the checkout, where the
tests closest to the file run first and, if they pass, all quick ones. Exits with 1 if a mutant
survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = Path(__file__).resolve().parent / "mutants"
RESULTS = Path(__file__).resolve().parent / "results"
QUICK, RANKS = "not system and not slow", "not slow"  # which tests run
OWN = "tests/test_mutations.py"  # compares the sources with the mutants, so it would detect each
JUDGED = ("src", "conf", "tests")  # the files on which a verdict depends
OURS = "ours"  # in place of an issue
PATIENCE = 900  # seconds of one run of tests


class Refused(Exception):
    """An invalid mutant or request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug, and the edit that plants it."""

    name: str
    issue: str | None = None  # owner/repository#number of a public issue or pull request
    says: str  # what is wrong, in a line
    file: str  # below src/tandem
    old: str  # occurs there once
    new: str
    tests: tuple[str, ...]  # run first
    system: bool = False  # detection takes several processes

    @property
    def path(self) -> str:
        return f"src/tandem/{self.file}"

    @property
    def marker(self) -> str:
        return RANKS if self.system else QUICK

    def plant(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise Refused(f"{self.name}: its text occurs {found} times in {self.path}; mend it")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    mutant: Mutant
    caught_by: str | None  # None: it survived
    seconds: float


def main() -> None:
    chosen = arguments()
    try:
        mutants = select(chosen.only)
        if chosen.list:
            print("\n".join(f"{m.name:<36} {m.issue or OURS:<36} {m.says}" for m in mutants))
            return
        commit = state(committed=chosen.committed)  # before others move it
        verdicts = judge(mutants, chosen.processes, committed=chosen.committed)
    except Refused as error:
        sys.exit(f"mutations: {error}")
    text = as_text(verdicts, commit)
    print(text)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "mutations.md").write_text(text)
    sys.exit(any(verdict.caught_by is None for verdict in verdicts))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants alone")
    parser.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    parser.add_argument("--committed", action="store_true", help="copy HEAD, not the working tree")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2, help="at once")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    return parser.parse_args()


def read() -> list[Mutant]:
    tables = [tomllib.loads(path.read_text()) for path in sorted(MUTANTS.glob("*.toml"))]
    rows = [row for table in tables for row in table["mutant"]]
    return [Mutant(**row | {"tests": tuple(row["tests"])}) for row in rows]


def select(names: Sequence[str] | None) -> list[Mutant]:
    mutants = read()
    known = [mutant.name for mutant in mutants]
    if twice := {name for name in known if known.count(name) > 1}:
        raise Refused(f"two mutants are called {', '.join(sorted(twice))}")
    if unknown := set(names or ()) - set(known):
        raise Refused(f"no mutant is called {', '.join(sorted(unknown))}; --list names all")
    return [mutant for mutant in mutants if names is None or mutant.name in names]


def judge(mutants: Sequence[Mutant], processes: int, *, committed: bool) -> list[Verdict]:
    """The verdict on every mutant, in order. Each process has its own copy."""
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(processes):
            copies.put(copy_checkout(Path(folder) / str(number), committed=committed))
        first = copies.queue[0]
        for mutant in mutants:
            check(mutant, first)
        check_healthy(first, mutants)

        def judge(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                verdict = fate(copy, mutant)
            except Refused as error:  # the other verdicts are still useful
                say(f"{mutant.name}: {error}")
                verdict = Verdict(mutant=mutant, caught_by=None, seconds=0)
            finally:
                copies.put(copy)
            say(f"{mutant.name}: {verdict.caught_by or 'SURVIVED'} ({verdict.seconds:.0f} s)")
            return verdict

        with ThreadPoolExecutor(processes) as pool:
            return list(pool.map(judge, mutants))


def copy_checkout(folder: Path, *, committed: bool) -> Path:
    """A copy of the checkout: tracked and untracked files, or those of HEAD."""
    folder.mkdir()
    if committed:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True)
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        return folder
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def check(mutant: Mutant, copy: Path) -> None:
    """Raise if the mutant's text or tests no longer exist."""
    mutant.plant((copy / mutant.path).read_text())
    if missing := [x for x in mutant.tests if not (copy / x.partition("::")[0]).exists()]:
        raise Refused(f"{mutant.name}: there is no {missing[0]}; mend it")


def check_healthy(copy: Path, mutants: Sequence[Mutant]) -> None:
    """Raise if the tests fail without a mutant, or import other code."""
    where = python(copy, "-c", "import tandem; print(tandem.__file__)").stdout.strip()
    if not Path(where).is_relative_to(copy):
        raise Refused(f"the tests would read {where}, not the copy in {copy}")
    for marker in sorted({mutant.marker for mutant in mutants}):
        paths = {path for m in mutants if m.marker == marker for path in m.tests}
        began = time.perf_counter()
        if (failed := first_failure(copy, sorted(paths), marker)) is not None:
            raise Refused(f"{failed} fails without any mutant")
        say(f"the tests to be asked pass without a mutant ({time.perf_counter() - began:.0f} s)")


def fate(copy: Path, mutant: Mutant) -> Verdict:
    began = time.perf_counter()
    with plant(copy, mutant):
        caught_by = first_failure(copy, mutant.tests, mutant.marker)
        if caught_by is None:
            caught_by = first_failure(copy, ["tests"], QUICK)
    return Verdict(mutant=mutant, caught_by=caught_by, seconds=time.perf_counter() - began)


@contextmanager
def plant(copy: Path, mutant: Mutant) -> Iterator[None]:
    path = copy / mutant.path
    healthy = path.read_text()
    path.write_text(mutant.plant(healthy))
    try:
        yield
    finally:
        path.write_text(healthy)


def first_failure(copy: Path, paths: Sequence[str], marker: str) -> str | None:
    """The first test that fails, None if all pass."""
    options = ("-x", "-q", "-p", "no:cacheprovider", f"--ignore={OWN}", "-m", marker)
    done = python(copy, "-m", "pytest", *options, *paths)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None or "::" not in failed[1]:  # no test has run
        raise Refused(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return failed[1]


def python(copy: Path, *line: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the sources of that copy, without compiled files of other mutants."""
    own = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading takes a second
    command, settings = [sys.executable, *line], {"cwd": copy, "env": os.environ | own}
    try:
        return subprocess.run(command, **settings, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise Refused(f"no end after {PATIENCE} s: {' '.join(line)}") from error


def state(*, committed: bool) -> str:
    """The judged code in words; changes of notes and results do not matter."""
    name = f"commit {git('rev-parse', '--short', 'HEAD').strip()}"
    changed = git("status", "--porcelain", "--", *JUDGED)
    return name if committed or not changed else f"{name} with changes"


def as_text(verdicts: Sequence[Verdict], commit: str) -> str:
    caught = sum(verdict.caught_by is not None for verdict in verdicts)
    lines = [
        f"{caught} of {len(verdicts)} bugs, planted one at a time, are caught; "
        f"{date.today().isoformat()}, {commit}.\n",
        "| mutant | published as | what is wrong | caught by |",
        "|---|---|---|---|",
    ]
    for verdict in verdicts:
        mutant = verdict.mutant
        by = "**SURVIVED**" if verdict.caught_by is None else f"`{verdict.caught_by}`"
        origin = OURS if mutant.issue is None else link_issue(mutant.issue)
        lines.append(f"| {mutant.name} | {origin} | {mutant.says} | {by} |")
    return "\n".join(lines) + "\n"


def link_issue(issue: str) -> str:
    """A link to the issue; GitHub redirects it if the number is a pull request."""
    repository, _, number = issue.partition("#")
    return f"[{issue}](https://github.com/{repository}/issues/{number})"


def git(*line: str) -> str:
    return subprocess.run(["git", *line], cwd=ROOT, capture_output=True, text=True).stdout


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
