"""Tandem at real sizes on one GPU: random weights of Qwen3-0.6B, Qwen3-8B and SD3.5-M.

Every section is measured in its own process, so one that fails or is late does not affect the
others; the report is written after each. A second call with the same --out continues where the
first ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_sizes import REAL, TINY, Section, Sizes
from gpu_table import as_text, in_one_line

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PROJECT_ROOT": str(ROOT)}
LEAST = 30  # seconds that must be left to begin a section
Report = dict[str, object]


def main(given: Sequence[str] | None = None) -> int:
    """Returns the number of failed sections."""
    chosen = arguments(given)
    if chosen.section is not None:
        measure(chosen)
        return 0
    report, now = read_report(chosen.out), {"date": str(date.today()), "commit": commit(chosen)}
    add_facts(report, {"commit": now["commit"]}, chosen.out)
    report |= now
    done = report.setdefault("sections", {})
    todo = [
        s for s in select_sections(chosen) if "failed" in done.get(s.name, {"failed": "never run"})
    ]
    for section, found in measure_all(todo, chosen, until=time.monotonic() + 60 * chosen.minutes):
        add_facts(report, found.pop("machine", {}), chosen.out)
        done[section.name] = found
        write(report, chosen.out)
        print(describe(section, found), flush=True)
    missing = [section.name for section in select_sections(chosen) if section.name not in done]
    print(as_text(report) + "".join(f"not run for lack of time: {name}\n" for name in missing))
    return sum("failed" in found for found in done.values())


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.5, help="no section runs longer")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json", help="and .md beside it")
    parser.add_argument("--only", nargs="+", help="parts of the names of sections")
    parser.add_argument("--commit", help="commit of these sources, if git is missing")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, also on a CPU")
    parser.add_argument("--section", help=argparse.SUPPRESS)  # measure it in this process
    return parser.parse_args(given)


def sizes(chosen: argparse.Namespace) -> Sizes:
    return TINY if chosen.tiny else REAL


def select_sections(chosen: argparse.Namespace) -> list[Section]:
    every = sizes(chosen).sections
    return [s for s in every if chosen.only is None or any(part in s.name for part in chosen.only)]


def read_report(file: Path) -> Report:
    """What an earlier call measured."""
    return json.loads(file.read_text()) if file.is_file() else {}


def add_facts(report: Report, facts: dict[str, str], file: Path) -> None:
    """Add facts that must be equal for all sections: the machine and the commit."""
    for name, value in facts.items():
        if report.setdefault(name, value) != value:
            raise SystemExit(f"{file} is of {name} {report[name]}, this is {value}: choose --out")


def write(report: Report, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    file.with_suffix(".md").write_text(as_text(report))


def commit(chosen: argparse.Namespace) -> str:
    if chosen.commit is not None:
        return chosen.commit
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def measure_all(
    todo: Sequence[Section], chosen: argparse.Namespace, *, until: float
) -> Iterator[tuple[Section, Report]]:
    """Section by section; meanwhile the process of the next one imports its libraries."""
    waiting = [Measurement(section, chosen) for section in todo[:1]]
    try:
        for number, section in enumerate(todo):
            if until - time.monotonic() < LEAST:
                return
            waiting += [Measurement(after, chosen) for after in todo[number + 1 :][:1]]
            limit = min(section.limit, until - time.monotonic())
            yield section, waiting.pop(0).result(limit)
    finally:
        for measurement in waiting:
            measurement.end()


class Measurement:
    """A section in a process that waits for its turn."""

    def __init__(self, section: Section, chosen: argparse.Namespace) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "found.json"
        flags = ["--section", section.name, "--out", str(self.file)]
        command = [sys.executable, __file__, *flags, *(["--tiny"] if chosen.tiny else [])]
        self.log = (Path(self.folder.name) / "log").open("w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | OFFLINE,
        )

    def result(self, limit: float) -> Report:
        """The result, or the reason why there is none."""
        began, why = time.monotonic(), "it ended without a result"
        try:
            self.process.communicate("go\n", timeout=limit)
        except subprocess.TimeoutExpired:
            why = f"it was stopped after {limit:.0f} s"
        self.process.kill()
        self.process.wait()
        found = read_report(self.file) or {"failed": why, "log": self.tail()}
        if self.process.returncode and "failed" not in found:
            found["stopped"] = why  # this is what it noted until then
        self.end()
        return found | {"took_seconds": round(time.monotonic() - began, 1)}

    def tail(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.log.close()
        self.folder.cleanup()


def measure(chosen: argparse.Namespace) -> None:
    """The process of one section: it imports, waits for its turn and writes a file."""
    section = next(s for s in sizes(chosen).sections if s.name == chosen.section)
    note(attempt(section, chosen), chosen.out)


def note(report: Report, file: Path) -> None:
    """Write the file whole or not at all: the process may be killed at any moment."""
    arriving = file.with_suffix(".new")
    arriving.write_text(json.dumps(report))
    arriving.rename(file)


def attempt(section: Section, chosen: argparse.Namespace) -> Report:
    """The result, or the traceback that ended it."""
    try:
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cpu" and not chosen.tiny:
            return {"failed": "torch sees no GPU; --tiny runs on a CPU"}
        from gpu_runs import Place
        from gpu_sections import MEASURES

        sys.stdin.readline()
        own = {"machine": machine(device)}
        place = Place(
            device=device,
            folder=chosen.out.parent,
            matrix=sizes(chosen).matrix,
            note=lambda report: note(report | own, chosen.out),
        )
        return MEASURES[section.measure](section, place) | own
    except Exception as error:  # whatever it is, it is reported as a failure of this section
        return {"failed": in_one_line(error), "log": traceback.format_exc()[-2000:]}


def machine(device: torch.device) -> dict[str, str]:
    import torch
    import transformers

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "transformers": transformers.__version__}


def describe(section: Section, found: Report) -> str:
    """A progress line; for a failure, everything that is known."""
    head = f"{section.name}: {found['took_seconds']} s"
    if "failed" in found:
        return f"{head}, FAILED: {found['failed']}\n{found.get('log', '')}"
    return f"{head}, incomplete: {found['stopped']}" if "stopped" in found else head


if __name__ == "__main__":
    sys.exit(main())
