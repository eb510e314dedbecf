"""`python -m tandem sweep FOLDER`: the status of a sweep's runs, also while they run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem.stop import end_when_told
from tandem.sweep.status import read_plan
from tandem.sweep.table import summarise


def main(arguments: Sequence[str]) -> None:
    """Print the table of a sweep's runs, or the usage. Exits with 2 without a sweep."""
    if len(arguments) != 1 or {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return
    try:
        folder = Path(arguments[0])
        summary = summarise(folder, read_plan(folder))
        print(summary.text(shutil.get_terminal_size().columns))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    with end_when_told():
        main(sys.argv[1:])
