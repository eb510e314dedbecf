"""`python -m tandem sweep FOLDER`: the status of a sweep's runs, also while they run.

FOLDER is the sweep's folder, which it names when it starts; runs/sweeps/latest is the last one.
The table has a row for each run: its overrides, its state (waiting, running, finished, stopped,
failed), its seconds, its score, and why it failed. The next commands are below it.

Examples:
  python -m tandem train -m algorithm=grpo,dapo seed=0,1     start a sweep
  python -m tandem sweep runs/sweeps/latest                  its status
  python -m tandem compare runs/sweeps/latest                compare its finished runs
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem.compare.terminal import refuse_flags
from tandem.stop import end_when_told
from tandem.sweep.status import read_plan
from tandem.sweep.table import summarise


def main(arguments: Sequence[str]) -> None:
    """Print the table of a sweep's runs, or the usage. Exits with 2 without a sweep."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__, end="")
        return
    try:
        refuse_flags(arguments, known=())
        if len(arguments) != 1:
            raise ValueError("give one folder: python -m tandem sweep runs/sweeps/latest")
        folder = Path(arguments[0])
        summary = summarise(folder, read_plan(folder))
        print(summary.text(shutil.get_terminal_size().columns))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    with end_when_told():
        main(sys.argv[1:])
