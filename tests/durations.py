"""CPU seconds of every test, including its processes.

A plugin of tests/conftest.py. The complete list is in .cache/durations.tsv after each run; the
files that take the most are printed.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / ".cache" / "durations.tsv"
SHOWN = 15  # files
CPU = "cpu_seconds"
BEFORE = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Setup, call and teardown of one test, on the report of its teardown."""
    item.stash[BEFORE] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.when == "teardown":
        report.user_properties.append((CPU, _cpu_seconds() - item.stash[BEFORE]))
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Called in the process that collects the reports of all workers."""
    reports = [r for group in terminalreporter.stats.values() for r in group]
    spent = {r.nodeid: dict(r.user_properties).get(CPU, 0.0) for r in reports if _of_teardown(r)}
    by_file = Counter()
    for test, seconds in spent.items():
        by_file[test.partition("::")[0]] += seconds
    LIST.parent.mkdir(exist_ok=True)
    rows = sorted(spent.items(), key=lambda row: -row[1])
    LIST.write_text("".join(f"{seconds:.2f}\t{test}\n" for test, seconds in rows))
    total = by_file.total()
    if total < 60:
        return
    terminalreporter.write_sep("=", f"{total:.0f} CPU-seconds of {len(spent)} tests, by file")
    for file, seconds in by_file.most_common(SHOWN):
        terminalreporter.write_line(f"{seconds:8.1f}  {file}")


def _of_teardown(report: object) -> bool:
    return isinstance(report, pytest.TestReport) and report.when == "teardown"


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
