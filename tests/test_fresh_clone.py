"""The benchmark of a new user's first two commands, on a repository of a few lines."""

import re
import subprocess
import sys

from benchmarks.fresh_clone import measure

TRAIN = """import json, os, pathlib, sys
assert list(pathlib.Path.home().iterdir()) == [] and "MAKEFLAGS" not in os.environ
run = pathlib.Path("runs", sys.argv[-1])
run.mkdir(parents=True)
latest = pathlib.Path("runs/latest")
latest.unlink(missing_ok=True)
latest.symlink_to(run.name)
accuracy = 0.5 if sys.argv[1:] == ["model=tiny_flow"] else 0.25
(run / "metrics.jsonl").write_text("{}\\n" + json.dumps({"eval/accuracy": accuracy}) + "\\n")
"""
MAKE = """train:
\tmkdir -p .venv/bin
\tln -s {python} .venv/bin/python
\tenv -u MAKEFLAGS .venv/bin/python train.py
"""


def test_both_commands_are_timed_in_a_clone_with_an_empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("MAKEFLAGS", "--no-such-flag")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "Makefile").write_text(MAKE.format(python=sys.executable))
    for line in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *line], cwd=tmp_path, check=True)
    found = measure(tmp_path)
    took = r"\d+ s \(\d+ CPU-s\)"
    first, second = found.split("; ")
    assert re.fullmatch(f"`make train` {took}, accuracy 0.250", first)
    assert re.fullmatch(f"`train.py model=tiny_flow` {took}, accuracy 0.500", second)
    assert not (tmp_path / "runs").exists()
