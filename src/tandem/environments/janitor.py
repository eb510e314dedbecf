"""A process that ends orphaned programs of a trainer, for `tandem.environments.program`.

Run as `python -P janitor.py`: it reads `+GROUP` and `-GROUP` from stdin, one per line. Once stdin
closes, however the trainer died, it kills the remaining process groups. It is a script without
imports of Tandem.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Track process groups from stdin until it closes, then kill those left."""
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
