"""A replacement of train.py for sweeps: it reads a run's command line, writes a record, and ends.

`do=` determines the end; a file `mended` beside it lets every run finish.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    folder = Path((given.get("resume") or given["run_dir"]).strip("'"))
    with (folder / "starts").open("a") as file:
        file.write(f"{' '.join(words)}\n")
    what = given.get("do") or (folder / "config.yaml").read_text().strip()
    print(f"as {what}, told {os.environ.get('TOLD')}", flush=True)
    if what == "refuse":
        print("unknown key 'lr': did you mean 'optimizer.lr'?", file=sys.stderr)
        sys.exit(2)
    (folder / "config.yaml").write_text(what)
    (folder / "manifest.json").write_text("{}")
    score(folder, 0.25)
    if what in ENDS and not Path("mended").exists():
        ENDS[what]()
    score(folder, 0.75)


def score(folder: Path, value: float) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 0, "eval/accuracy": value}) + "\n")


def crash() -> None:
    raise ValueError("it broke")


def guard() -> None:
    print("stopped: every group ties", file=sys.stderr)
    sys.exit(3)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    Path("waiting").touch()
    time.sleep(60)


ENDS = {"crash": crash, "guard": guard, "die": die, "wait": wait}

if __name__ == "__main__":
    main(sys.argv[1:])
