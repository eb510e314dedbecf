"""The first two commands of a new user: `python benchmarks/fresh_clone.py`.

`make train` in a clone of this repository with an empty home folder, so that packages are loaded
and the warm start is trained, then the image model. The last line has wall seconds, the
CPU-seconds of all processes, and the accuracy on held-out prompts at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (("make", "train"), (".venv/bin/python", "train.py", "model=tiny_flow"))
OF_A_USER = ("PYTHON", "VIRTUAL_ENV", "XDG_", "MAKE", "MFLAGS")  # variables that start with these


def main() -> None:
    print(f"result: {measure(ROOT)}")


def measure(repository: Path) -> str:
    """What the commands take in a clone of the last commit of a repository."""
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder, "clone"), Path(folder, "home")
        subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
        home.mkdir()
        own = {name: x for name, x in os.environ.items() if not name.startswith(OF_A_USER)}
        return "; ".join(time_line(line, clone, own | {"HOME": str(home)}) for line in COMMANDS)


def time_line(line: tuple[str, ...], clone: Path, environment: dict[str, str]) -> str:
    before = os.times()
    subprocess.run(line, cwd=clone, env=environment, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    last = (clone / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()[-1]
    return (
        f"`{' '.join(line[-2:])}` {after.elapsed - before.elapsed:.0f} s ({cpu:.0f} CPU-s), "
        f"accuracy {json.loads(last)['eval/accuracy']:.3f}"
    )


if __name__ == "__main__":
    main()
