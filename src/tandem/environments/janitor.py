"""A process that ends programs which a trainer left behind, for `tandem.environments.program`.

Run as `python -P janitor.py`: it reads `+GROUP` and `-GROUP` by stdin, one a line. Once nobody can
write there any more, whatever the trainer died of, the process groups that are left are killed. It
is a script that imports nothing of Tandem.
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
